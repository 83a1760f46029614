"""The cluster as a whole: the command line, up and down, simulated nodes, and kind as an alternative.

May import every other package.
"""
