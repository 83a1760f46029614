"""Errors about flags: empty and negative values, and flags that do not exist."""

import pytest

from pdx_cli.errors import ExitCode
from pdx_cli.main import main


def message(argv: list[str], capsys: pytest.CaptureFixture[str], prog: str = "pdx") -> str:
    """Return what a refused command writes to stderr."""
    with pytest.raises(SystemExit) as ended:
        main(argv, prog=prog)
    assert ended.value.code == ExitCode.INVALID
    return capsys.readouterr().err.removesuffix("\n")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            "top --admin= --once",
            "top: --admin: the value is empty; write http://HOST:PORT, for example http://127.0.0.",
        ),
        ("doctor --kubeconfig=", "doctor: --kubeconfig: the value is empty; name a file."),
        ("top --context=", "top: --context: the value is empty; name a context of the kubeconfig."),
        ("bench --url= --local", "bench: --url: the value is empty; write http://HOST:PORT."),
        ("gateway --protocol=", 'gateway: --protocol: the value is empty; write for example {"family": "Pull"}.'),
        ("sim --protocol=", 'sim: --protocol: the value is empty; write for example {"family": "Pull"}.'),
    ],
)
def test_an_empty_value(argv: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message(argv.split(), capsys).startswith(f"pdx {sentence}")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("gateway --max-buffered-bytes -1Gi", "gateway: --max-buffered-bytes: -1Gi is not a size; write bytes from "),
        ("gateway --max-wait-seconds -1s", "gateway: --max-wait-seconds: -1s is not a time; write seconds from 0 to "),
        ("bench http://h:1 --ttft -1s", "bench: --ttft: -1s is too short; write more than 0, for example 30ms, 1.5s"),
        ("top -n -5x", "top: --namespace: '-5x' is not valid; write at most 63 lower-case letters"),
        ("top --interval --once", "top: --interval needs a value."),
    ],
)
def test_a_value_that_begins_with_a_dash(argv: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message(argv.split(), capsys).startswith(f"pdx {sentence}")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("sim --rol prefill", "sim: --rol does not exist; did you mean --role?"),
        ("sim --seed -1", "sim: --role is missing; --help shows the usage."),
        ("up --once", "up: FILE is missing; --help shows the usage."),
        ("up -- ", "up: FILE is missing; --help shows the usage."),
    ],
)
def test_a_flag_that_does_not_exist_comes_before_one_that_is_missing(
    argv: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message(argv.split(), capsys) == f"pdx {sentence}"
