"""Bodies of requests and answers: reading, cleaning, splicing for each leg, and the features of a prompt.

Pure functions and values. Imports only the pure modules of `http`.
"""
