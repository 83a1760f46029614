"""An engine's answer while it is received. Pure."""


class Answer:
    """An engine's answer while it arrives."""

    __slots__ = ("chunked", "complete", "headers", "keep_alive", "parts", "raw", "size", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the head has arrived."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names are in lower case."""
        self.chunked = False
        self.keep_alive = False
        self.complete = False
        self.parts: list[bytes] = []
        """The body so far, without its framing. Empty once the answer is relayed."""
        self.raw: list[bytes] = []
        """The bytes so far as received, head and framing included. Empty once the answer is relayed."""
        self.size = 0
        """Bytes of body so far."""

    @property
    def body(self) -> bytes:
        """The body so far, joined."""
        if len(self.parts) > 1:
            self.parts = [b"".join(self.parts)]
        return self.parts[0] if self.parts else b""

    @property
    def document(self) -> bytes:
        """The body if its content type is JSON, else empty."""
        return self.body if self.header(b"content-type").startswith(b"application/json") else b""

    def header(self, name: bytes) -> bytes:
        """A header's value, or empty. `name` is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""
