"""Addresses."""

import pytest

from pdx_proxy.config.settings import Address


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("name", "name:1")])
def test_an_address_as_text(host: str, text: str) -> None:
    assert str(Address(host, 1)) == text
