"""The one error that a command ends with when the user can mend it."""


class CommandError(Exception):
    """Its text is one sentence for the user; `details` are lines shown under it, for example of a log."""

    def __init__(self, sentence: str, details: tuple[str, ...] = (), *, code: int = 1) -> None:
        super().__init__(sentence)
        self.details = details
        self.code = code
        """The exit code."""
