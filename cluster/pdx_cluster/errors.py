"""The errors of the cluster."""


class ClusterError(Exception):
    """The text says what failed and what to do, in a sentence or two."""


class MissingError(ClusterError):
    """This machine lacks something that the cluster needs; the text says what to install."""
