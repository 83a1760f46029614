"""The load: requests as values, an open-loop generator over HTTP, and what it records of each request.

`traces` reads files, `generator` and `connection` perform; the other modules are pure.
"""
