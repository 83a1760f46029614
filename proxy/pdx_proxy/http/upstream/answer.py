"""An engine's answer while it is received. Pure."""

from typing import Final

_LINE: Final = 160
"""Characters of an engine's own text about a failure."""


def one_line(text: str) -> str:
    """Return an engine's text as one short line. Terminals obey control characters: question marks replace them."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text[: 4 * _LINE].split()))
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"


def is_redirect(status: int) -> bool:
    """Whether an answer has nothing of an API, and sends its reader elsewhere. vLLM sends none."""
    return 300 <= status < 400


class Answer:
    """An engine's answer while it arrives."""

    __slots__ = (
        "chunked",
        "complete",
        "content",
        "event_begin",
        "framed",
        "generates",
        "headers",
        "heads",
        "inspected",
        "keep_alive",
        "raw",
        "refused",
        "size",
        "status",
        "unread",
    )

    def __init__(self) -> None:
        self.status = 0
        """0 until the head has arrived."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names are in lower case."""
        self.heads = 1
        """Heads in `raw`: one, and one for each interim answer."""
        self.chunked = False
        self.keep_alive = False
        self.complete = False
        self.content: bytes | bytearray = b""
        """The body so far, without its framing. Empty once the answer is relayed."""
        self.framed = False
        """Whether the body is a chunked event stream: it is relayed with the engine's framing."""
        self.raw: list[bytes] = []
        """An unfinished head; and the bytes of a framed answer as received. Empty once the answer is relayed."""
        self.size = 0
        """Bytes of body so far."""
        self.refused = False
        """Whether the answer is 200, and its first event reports an error of the client."""
        self.generates = False
        """Whether an event has arrived that the engine sends once it has produced an output."""
        self.event_begin = 0
        """Where the first event begins that has not been judged, in bytes of the body."""
        self.inspected = 0
        """Bytes of the body in which the end of that event has been searched."""
        self.unread = False
        """Whether events have arrived that are judged later: so many arrived together."""

    def skip_interim(self) -> None:
        """Forget an interim answer (1xx). Its bytes stay in `raw`."""
        self.status = 0
        self.headers = []
        self.heads += 1

    def end(self) -> None:
        """The engine has ended the connection: so ends a body without a length and without chunks (RFC 9112, 6.3)."""
        if self.status and not self.chunked and not self.header(b"content-length"):
            self.complete = True

    def add(self, data: bytes) -> None:
        """Append a part of the body. The first part is kept as it is: most answers have one."""
        content = self.content
        if not content:
            self.content = data
            return
        if not isinstance(content, bytearray):
            self.content = content = bytearray(content)
        content += data

    def discard(self) -> None:
        """Forget the body."""
        self.content = b""
        self.raw = []

    @property
    def body(self) -> bytes:
        """The body so far."""
        content = self.content
        return bytes(content) if isinstance(content, bytearray) else content

    @property
    def document(self) -> bytes:
        """The body if its content type is JSON, else empty."""
        return self.body if self.header(b"content-type").startswith(b"application/json") else b""

    @property
    def text(self) -> str:
        """Where a redirect leads, or the beginning of a body that is no JSON, as one line for a log; else empty."""
        if is_redirect(self.status):
            return one_line("redirects to " + self.header(b"location").decode("latin-1"))
        return one_line(self.body[: 4 * _LINE].decode(errors="replace")) or "no text" if not self.document else ""

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.header(b"content-type").startswith(b"text/event-stream")

    def header(self, name: bytes) -> bytes:
        """A header's value, or empty. `name` is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""
