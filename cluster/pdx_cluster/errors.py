"""The errors of this package."""


class ClusterError(Exception):
    """Its text says in a sentence or two what failed, and what to do about it."""


class MissingError(ClusterError):
    """This machine lacks something that the cluster needs; the text says what to install."""
