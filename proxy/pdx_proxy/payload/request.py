"""A client's request as engines receive it, and whether it can be split."""

from math import inf

from pdx_proxy.payload.body import Body


class Request:
    """A request that may go to an engine."""

    __slots__ = ("body", "deadline", "headers", "path", "session", "split")

    def __init__(
        self,
        path: str,
        body: Body,
        headers: tuple[tuple[str, str], ...],
        split: bool,
        session: str = "",
        deadline: float = inf,
    ) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        """The client's headers that go to engines."""
        self.split = split
        """Whether prefill and decode may run on different engines."""
        self.session = session
        """The client's name for the conversation; empty without one."""
        self.deadline = deadline
        """When the request expires, in the loop's time. A wait in the gateway's queue postpones it."""

    def whole(self) -> "Request":
        """The same request, not split."""
        return Request(self.path, self.body, self.headers, False, self.session, self.deadline)

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream. Deadlines depend on it."""
        return self.body.decisions.stream
