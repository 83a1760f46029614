"""API keys: which clients may use the gateway, and the key that engines require. Changed files are read again.

The gateway finds a client's key by its SHA-256. The time of that lookup may reveal a part of a digest, but nobody can
compute a key from a digest, so timing reveals nothing about keys.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

from pdx_api.settings.gateway import Keys
from pdx_proxy.http.errors import RefusedError

_CHECK_SECONDS: Final = 1.0
"""How often the files are checked for changes."""
_MAX_FILE_BYTES: Final = 16 << 20
_LINE: Final = re.compile(r"sha256:([0-9a-fA-F]{64})[ \t]+(\S{1,128})(?:[ \t]+weight=([1-9][0-9]{0,2}))?")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")

ClientKeys = Mapping[bytes, str]
"""Names of clients by the SHA-256 of their keys."""


class KeyFileError(Exception):
    """A file of keys cannot be used. The text is a sentence with the file's name."""


class UnauthorizedError(RefusedError):
    """The request has no valid key. The answer is vLLM's."""

    def __init__(self) -> None:
        super().__init__(401, "Unauthorized", "Unauthorized")
        self.headers = {"www-authenticate": "Bearer"}

    def body(self, path: str = "") -> bytes:
        return b'{"error":"Unauthorized"}'


def parse_clients(text: str) -> ClientKeys:
    """The keys in a file's text; raises ValueError with what to write instead."""
    found: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}: write sha256:HEX NAME [weight=N], where HEX is the SHA-256 of the key")
        digest = bytes.fromhex(match[1])
        if digest in found:
            raise ValueError(f"line {number} repeats the key of {found[digest]}")
        found[digest] = match[2]
    if not found:
        raise ValueError("the file has no key; write one sha256:HEX NAME on each line")
    return found


def parse_weights(text: str) -> Mapping[str, int]:
    """The weights of clients by name, in the text of a valid file. Of several keys of a client the last counts."""
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2]: int(match[3]) for match in lines if match is not None and match[3] is not None}


def parse_engine_key(text: str) -> str:
    """The key in a file's text; raises ValueError with what to write instead."""
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise ValueError("it does not hold one key; write the key that engines got with --api-key, on one line")
    return key


def client_of(clients: ClientKeys, headers: Mapping[str, str]) -> str | None:
    """Name of the client whose key is in the request: `Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")
    if not key or not key.isascii():
        return None
    return clients.get(sha256(key.encode()).digest())


class KeyHolder(Protocol):
    """Sends the engines' key with every request."""

    authorization: str
    """The header line with the key, or empty."""


@dataclass(slots=True)
class _Watched:
    """One file, with its state when it was read last and the error that was reported."""

    path: Path
    use: Callable[[str], None]
    """Puts its text in force; raises ValueError."""
    read_state: tuple[int, ...] = ()
    """Modification time, inode and size."""
    error: str | None = None


class Keyring:
    """Owner of the keys in force. They stay in force when a file becomes unreadable or invalid."""

    def __init__(
        self,
        keys: Keys,
        holder: KeyHolder,
        report: Callable[[str], None],
        set_weights: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        self._holder = holder
        self._set_weights = set_weights
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self._files: list[_Watched] = []
        self.clients: ClientKeys | None = None
        """None: every client may use the gateway."""
        if keys.clients is not None:
            self.clients = {}
            self._files.append(_Watched(Path(keys.clients), self._use_clients))
        if keys.engines is not None:
            self._files.append(_Watched(Path(keys.engines), self._use_engine_key))

    def start(self) -> None:
        """Read the files now, and again whenever they change."""
        if self._files:
            self.read_changed()
            self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self.start)

    def stop(self) -> None:
        """Stop reading the files."""
        if self._timer is not None:
            self._timer.cancel()

    def identify(self, headers: Mapping[str, str]) -> str | None:
        """Name of the client; None if no key is required. Raises UnauthorizedError."""
        if self.clients is None:
            return None
        name = client_of(self.clients, headers)
        if name is None:
            raise UnauthorizedError
        return name

    def read_changed(self) -> None:
        """Read the files that have changed. (A kubelet swaps a symbolic link, so the inode behind it changes.)"""
        for file in self._files:
            error_text: str | None = None
            try:
                found = os.stat(file.path)
                state = (found.st_mtime_ns, found.st_ino, found.st_size)
                if state == file.read_state:
                    continue
                text = _read(file.path)
                file.read_state = state
                file.use(text)
            except (OSError, ValueError) as error:
                error_text = _describe(file.path, error)
            if error_text is not None and error_text != file.error:
                self._report(f"{error_text} The keys that were in force stay.")
            file.error = error_text

    def _use_clients(self, text: str) -> None:
        self.clients = parse_clients(text)
        self._set_weights(parse_weights(text))

    def _use_engine_key(self, text: str) -> None:
        self._holder.authorization = f"Authorization: Bearer {parse_engine_key(text)}\r\n"


def check(keys: Keys) -> None:
    """Raise KeyFileError if the gateway cannot start with these files."""
    files: list[tuple[str | None, Callable[[str], object]]] = [
        (keys.clients, parse_clients),
        (keys.engines, parse_engine_key),
    ]
    for path, parse in files:
        if path is not None:
            try:
                parse(_read(Path(path)))
            except (OSError, ValueError) as error:
                raise KeyFileError(_describe(Path(path), error)) from error


def _read(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_FILE_BYTES + 1)
    if len(raw) > _MAX_FILE_BYTES:
        raise ValueError("it is larger than 16 MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _describe(path: Path, error: OSError | ValueError) -> str:
    detail = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot use the key file {path}: {detail}."
