"""The rules between fields, each as CEL, as Python and as one sentence, and the rules that the connectors state.

Imports connectors and the top-level modules of pdx_api.
"""
