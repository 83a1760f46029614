"""HTTP/1.1 towards clients (`downstream`) and engines (`upstream`), routes, and errors in vLLM's shape.

Imports only `Address` of `config`: it contains no engine, no metric and no parsing of bodies.
"""
