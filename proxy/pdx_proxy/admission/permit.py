"""The gateway's resources that one request holds until the request and its settlements have ended."""

from pdx_proxy.admission.usage import Usage
from pdx_proxy.http.downstream.exchange import Exchange


class Permit:
    """What one request holds: a slot, room for its body, and one of its client's open requests.

    It belongs to the request and to each settlement of one of its hand-offs: a client that leaves frees nothing that an
    engine still works on.
    """

    __slots__ = (
        "_client",
        "_freed",
        "_needs_body",
        "_open",
        "_serves",
        "_settlements",
        "_usage",
        "buffered",
        "exchange",
        "name",
    )

    def __init__(self, usage: Usage, exchange: Exchange, name: str | None, client: str | None) -> None:
        self._usage = usage
        self._client = client
        """The client whose open requests include this one; None without a limit for clients."""
        self._open = True
        """Whether the request itself has not ended."""
        self._settlements = 0
        self._needs_body = True
        self._serves = False
        self._freed = False
        self.buffered = 0
        """Bytes of its body that are buffered."""
        self.exchange: Exchange | None = exchange
        """The request, until it has a slot."""
        self.name = name
        """Name of the client's API key, if there are keys."""
        if client is not None:
            usage.add_open(client, 1)

    def add_body(self, size: int) -> None:
        """Count bytes of the body that have arrived."""
        self.buffered += size
        self._usage.add_buffered(size)

    def serve(self) -> None:
        """The request leaves the queue, or does not wait, and gets a slot."""
        self._serves = True
        self.exchange = None
        self._usage.add_in_flight(1)

    def hold(self) -> None:
        """A settlement needs what the permit holds, the body included. It calls `settled` once."""
        self._settlements += 1

    def settled(self) -> None:
        """A settlement has ended, in any way."""
        self._settlements -= 1
        self._free()

    def drop_body(self) -> None:
        """The request itself needs its body no more."""
        self._needs_body = False
        self._free()

    def release(self) -> None:
        """The request has ended, in any way."""
        self._needs_body = self._open = False
        self._free()

    def _free(self) -> None:
        """Free what nobody needs: the body first, everything when the request and its settlements have ended."""
        if self._settlements or self._needs_body:
            return
        if self.buffered:
            self._usage.add_buffered(-self.buffered)
            self.buffered = 0
        if self._open or self._freed:
            return
        self._freed = True
        if self._client is not None:
            self._usage.add_open(self._client, -1)
        if self._serves:
            self._usage.completed += 1
            self._usage.add_in_flight(-1)
