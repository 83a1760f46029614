"""The error that ends a command when the user can fix the cause."""


class CommandError(Exception):
    """The text is one sentence for the user. `details` are lines printed below it, for example the end of a log."""

    def __init__(self, sentence: str, details: tuple[str, ...] = (), *, code: int = 1) -> None:
        super().__init__(sentence)
        self.details = details
        self.code = code
        """The exit code."""
