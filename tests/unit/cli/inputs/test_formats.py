"""What programs read is complete in every encoding; only text for people may replace characters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdx_cli.inputs.formats import as_json, printed

TINY = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"
VALUE = {"greeting": "Grüße", "arrow": "→", "astral": "😀", "half": "\ud83d"}
"""`half` is a surrogate without its second half, which no encoding has."""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_data_is_complete_in_every_encoding(form: str, encoding: str) -> None:
    text = printed(VALUE, form, encoding).encode(encoding).decode(encoding)
    assert (json.loads(text) if form == "json" else yaml.safe_load(text)) == VALUE
    assert json.loads(as_json(VALUE, encoding).encode(encoding)) == VALUE


def test_utf8_is_not_escaped() -> None:
    value = {"greeting": "Grüße →"}
    assert printed(value, "json", "utf-8") == '{\n  "greeting": "Grüße →"\n}\n'
    assert printed(value, "yaml", "utf-8") == "greeting: Grüße →\n"
    assert as_json(value, "utf-8") == '{"greeting": "Grüße →"}\n'
    assert printed({"greeting": "Grüße"}, "yaml", "latin-1") == "greeting: Grüße\n"


@pytest.mark.machine
@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_manifest_is_complete_in_every_encoding(encoding: str, form: str) -> None:
    file = TINY.read_text(encoding="utf-8").replace('HF_HUB_OFFLINE, value: "1"', "GREETING, value: Grüße →")
    command = [sys.executable, "-P", "-m", "pdx_cli", "render", "-", "-o", form]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run(command, input=file.encode(), capture_output=True, env=environment, check=True)
    shown = ran.stdout.decode(encoding)
    documents = list(yaml.safe_load_all(shown))
    assert "Grüße →" in json.dumps(documents, ensure_ascii=False)
    assert ("Grüße →" in shown) is (encoding == "utf-8" and form == "json")


@pytest.mark.machine
@pytest.mark.parametrize(("value", "code"), [("Grüße".encode(), 0), (b"\xff", 2)])
def test_an_assignment_is_utf8_in_every_locale(value: bytes, code: int) -> None:
    assignment = os.fsdecode(b"spec.engine.env[0].value=" + value)
    command = [sys.executable, "-P", "-m", "pdx_cli", "render", str(TINY), "-o", "json", "--set", assignment]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode == code
    assert (
        ("Grüße" in json.dumps(json.loads(ran.stdout), ensure_ascii=False))
        if code == 0
        else (b"has a character that is not UTF-8; write it in UTF-8." in ran.stderr)
    )
