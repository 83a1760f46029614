"""The name of a client for limits and fair queueing: its API key's, or else its address. Pure."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address
_MOST_HOPS: Final = 32
_KEPT: Final = 256
"""Headers whose client is remembered. Reading one takes as long as selecting engines."""


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks of trusted proxies; raises ValueError for one that is none."""
    return tuple(ip_network(text, strict=False) for text in texts)


@lru_cache(_KEPT)
def client_address(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> str:
    """The client's address: the peer's, or behind trusted proxies the last address that none of them has.

    Each proxy appends the address of its own peer to X-Forwarded-For, so the header is read from the right. Whatever is
    left of the first address that is not a trusted proxy may come from the client itself and is ignored.
    """
    if not forwarded or not _is_trusted(_read(peer), trusted):
        return peer
    client = peer
    for text in reversed(forwarded.split(",")[-_MOST_HOPS:]):
        found = _read(text)
        if found is None:
            break
        client = str(found)
        if not _is_trusted(found, trusted):
            break
    return client


def _is_trusted(address: _Address | None, trusted: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in trusted)


def _read(text: str) -> _Address | None:
    """An address, also with a port as some proxies write it; None if the text is none."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
