"""The choice of engines: load, policies, and what is counted about choices.

`policies`, `pick` and `slow_start` are pure. Imports `endpoints` and everything below.
"""
