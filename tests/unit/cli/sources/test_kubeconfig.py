"""What a kubeconfig lacks, in one sentence."""

import sys
from pathlib import Path

import pytest

from pdx_cli.errors import ExitCode, InputError
from pdx_cli.sources.kubeconfig import load

USABLE = """\
current-context: c
contexts: [{name: c, context: {cluster: cl, user: u}}]
clusters: [{name: cl, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: x}}]
"""
CERTIFICATE = "client-certificate: /nope.crt, client-key: /nope.key"
ANOTHER = "or choose another context with --context."


def plugin(command: str, *args: str) -> str:
    """Return a user whose credentials come from a command."""
    listed = ", ".join(f'"{arg}"' for arg in args)
    return f'exec: {{apiVersion: client.authentication.k8s.io/v1, command: "{command}", args: [{listed}]}}'


async def refused(text: str, folder: Path, context: str | None = None) -> str:
    """Return the sentence about a kubeconfig, without its path."""
    file = folder / "config"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        await load(str(file), context)
    assert error.value.code == ExitCode.INVALID
    return str(error.value).replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("current", "sentence"),
    [
        ("zz", "FILE: the current-context zz does not exist; it has: c; choose one with --context."),
        ("", "FILE has no current-context; it has: c; choose one with --context."),
    ],
)
async def test_a_current_context_that_does_not_exist(current: str, sentence: str, tmp_path: Path) -> None:
    text = USABLE.replace("current-context: c", f"current-context: {current}")
    assert await refused(text, tmp_path) == sentence
    settings, chosen = await load(str(tmp_path / "config"), "c")
    assert (settings.host, chosen.name, chosen.namespace) == ("https://127.0.0.1:1", "c", "default")


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("token: x", CERTIFICATE, "the client-certificate /nope.crt of user u"),
        ("token: x", CERTIFICATE.replace("/nope.crt", __file__), "the client-key /nope.key of user u"),
        ("token: x", "tokenFile: nope/token", "the tokenFile nope/token of user u"),
        ("server:", "certificate-authority: ca.crt, server:", "the certificate-authority ca.crt of cluster cl"),
    ],
)
async def test_a_file_that_does_not_exist(old: str, new: str, missing: str, tmp_path: Path) -> None:
    sentence = await refused(USABLE.replace(old, new), tmp_path)
    assert sentence == f"FILE: {missing} does not exist; correct the path, {ANOTHER}"


@pytest.mark.parametrize(
    "text",
    [
        USABLE.replace("token: x", 'client-certificate-data: "!!!", client-key-data: x'),
        USABLE.replace("user: {token: x}", "user: 5"),
        USABLE.replace("users:", "nobody:"),
        USABLE.replace("clusters:", "nowhere:"),
    ],
)
async def test_other_mistakes(text: str, tmp_path: Path) -> None:
    sentence = "The context c of FILE has no usable cluster and user; correct it, or choose another with --context."
    assert await refused(text, tmp_path) == sentence


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (
            'server: "https://h:99999"',
            "the server https://h:99999 of cluster cl is not a URL: its port is not a number from 1 to 65535; write "
            "https://HOST:PORT",
        ),
        (
            'server: "https://[::1"',
            "the server https://[::1 of cluster cl is not a URL: the brackets around its host are wrong; write "
            "https://HOST:PORT",
        ),
        (
            'server: "https://h", proxy-url: "socks5://p:1"',
            "the proxy-url socks5://p:1 of cluster cl is not a URL: it does not begin with https:// or http://; write "
            "https://HOST:PORT",
        ),
        ("server: 5", "the server of cluster cl is not a text; correct it"),
        ('server: "https://h", tls-server-name: 5', "the tls-server-name of cluster cl is not a text; correct it"),
    ],
)
async def test_a_field_that_cannot_be_used(field: str, sentence: str, tmp_path: Path) -> None:
    text = USABLE.replace('server: "https://127.0.0.1:1"', field)
    assert await refused(text, tmp_path) == f"FILE: {sentence}, {ANOTHER}"


async def test_a_variable_that_names_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:99999")
    assert await refused(USABLE.replace("127.0.0.1:1", "api.example"), tmp_path) == (
        "The environment variable HTTPS_PROXY is http://p:99999, which is not the URL of a proxy: its port is not a "
        "number from 1 to 65535; write http://HOST:PORT, or unset it."
    )


@pytest.mark.parametrize("text", ["5", "contexts: []", "contexts: [5]", USABLE.replace("[{name: c, ", "[{")])
async def test_a_file_that_is_no_kubeconfig(text: str, tmp_path: Path) -> None:
    text = await refused(text, tmp_path)
    assert text.startswith("FILE is not a kubeconfig with a current context, its cluster and its user; name another ")


@pytest.mark.machine
@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        (plugin("nonexistentcmd"), f"The command nonexistentcmd of user u does not exist; install it, {ANOTHER}"),
        (plugin("false"), f"The command false of user u ends with code 1; log in again, {ANOTHER}"),
        (
            plugin(sys.executable, "-c", "import sys; sys.exit('Sorry.' + chr(10) + 'no login.')"),
            f"The command {sys.executable} of user u ends with code 1: no login; log in again, {ANOTHER}",
        ),
        (
            plugin("echo", "{}"),
            "The command echo of user u returns no credentials (malformed response. missing key 'apiVersion'); correct "
            f"it, {ANOTHER}",
        ),
    ],
)
async def test_a_command_without_credentials(
    user: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert await refused(USABLE.replace("token: x", user), tmp_path) == sentence
    assert capfd.readouterr() == ("", "")
    assert not caplog.records, "no handler of the program receives what the sentence has"
