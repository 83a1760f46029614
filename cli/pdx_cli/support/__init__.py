"""The support bundle of `pdx doctor --bundle`: an observation becomes files without secrets and prompts. Pure.

Imports `sources.observation` and `checks.findings`.
"""
