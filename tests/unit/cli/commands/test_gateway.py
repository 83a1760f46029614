"""The flags of `pdx gateway`: values that are refused, and what the help says about the end."""

import pytest

from pdx_cli.errors import ExitCode
from pdx_cli.main import main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--aggregated", "http://a b:1"], "http://a b:1 is not the URL of an engine; write http://HOST:PORT."),
        (["--aggregated", "http://u@h:1"], "http://u@h:1 is not the URL of an engine; write http://HOST:PORT."),
        (["--aggregated", "http://h:1", "--admin="], "--admin is empty; write HOST:PORT, for example 127.0.0.1:8080."),
        (
            ["--aggregated", "http://h:1", "--connector=Custom", '--protocol={"family": "Pull", "family": "Pool"}'],
            "--protocol: the key family appears twice; write it once.",
        ),
        (
            ["--aggregated", "http://h:1", "--connector=Custom"],
            """--connector Custom needs a protocol; add --protocol '{"family": "Pull"}'.""",
        ),
        *(
            (
                ["--aggregated", "http://h:1", flag, "http://127.0.0.1:80"],
                f"{flag} http://127.0.0.1:80 is a URL; write HOST:PORT, for example 127.0.0.1:8080.",
            )
            for flag in ("--listen", "--admin")
        ),
        *(
            (
                ["--prefill", "http://p:1", "--decode", "http://d:1", "--identity-ports", port],
                f"--identity-ports: {port} is not a port; write a number from 1 to 65535.",
            )
            for port in ("abc", "0", "65536", "1.5")
        ),
        (
            ["--prefill", "http://p:1", "--decode", "http://d:1", "--identity-ports="],
            "--identity-ports: the value is empty; write a number from 1 to 65535.",
        ),
        *(
            (
                ["--prefill", "http://p:1", "--decode", "http://d:1", "--prefill-ranks", ranks],
                f"--prefill-ranks is {ranks}; write a number from 1 to 64.",
            )
            for ranks in ("0", "65")
        ),
    ],
)
def test_values_that_are_refused(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", *flags]) == ExitCode.INVALID
    assert capsys.readouterr().err == f"pdx: {sentence}\n"


@pytest.mark.parametrize(
    ("flag", "example"),
    [
        *((flag, "http://10.0.0.1:8000") for flag in ("--prefill", "--decode", "--aggregated")),
        ("--connector", "NIXL"),
        ("--order", "PrefillFirst"),
    ],
)
def test_an_empty_value_is_named(flag: str, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gateway", "--prefill", "http://p:1", "--decode", "http://d:1", flag, " "])
    assert ended.value.code == ExitCode.INVALID
    assert capsys.readouterr().err == f"pdx gateway: {flag}: the value is empty; write for example {example}.\n"


@pytest.mark.parametrize("command", ["gateway", "sim"])
def test_the_help_states_how_a_server_ends(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    end = "the exit code is then 0. It is 2 if an address is in use: nothing was started."
    assert end in capsys.readouterr().out
