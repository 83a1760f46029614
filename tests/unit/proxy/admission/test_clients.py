"""The address of a client behind proxies."""

import pytest

from pdx_proxy.admission.clients import client_address, parse_networks

TRUSTED = parse_networks(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.7, 10.9.9.9", "203.0.113.7"),
        ("10.0.0.1", "6.6.6.6, garbage, 10.9.9.9", "10.9.9.9"),
        ("10.0.0.1", "10.1.1.1,10.2.2.2", "10.1.1.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("203.0.113.7", "6.6.6.6", "203.0.113.7"),
        ("", "6.6.6.6", ""),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", ",".join(["10.0.0.2"] * 100), "10.0.0.2"),
    ],
)
def test_the_header_is_read_from_the_right(peer: str, forwarded: str, client: str) -> None:
    assert client_address(peer, forwarded, TRUSTED) == client


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address("10.0.0.1", "203.0.113.7", ()) == "10.0.0.1"


def test_a_wrong_network_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/40"):
        parse_networks(["10.0.0.0/40"])
