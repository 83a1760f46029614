"""API keys: their files, the client of a request, and changes of the files."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from pdx_api.settings.gateway import Keys
from pdx_proxy.admission.api_keys import (
    KeyFileError,
    Keyring,
    UnauthorizedError,
    check,
    client_of,
    parse_clients,
    parse_engine_key,
    parse_weights,
)


def line(key: str, name: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()} {name}\n"


CLIENTS = "# who may\n\n" + line("secret", "alice") + line("other", "bob")
HEADERS = {
    "bearer": ({"authorization": "Bearer secret"}, "alice"),
    "scheme-in-any-case": ({"authorization": "bEARER other"}, "bob"),
    "anthropic": ({"x-api-key": "secret"}, "alice"),
    "bearer-counts": ({"authorization": "Bearer wrong", "x-api-key": "secret"}, None),
    "another-scheme": ({"authorization": "Basic secret", "x-api-key": "other"}, "bob"),
    "nothing": ({}, None),
    "empty": ({"authorization": "Bearer "}, None),
    "no-scheme": ({"authorization": "secret"}, None),
    "longer": ({"authorization": "Bearer secrets"}, None),
    "space": ({"authorization": "Bearer secret "}, None),
    "two-spaces": ({"authorization": "Bearer  secret"}, None),
    "its-hash": ({"authorization": f"Bearer {sha256(b'secret').hexdigest()}"}, None),
    "not-ascii": ({"authorization": "Bearer secr\xe9t"}, None),
    "surrogate": ({"authorization": "Bearer secret\udcff"}, None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_client_of(name: str) -> None:
    headers, expected = HEADERS[name]
    assert client_of(parse_clients(CLIENTS), headers) == expected


WRONG = {
    "": "the file has no key",
    "# nothing\n": "the file has no key",
    "secret alice": "line 1: write sha256:HEX NAME",
    "\nsha256:abc alice": "line 2: write",
    line("a", "x").rstrip("x\n"): "line 1: write",
    line("a", "x") + line("a", "y"): "line 2 repeats the key of x",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_clients(text: str) -> None:
    with pytest.raises(ValueError, match=WRONG[text]):
        parse_clients(text)


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "ha\r\nX-Evil: 1", "\x00", "k\xe9y", "x" * 5000])
def test_no_engine_key(text: str) -> None:
    with pytest.raises(ValueError, match="does not hold one key"):
        parse_engine_key(text)


class Holder:
    authorization = ""


def ring(tmp_path: Path) -> tuple[Keyring, Holder, list[str]]:
    holder, reports = Holder(), list[str]()
    keys = Keys(clients=str(tmp_path / "clients"), engines=str(tmp_path / "engines"))
    return Keyring(keys, holder, reports.append), holder, reports


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    """As a kubelet does it: the path is a symbolic link through a folder that is replaced."""
    for number, key in enumerate(("old", "new")):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "clients").write_text(line(key, "alice"))
        (tmp_path / f"v{number}" / "engines").write_text(f"{key}-engine\n")
    (tmp_path / "data").symlink_to("v0")
    for name in ("clients", "engines"):
        (tmp_path / name).symlink_to(f"data/{name}")
    keyring, holder, reports = ring(tmp_path)
    keyring.read_changed()
    assert keyring.identify({"authorization": "Bearer old"}) == "alice"
    assert holder.authorization == "Authorization: Bearer old-engine\r\n"
    (tmp_path / "next").symlink_to("v1")
    os.rename(tmp_path / "next", tmp_path / "data")
    keyring.read_changed()
    assert keyring.identify({"authorization": "Bearer new"}) == "alice"
    with pytest.raises(UnauthorizedError):
        keyring.identify({"authorization": "Bearer old"})
    assert holder.authorization == "Authorization: Bearer new-engine\r\n"
    assert not reports


@pytest.mark.parametrize("broken", [None, b"", b"\xff\xfe", b"two words\nhere"])
def test_a_broken_file_keeps_the_keys_in_force(broken: bytes | None, tmp_path: Path) -> None:
    clients, engines = tmp_path / "clients", tmp_path / "engines"
    clients.write_text(CLIENTS)
    engines.write_text("key")
    keyring, holder, reports = ring(tmp_path)
    keyring.read_changed()
    for path in (clients, engines):
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
    for _ in range(3):
        keyring.read_changed()
    assert keyring.identify({"x-api-key": "other"}) == "bob"
    assert holder.authorization == "Authorization: Bearer key\r\n"
    assert len(reports) == 2
    for path, report in zip((clients, engines), reports, strict=True):
        assert report.startswith(f"cannot use the key file {path}: ")
        assert report.endswith(". The keys that were in force stay.")
    clients.write_text(line("third", "carol"))
    keyring.read_changed()
    assert keyring.identify({"x-api-key": "third"}) == "carol"
    assert len(reports) == 2


def test_without_a_file_every_client_is_served(tmp_path: Path) -> None:
    assert Keyring(Keys(), Holder(), print).identify({}) is None
    with pytest.raises(UnauthorizedError):
        ring(tmp_path)[0].identify({"authorization": "Bearer "})


def test_check(tmp_path: Path) -> None:
    check(Keys())
    path = tmp_path / "keys"
    with pytest.raises(KeyFileError, match=f"cannot use the key file {path}: No such file or directory"):
        check(Keys(clients=str(path)))
    path.write_text("two words")
    for keys in (Keys(clients=str(path)), Keys(engines=str(path))):
        with pytest.raises(KeyFileError, match=f"cannot use the key file {path}: "):
            check(keys)


def test_a_line_may_have_a_weight() -> None:
    digests = [sha256(name.encode()).hexdigest() for name in "abc"]
    text = f"sha256:{digests[0]} alice weight=4\nsha256:{digests[1]} bob\nsha256:{digests[2]} carol  weight=12\n"
    assert set(parse_clients(text).values()) == {"alice", "bob", "carol"}
    assert parse_weights(text) == {"alice": 4, "carol": 12}
    for wrong in ("weight=0", "weight=1000", "weight=", "weight=4 5", "4"):
        with pytest.raises(ValueError, match="line 1: write"):
            parse_clients(f"sha256:{digests[0]} alice {wrong}")
