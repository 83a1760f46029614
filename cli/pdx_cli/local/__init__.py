"""The processes of one `pdx up`: their layout, start, supervision and the proof that KV moves.

Imports `sources` for HTTP, and `runs` for the record and the logs on disk.
"""
