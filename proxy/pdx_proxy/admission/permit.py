"""The gateway's resources that one request holds until the request and its settlements have ended."""

import asyncio

from pdx_proxy.admission.usage import Usage
from pdx_proxy.http.downstream.exchange import Exchange


class Permit:
    """What one request holds: a slot, room for its body, and one of its client's open requests.

    It belongs to the request and to each settlement of one of its hand-offs: a client that leaves frees nothing that an
    engine still works on.
    """

    __slots__ = (
        "_alone",
        "_client",
        "_freed",
        "_needs_body",
        "_open",
        "_serves",
        "_settlements",
        "_unsettled",
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
        self._unsettled: asyncio.Future[None] | None = None
        """Ends with the settlements, while somebody waits for that."""
        self._alone = ""
        """The client of which no other request is open; empty: there may be others."""
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
        if self._unsettled is not None and not self._settlements and not self._unsettled.done():
            self._unsettled.set_result(None)
        self._free()

    async def settlements_ended(self) -> None:
        """Wait until no settlement needs the permit."""
        while self._settlements:
            self._unsettled = asyncio.get_running_loop().create_future()
            await self._unsettled

    def exclude_others(self, client: str) -> bool:
        """Whether no other request of the client holds this. If so, it does until the permit is free."""
        if self._alone:
            return True
        name = f"{client}\nalone"
        self._usage.add_open(name, 1)
        if self._usage.open_of(name) > 1:
            self._usage.add_open(name, -1)
            return False
        self._alone = name
        return True

    def drop_body(self) -> None:
        """The request itself needs its body no more."""
        self._needs_body = False
        self._free()

    def release(self, seconds: float = 0.0) -> None:
        """The request has ended, in any way. `seconds`: how long engines have worked on it."""
        if self._serves and self._open:
            self._usage.completed += 1
            self._usage.seconds += seconds
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
        if self._alone:
            self._usage.add_open(self._alone, -1)
        if self._serves:
            self._usage.add_in_flight(-1)
