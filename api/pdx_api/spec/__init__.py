"""The PDDeployment: its types with their descriptions, its CRD, and the parser.

Imports rules, connectors and the top-level modules of pdx_api.
"""
