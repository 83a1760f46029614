"""`pdx bench`: the load, the search for the goodput, what the results mean, and the files with them.

`analysis` and `results` are pure. Imports `local`, `sources`, `inputs` and `runs`.
"""
