"""`python -m pdx_proxy`: its flags, and the errors for wrong ones."""

import errno
import os

import pytest

from pdx_proxy.__main__ import create_parser, main, settings_of
from pdx_proxy.config.settings import Address, Settings, parse_address
from pdx_proxy.process import main as program
from pdx_proxy.process.workers import ListenError

NEEDED = ["--deployment", "tiny", "--namespace", "models"]


def test_the_least_it_needs() -> None:
    args = create_parser().parse_args(NEEDED)
    assert (args.deployment, args.namespace) == ("tiny", "models")
    assert settings_of(args) == Settings(
        listen=Address("0.0.0.0", 8080), admin=Address("0.0.0.0", 9090), drain_seconds=5.0, shutdown_seconds=30.0
    )


def test_every_flag() -> None:
    more = [
        "--listen",
        "[::]:80",
        "--admin",
        "h:81",
        "--workers",
        "3",
        "--drain-seconds",
        "0",
        "--shutdown-seconds",
        "1.5",
    ]
    assert settings_of(create_parser().parse_args([*NEEDED, *more])) == Settings(
        listen=Address("::", 80), admin=Address("h", 81), workers=3, drain_seconds=0.0, shutdown_seconds=1.5
    )


WRONG = [
    (["--namespace", "models"], "the following arguments are required: --deployment"),
    (["--deployment", "tiny"], "the following arguments are required: --namespace"),
    (
        [*NEEDED, "--deployment", "Tiny"],
        "--deployment: 'Tiny' is not a name; write lower-case letters, digits and dashes",
    ),
    ([*NEEDED, "--namespace", "a/b"], "--namespace: 'a/b' is not a name; write lower-case letters, digits and dashes"),
    ([*NEEDED, "--listen", "8080"], "--listen: 8080 is not an address; write HOST:PORT, for example 127.0.0.1:8080"),
    (
        [*NEEDED, "--admin", "h:99999"],
        "--admin: h:99999 is not an address; write HOST:PORT, for example 127.0.0.1:8080",
    ),
    ([*NEEDED, "--workers", "0"], "--workers: 0 is not a number of workers; write one from 1 to 64"),
    ([*NEEDED, "--workers", "two"], "--workers: two is not a number of workers; write one from 1 to 64"),
    ([*NEEDED, "--drain-seconds", "nan"], "--drain-seconds: nan is not a time; write seconds from 0 to 86400"),
    ([*NEEDED, "--shutdown-seconds", "-1"], "--shutdown-seconds: -1 is not a time; write seconds from 0 to 86400"),
    ([*NEEDED, "--listen", "h:1", "--admin", "h:1"], "--listen and --admin are both h:1; name two addresses"),
    ([*NEEDED, "--work", "2"], "unrecognized arguments: --work 2"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=[case[1][:40] for case in WRONG])
def test_wrong_flags_give_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for flag in ("deployment", "namespace", "listen", "admin", "workers", "drain-seconds", "shutdown-seconds"):
        assert f"--{flag} " in text


@pytest.mark.parametrize("text", ["h:1", "127.0.0.1:65535", "[::1]:80"])
def test_an_address_is_read_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", ":", "h", "h:", ":1", "h:0", "h:65536", "h:-1", "h:1x", "[]:1"])
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address; write HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (ListenError("cannot listen on h:1: Permission denied"), 2, "cannot listen on h:1: Permission denied"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 1, "the gateway failed: [Errno 24] Too many open files"),
    ],
)
def test_only_a_port_that_is_taken_is_reported_as_one(
    error: Exception, code: int, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(program, "configure_logs", lambda _: None)
    monkeypatch.setattr(program, "raise_file_limit", lambda: None)
    monkeypatch.setattr(program, "_serve", fail)
    assert program.run(Settings()) == code
    assert caplog.messages == [f"{reason}."]
