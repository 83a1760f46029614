"""The screen of `pdx top`: figures become lines, and lines become frames on a terminal.

`layout`, `lines` and `keys` are pure; `terminal` performs the effects. Imports `sources`.
"""
