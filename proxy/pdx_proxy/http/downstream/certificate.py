"""TLS on the serving port: the certificate in force, which changes with its files. Open connections keep theirs."""

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pdx_api.names import TLS_CERTIFICATE_FLAG, TLS_KEY_FLAG
from pdx_api.settings.gateway import TLS

_CHECK_SECONDS: Final = 1.0
"""How often the files are checked for changes."""
_MAX_BYTES: Final = 2**20
"""How much of a file is searched for the beginning of a certificate or a key."""
_KINDS: Final = (("certificate", "CERTIFICATE"), ("key", "PRIVATE KEY"))
"""What the two files contain, and its label in PEM (RFC 7468)."""
_FLAGS: Final = (TLS_CERTIFICATE_FLAG, TLS_KEY_FLAG)
_NO_PAIR: Final = (
    "the key {key} does not belong to the certificate {certificate}; write the key that the certificate was made with."
)
_SENTENCES: Final[Mapping[str, str]] = {
    # The last one is about a key of another algorithm: for it, the context has no certificate.
    **dict.fromkeys(("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"), _NO_PAIR),
    "EE_KEY_TOO_SMALL": "the key {key} is too short; write one of at least 2048 bits (RSA).",
}
"""OpenSSL's reason -> the template of a sentence."""
HANDSHAKE_SECONDS: Final = 10.0
"""How long a client may take for the TLS handshake."""
SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to answer the end of a TLS connection."""


class CertificateError(Exception):
    """The files cannot be used. The text is a sentence with their names."""


class Certificate:
    """Owner of the certificate in force. It stays in force when its files become unreadable or do not match.

    `context` is the same for all handshakes, and selects the certificate at the begin of each one. Loading a new
    certificate into a context in use would not be atomic: with a key that does not match, no handshake would succeed.
    """

    def __init__(self, tls: TLS, report: Callable[[str], None]) -> None:
        assert tls.certificate is not None, "only with TLS"
        assert tls.key is not None, "the flags are checked"
        self._files = (tls.certificate, tls.key)
        self._report = report
        self._read_state: tuple[tuple[int, ...], ...] = ()
        self._error = ""
        self._timer: asyncio.TimerHandle | None = None
        self._current = self._load()
        self.context = _context()
        self.context.sni_callback = self._select

    def start(self) -> None:
        """Read the files now, and again whenever they change."""
        self.read_changed()
        self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self.start)

    def stop(self) -> None:
        """Stop reading the files."""
        if self._timer is not None:
            self._timer.cancel()

    def read_changed(self) -> None:
        """Read the files if they have changed. (A kubelet swaps a symbolic link, so the inodes behind it change.)"""
        error = ""
        try:
            if self._state() == self._read_state:
                return
            self._current = self._load()
        except CertificateError as wrong:
            error = str(wrong)
        if error and error != self._error:
            self._report(f"{error} The certificate that was in force stays.")
        self._error = error

    def _load(self) -> ssl.SSLContext:
        """A context with the certificate in the files; raises CertificateError."""
        state, context = self._state(), _context()
        try:
            # A passphrase would be requested from the terminal.
            context.load_cert_chain(*self._files, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise CertificateError(self._describe(error)) from error
        self._read_state = state
        return context

    def _state(self) -> tuple[tuple[int, ...], ...]:
        """Modification time, inode and size of each file; raises CertificateError."""
        try:
            found = [os.stat(path) for path in self._files]
        except OSError as error:
            raise CertificateError(self._describe(error)) from error
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)

    def _describe(self, error: OSError | ValueError) -> str:
        certificate, key = self._files
        if isinstance(error, ssl.SSLError):
            if wrong := next(self._without_pem(), ""):
                return wrong
            if sentence := _SENTENCES.get(error.reason) if error.reason else self._damaged():
                return sentence.format(certificate=certificate, key=key)
            detail = error.reason or str(error)
        else:
            if wrong := next(self._unreadable(), ""):
                return wrong
            detail = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return f"cannot use the certificate {certificate} with the key {key}: {detail}."

    def _unreadable(self) -> Iterator[str]:
        """Yield a sentence about each file that cannot be opened. Python's error does not name the file."""
        for path, flag in zip(self._files, _FLAGS, strict=True):
            try:
                with open(path, "rb"):
                    pass
            except FileNotFoundError:
                yield f"{flag}: {path} does not exist; name a PEM file."
            except IsADirectoryError:
                yield f"{flag}: {path} is a directory; name a PEM file."
            except OSError as error:
                yield f"{flag}: {path} cannot be read: {error.strerror}; name a PEM file that can be read."

    def _damaged(self) -> str:
        """Return the template of a sentence about the file whose PEM OpenSSL cannot decode; its error has no reason."""
        file = "{key}"
        try:
            _context().load_verify_locations(self._files[0])  # reads certificates only
        except OSError:
            file = "{certificate}"
        return f"{file} is damaged or incomplete; write a complete PEM file."

    def _without_pem(self) -> Iterator[str]:
        """Yield a sentence about each file that has no part of its kind."""
        for path, (kind, label) in zip(self._files, _KINDS, strict=True):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if re.search(rf"-----BEGIN [A-Z ]*{label}-----".encode(), file.read(_MAX_BYTES)) is None:
                    yield f"{path} is not a {kind} in PEM form; write a file that begins with -----BEGIN {label}-----."

    def _select(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called at the begin of each handshake, also of one without a server name."""
        connection.context = self._current


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; write it without one")


def certificate_of(tls: TLS, report: Callable[[str], None]) -> Certificate | None:
    """The certificate of these settings; None without TLS. Raises CertificateError if its files cannot be used."""
    return Certificate(tls, report) if tls.certificate is not None else None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
