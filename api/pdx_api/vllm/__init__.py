"""What PDX assumes of vLLM, and what each version of vLLM has.

Imports the top-level modules of pdx_api only.
"""
