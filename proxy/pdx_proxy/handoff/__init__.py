"""The hand-off of a split request in each family, and the settlement of hand-offs that end early.

Imports `engines`, `balancing`, `admission` (the retry budget) and what they import.
Within the package: a family -> its legs -> `settlements` -> `settle` -> `situation`.
"""
