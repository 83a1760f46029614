"""`pdx check-vllm`: an installed vLLM, a wheel, an extract; and what is broken on purpose in a copy is reported."""

import importlib.util
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pdx_api.vllm.assumptions import OPEN, assumptions, differences
from pdx_cli.main import main
from tests.documents import ROOT

CONNECTORS = "distributed/kv_transfer/kv_connector"
NIXL = f"{CONNECTORS}/v1/nixl"
BROKEN: Mapping[str, tuple[str, str, str]] = {
    "connector NixlPushConnector": (
        f"{CONNECTORS}/factory.py",
        '"NixlPushConnector",\n    "vllm',
        '"NixlPush",\n    "vllm',
    ),
    "constant NIXL_CONNECTOR_VERSION": (f"{NIXL}/metadata.py", "VERSION: int = 14", "VERSION: int = 16"),
    "answers NixlPullConnectorScheduler.request_finished": (
        f"{NIXL}/pull_scheduler.py",
        "remote_block_ids=block_ids",
        "remote_blocks=block_ids",
    ),
    "option kv_lease_duration": (f"{NIXL}/base_scheduler.py", '"kv_lease_duration", 30', '"kv_lease_duration", 60'),
    "field BaseFrontendArgs.enable_prompt_tokens_details": (
        "entrypoints/launchers/cli_args.py",
        "enable_prompt_tokens_details: bool",
        "prompt_tokens_details: bool",
    ),
    "flag --kv-transfer-config": ("engine/arg_utils.py", '"--kv-transfer-config"', '"--kv-config"'),
    "field CompletionRequest.kv_transfer_params": (
        "entrypoints/openai/completion/protocol.py",
        "kv_transfer_params: dict[str, Any] | None",
        "kv_transfer_params: dict[str, str] | None",
    ),
    "route POST /v1/messages": ("entrypoints/anthropic/api_router.py", '"/v1/messages",', '"/v2/messages",'),
    "metric vllm:kv_cache_usage_perc": ("v1/metrics/loggers.py", '"vllm:kv_cache_usage_perc"', '"vllm:kv_cache_use"'),
    "environment VLLM_NIXL_SIDE_CHANNEL_PORT": ("envs.py", "CHANNEL_PORT: int = 5600", "CHANNEL_PORT: int = 5601"),
    "says _raise_if_error:Internal server error": (
        "entrypoints/generate/base/serving.py",
        '"Internal server error"',
        '"Internal error"',
    ),
    "statuses health": ("entrypoints/serve/instrumentator/health.py", "status_code=503", "status_code=500"),
    "reads _base_request_id:X-Request-Id": ("entrypoints/serve/engine/serving.py", "X-Request-Id", "X-ID"),
}
"""An assumption -> the file, the text, and the text that breaks it."""


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder of the installed vLLM, found without an import of it."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed (make install)")
    return Path(found.origin).parent


