"""API keys: who may use the gateway, and the key that engines ask for; read again when their files change.

A client's key is looked up by its SHA-256. How long that takes may tell of a digest, and from a digest nobody makes a
key, so nothing is learnt of keys by timing.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

from pdx_proxy.config.settings import Keys
from pdx_proxy.http.errors import RefusedError

_LOOK_SECONDS: Final = 1.0
"""How often the files are looked at."""
_MAX_FILE_BYTES: Final = 16 << 20
_LINE: Final = re.compile(r"sha256:([0-9a-fA-F]{64})[ \t]+(\S{1,128})")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")

ClientKeys = Mapping[bytes, str]
"""Names of clients by the SHA-256 of their keys."""


class KeyFileError(Exception):
    """A file of keys can not be used; the text is a sentence that names it."""


class UnauthorizedError(RefusedError):
    """The request has no key that is known, in vLLM's words."""

    def __init__(self) -> None:
        super().__init__(401, "Unauthorized", "Unauthorized")
        self.headers = {"www-authenticate": "Bearer"}

    def body(self) -> bytes:
        return b'{"error":"Unauthorized"}'


def parse_clients(text: str) -> ClientKeys:
    """The keys in a file's text; raises ValueError that says what to write."""
    found: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is no key; write sha256:HEX NAME, HEX being the key's SHA-256")
        digest = bytes.fromhex(match[1])
        if digest in found:
            raise ValueError(f"line {number} repeats the key of {found[digest]}")
        found[digest] = match[2]
    if not found:
        raise ValueError("it holds no key; write lines of sha256:HEX NAME")
    return found


def parse_engine_key(text: str) -> str:
    """The key in a file's text; raises ValueError that says what to write."""
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise ValueError("it does not hold one key; write the key that engines got with --api-key, on one line")
    return key


def client_of(clients: ClientKeys, headers: Mapping[str, str]) -> str | None:
    """Name of the client whose key a request shows: `Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")
    if not key or not key.isascii():
        return None
    return clients.get(sha256(key.encode()).digest())


class KeyHolder(Protocol):
    """Who sends the engines' key along."""

    authorization: str
    """The head's line for it, or nothing."""


@dataclass(slots=True)
class _Watched:
    """One file: how it looked when it was read last, and what was said of it."""

    path: Path
    use: Callable[[str], None]
    """Puts its text in force; raises ValueError."""
    looks: tuple[int, ...] = ()
    wrong: str | None = None


class Keyring:
    """Owner of the keys in force. A file that becomes unreadable or wrong leaves those that were."""

    def __init__(self, keys: Keys, holder: KeyHolder, tell: Callable[[str], None]) -> None:
        self._holder = holder
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None
        self._files: list[_Watched] = []
        self.clients: ClientKeys | None = None
        """None: everybody may use the gateway."""
        if keys.clients is not None:
            self.clients = {}
            self._files.append(_Watched(Path(keys.clients), self._use_clients))
        if keys.engines is not None:
            self._files.append(_Watched(Path(keys.engines), self._use_engine_key))

    def start(self) -> None:
        """Read the files now, and look after them from now on."""
        if self._files:
            self.look()
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def identify(self, headers: Mapping[str, str]) -> str | None:
        """Name of the client, None where everybody is served; raises UnauthorizedError."""
        if self.clients is None:
            return None
        name = client_of(self.clients, headers)
        if name is None:
            raise UnauthorizedError
        return name

    def look(self) -> None:
        """Read again what has changed. (A kubelet swaps a link: the file behind it is another one then.)"""
        for file in self._files:
            wrong: str | None = None
            try:
                found = os.stat(file.path)
                looks = (found.st_mtime_ns, found.st_ino, found.st_size)
                if looks == file.looks:
                    continue
                text = _read(file.path)
                file.looks = looks
                file.use(text)
            except (OSError, ValueError) as error:
                wrong = _sentence(file.path, error)
            if wrong is not None and wrong != file.wrong:
                self._tell(f"{wrong} The keys that were in force stay.")
            file.wrong = wrong

    def _use_clients(self, text: str) -> None:
        self.clients = parse_clients(text)

    def _use_engine_key(self, text: str) -> None:
        self._holder.authorization = f"Authorization: Bearer {parse_engine_key(text)}\r\n"


def check(keys: Keys) -> None:
    """Whether the gateway can start with these files; raises KeyFileError."""
    files: list[tuple[str | None, Callable[[str], object]]] = [
        (keys.clients, parse_clients),
        (keys.engines, parse_engine_key),
    ]
    for path, parse in files:
        if path is not None:
            try:
                parse(_read(Path(path)))
            except (OSError, ValueError) as error:
                raise KeyFileError(_sentence(Path(path), error)) from error


def _read(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_FILE_BYTES + 1)
    if len(raw) > _MAX_FILE_BYTES:
        raise ValueError("it is larger than 16 MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _sentence(path: Path, error: OSError | ValueError) -> str:
    detail = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot use the key file {path}: {detail}."
