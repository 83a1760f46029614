"""The checks of `pdx doctor`: an observation in, findings out. Pure: no clock, no socket, no file, no event loop.

They import `sources.observation`, `sources.figures` and pure parts of the operator.
"""
