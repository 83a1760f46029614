"""The arms of a comparison: which there are, whether they are comparable, and how they run on devices.

`layouts`, `comparable` and `devices` are pure.
"""
