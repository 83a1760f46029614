"""The gateway's settings, each declared once: flags, the spec's fields, help and reference follow. Pure.

`gateway` declares them, `setting` derives their flags, and `kinds` has their values. Does not load pydantic, which the
gateway does not have.
"""
