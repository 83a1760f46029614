"""What one request holds of its gateway, until the last of its owners has released it."""

from pdx_proxy.admission.usage import Usage
from pdx_proxy.http.downstream.exchange import Exchange


class Permit:
    """What one request holds: a slot, room for its body, and one of its client's open requests.

    The request itself owns it, and so does each settlement of one of its hand-offs: a client that leaves frees nothing
    that an engine still works on.
    """

    __slots__ = ("_client", "_needs_body", "_owners", "_serves", "_usage", "buffered", "exchange", "name")

    def __init__(self, usage: Usage, exchange: Exchange, name: str | None, client: str | None) -> None:
        self._usage = usage
        self._client = client
        """The client whose open requests include this one; None without a limit for clients."""
        self._owners = 1
        self._needs_body = True
        self._serves = False
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
        """One more owner needs the permit, and the body. It calls `release` once."""
        self._owners += 1

    def drop_body(self) -> None:
        """The request itself needs its body no more."""
        self._needs_body = False
        if self._owners == 1:
            self._free_body()

    def release(self) -> None:
        """An owner has ended, in any way. The last one frees what the permit holds."""
        self._owners -= 1
        if self._owners > 1:
            return
        if self._owners == 1:
            if not self._needs_body:
                self._free_body()
            return
        self._free_body()
        if self._client is not None:
            self._usage.add_open(self._client, -1)
        if self._serves:
            self._usage.completed += 1
            self._usage.add_in_flight(-1)

    def _free_body(self) -> None:
        if self.buffered:
            self._usage.add_buffered(-self.buffered)
            self.buffered = 0
