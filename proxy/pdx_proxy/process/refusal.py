"""Answers for connections that no worker accepts."""

import logging
import socket
from typing import Final

from pdx_proxy.http.downstream.exchange import Exchange, answer
from pdx_proxy.http.downstream.listener import Listener
from pdx_proxy.http.errors import unavailable_body

_HANDSHAKE_SECONDS: Final = 0.25
_LONGEST: Final = 2.0
"""How long a client may take to send its request and to read its answer."""
_log: Final = logging.getLogger(__name__)


async def refuse_all(sock: socket.socket) -> None:
    """Answer every connection that waits in a listening socket with 503, and close the socket."""
    try:
        listener = Listener(_refuse, max_body_bytes=0, send_seconds=_LONGEST)
        await listener.start(sock)
        await listener.close(_HANDSHAKE_SECONDS)
        await listener.finish(_LONGEST)
    except Exception as error:  # for example, this process has no free file for a connection
        _log.warning("connections to a worker that does not run were cut: %r.", error)
    finally:
        sock.close()


async def _refuse(exchange: Exchange) -> None:
    exchange.close_after()
    exchange.drop_body()
    body = unavailable_body("This gateway cannot serve the request now. Send it again.", exchange.path)
    answer(exchange, 503, body, {"retry-after": "1"})
