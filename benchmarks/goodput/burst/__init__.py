"""Bursts under an SLO: shares at loads above the capacity of P's, and when they end after the load has fallen.

`experiment` runs simulations, `plot` draws one of them, `__main__` writes the tables.
"""
