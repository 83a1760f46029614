"""TLS files that cannot be used: sentences that name the file and what to write."""

import datetime
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from pdx_api.settings.gateway import TLS
from pdx_proxy.config.settings import Settings
from pdx_proxy.http.downstream.certificate import CertificateError, certificate_of
from pdx_proxy.process import main as program

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _elliptic() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def _short() -> Key:
    return rsa.generate_private_key(65537, 1024)


def _write(folder: Path, name: str, key: Key) -> TLS:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, start, start.replace(year=2036))
    certificate = builder.sign(key, hashes.SHA256())
    found = TLS(str(folder / f"{name}.crt"), str(folder / f"{name}.key"))
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two pairs of files and a directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        _write(tmp_path, name, _elliptic())
    (tmp_path / "dir").mkdir()
    return tmp_path


def _error(certificate: str, key: str) -> str:
    with pytest.raises(CertificateError) as raised:
        certificate_of(TLS(certificate, key), lambda _: None)
    return str(raised.value)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        (
            *("a.crt", "b.key"),
            "the key b.key does not belong to the certificate a.crt; write the key that the certificate was made with.",
        ),
        ("a.crt", "nope.key", "--tls-key: nope.key does not exist; name a PEM file."),
        ("nope.crt", "a.key", "--tls-certificate: nope.crt does not exist; name a PEM file."),
        ("nope.crt", "nope.key", "--tls-certificate: nope.crt does not exist; name a PEM file."),
        ("a.crt", "dir", "--tls-key: dir is a directory; name a PEM file."),
        ("dir", "a.key", "--tls-certificate: dir is a directory; name a PEM file."),
        (
            *("a.crt", "a.key/x"),
            "--tls-key: a.key/x cannot be read: Not a directory; name a PEM file that can be read.",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(certificate: str, key: str, sentence: str) -> None:
    assert _error(certificate, key) == sentence


def test_a_key_of_another_algorithm(folder: Path) -> None:
    _write(folder, "short", _short())
    assert _error("a.crt", "short.key").startswith("the key short.key does not belong to the certificate a.crt; ")


def test_a_key_that_is_too_short(folder: Path) -> None:
    _write(folder, "short", _short())
    assert _error("short.crt", "short.key") == "the key short.key is too short; write one of at least 2048 bits (RSA)."


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _mangle(text: str) -> str:
    head, _, rest = text.partition("\n")
    return f"{head}\n!!!!{rest[4:]}"


@pytest.mark.parametrize("damage", [_cut, _mangle])
@pytest.mark.parametrize("file", ["a.crt", "a.key"])
def test_a_file_that_is_damaged(folder: Path, file: str, damage: Callable[[str], str]) -> None:
    path = folder / file
    path.write_text(damage(path.read_text()))
    assert _error("a.crt", "a.key") == f"{file} is damaged or incomplete; write a complete PEM file."


def test_a_wrong_file_while_the_gateway_runs_changes_nothing(folder: Path) -> None:
    reports: list[str] = []
    found = certificate_of(TLS("a.crt", "a.key"), reports.append)
    assert found is not None
    before = found._current
    (folder / "a.key").write_bytes((folder / "b.key").read_bytes())
    found.read_changed()
    (folder / "a.key").unlink()
    found.read_changed()
    assert found._current is before
    stays = "The certificate that was in force stays."
    assert reports == [
        "the key a.key does not belong to the certificate a.crt; write the key that the certificate was made with. "
        f"{stays}",
        f"--tls-key: a.key does not exist; name a PEM file. {stays}",
    ]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("certificate", "key"), [("a.crt", "b.key"), ("a.crt", "nope.key"), ("dir", "a.key")])
def test_a_wrong_file_at_the_start_is_a_wrong_command_line(
    certificate: str, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program, "configure_logs", lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert program.run(Settings(tls=TLS(certificate, key))) == 2
    assert caplog.messages == [_error(certificate, key)]