def test_the_installed_version_has_everything(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-vllm", str(installed)]) == 0
    assert f"{len(assumptions())} of {len(assumptions())} assumptions hold." in capsys.readouterr().out


def test_what_is_broken_on_purpose_is_reported(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "vllm-0.32.0-cp38-abi3-any.whl"
    scopes = {f"{one}*" if one.endswith("/") else one for each in assumptions() for one in each.paths}
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm-0.32.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n")
        for path in sorted(installed.rglob("*.py")):
            name = path.relative_to(installed).as_posix()
            if not any(fnmatchcase(name, scope) for scope in scopes):
                continue
            text = path.read_text(encoding="utf-8")
            for identity, (file, old, new) in BROKEN.items():
                if file == name:
                    assert old in text, identity
                    text = text.replace(old, new, 1)
            archive.writestr(f"vllm/{name}", text)
    assert main(["check-vllm", str(wheel)]) == 1
    printed = capsys.readouterr().out
    reported = {each.id for each in assumptions() if f"\n  {each.id}: " in printed}
    assert reported == set(BROKEN)
    assert f"vLLM 0.32.0: {len(assumptions()) - len(BROKEN)} of {len(assumptions())} assumptions hold." in printed


def test_an_extract_of_an_unknown_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extract = json.loads((ROOT / "tests" / "contracts" / "0.33.json").read_text(encoding="utf-8"))
    extract["version"] = "0.34.0"
    extract["values"]["route POST /v1/completions"] = None
    file = tmp_path / "0.34.json"
    file.write_text(json.dumps(extract), encoding="utf-8")
    assert main(["check-vllm", str(file)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("vLLM 0.34.0 is not among the versions that PDX knows; it is compared with 0.33.\n")
    assert "Assumptions that do not hold: 1\n  route POST /v1/completions: vLLM does not have it\n" in printed


@pytest.mark.parametrize(
    ("version", "clause"),
    [
        ("0.31", " as in 0.32, {known} differ as PDX expects."),
        ("0.32", "."),
        ("0.33", " as in 0.32, {known} differ as PDX expects."),
    ],
)
def test_the_last_line_counts_what_differs(version: str, clause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-vllm", str(ROOT / "tests" / "contracts" / f"{version}.json")]) == 0
    known = [each for each in differences() if each.version == version]
    last = capsys.readouterr().out.splitlines()[-1]
    hold = f"{len(assumptions()) - len(known)} of {len(assumptions())} assumptions hold"
    assert last == f"vLLM {version}.0: {hold}{clause.format(known=len(known))}"


def test_the_last_line_counts_what_is_not_handled_yet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [replace(each, effect=f"{OPEN} a.") for each in differences() if each.version == "0.31"]
    monkeypatch.setattr("pdx_cli.commands.check_vllm.differences", lambda: known)
    assert main(["check-vllm", str(ROOT / "tests" / "contracts" / "0.31.json")]) == 0
    end = f"{len(known)} differ as PDX expects, {len(known)} of them not handled yet."
    assert capsys.readouterr().out.splitlines()[-1].endswith(end)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("no-such-folder", "name a folder with vLLM, a wheel, or a version such as 0.32.0."),
        ("folder", "contains no vLLM; name the folder `vllm` of an installation, or its parent."),
        ("text.whl", "is no wheel; name a file *.whl of vLLM."),
        ("other.whl", "contains no vLLM; name a wheel of vLLM."),
        ("text.json", "is no result of `pdx check-vllm -o json`; name one, a folder or a wheel."),
    ],
)
def test_what_is_no_vllm_is_refused(
    given: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text.whl").write_text("text", encoding="utf-8")
    Path("text.json").write_text("[]", encoding="utf-8")
    with zipfile.ZipFile("other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    assert main(["check-vllm", given]) == 2
    assert sentence in capsys.readouterr().err


def wheel_of(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A wheel whose envs.py has this content."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("vllm-0.32.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0\n")
        archive.writestr("vllm/envs.py", content)
    return path


def changed(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def damaged(path: Path) -> None:
    changed(wheel_of(path, b"text = 1"), b"text = 1", b"text = 2")


def not_deflated(path: Path) -> None:
    """What follows the header of envs.py is no deflated stream."""
    wheel_of(path, b"text = 1" * 100, zipfile.ZIP_DEFLATED)
    content, name = path.read_bytes(), b"vllm/envs.py"
    changed(path, name + content.partition(name)[2][:4], name + b"\xff" * 4)


def encrypted(path: Path) -> None:
    """The flag of encryption is set, for envs.py in the directory at the wheel's end."""
    content = bytearray(wheel_of(path, b"text = 1").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


def large(path: Path) -> None:
    wheel_of(path, bytes(9_000_000), zipfile.ZIP_DEFLATED)


def understated(path: Path) -> None:
    """The wheel's directory states another length than the file has."""
    changed(wheel_of(path, b"text = 1"), (8).to_bytes(4, "little") * 2, (0).to_bytes(4, "little") * 2)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (damaged, "cannot be read: Bad CRC-32 for file 'vllm/envs.py'; name another vLLM."),
        (not_deflated, "cannot be read: Error -3 while decompressing data: "),
        (encrypted, "cannot be read: File 'vllm/envs.py' is encrypted, password required for extraction;"),
        (large, "vllm/envs.py has more than 8000000 bytes, as no file of vLLM; name another vLLM."),
        (understated, "cannot be read: "),
    ],
)
def test_a_wheel_that_cannot_be_read(
    make: Callable[[Path], None], clause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "vllm.whl")
    assert main(["check-vllm", str(tmp_path / "vllm.whl")]) == 2
    assert clause in capsys.readouterr().err


def test_a_path_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-vllm", "x" * 5_000]) == 2
    assert "cannot be read: File name too long; name another vLLM." in capsys.readouterr().err


def test_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "envs.py").touch()

    open_path = Path.open

    def refused(self: Path, *arguments: Any, **named: Any) -> Any:
        if self.parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(self))
        return open_path(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", refused)
    assert main(["check-vllm", str(tmp_path)]) == 2
    assert f"{tmp_path / 'envs.py'} cannot be read: Permission denied;" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b"'caf\xe9'",
        b"-" * 50_000 + b"1",
        b"+".join([b"f()"] * 900),
        b"'\0'",
    ],
    ids=["latin-1", "too-deep-to-parse", "too-deep-to-read", "null"],
)
def test_a_file_that_is_hardly_python(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory beside it, whose name ends in .py, is no file."""
    name = b"VLLM_NIXL_SIDE_CHANNEL_PORT"
    (tmp_path / "envs.py").write_bytes(b"{'%b': 0}\n%b: int = %b\n" % (name, name, content))
    (tmp_path / "v1" / "core.py").mkdir(parents=True)
    assert main(["check-vllm", str(tmp_path)]) == 1
    assert "assumptions hold." in capsys.readouterr().out


def test_an_extract_that_is_nested_too_deep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    assert main(["check-vllm", str(tmp_path / "deep.json")]) == 2
    assert "is no result of `pdx check-vllm -o json`" in capsys.readouterr().err
