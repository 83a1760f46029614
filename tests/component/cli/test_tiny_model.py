"""`pdx tiny-model`: the same model every time, with visible greedy text that depends on the prompt."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.component.cli.programs import TEST_SECONDS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the tiny model needs torch: run `make install`"
)

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Torch's threads spin while they wait for each other; on a loaded machine two take minutes."""

GENERATE = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
from pdx_cli.main import main
assert main(["tiny-model", sys.argv[2]]) == 0
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
texts = []
for prompt in ("The lazy dog sleeps.", "The lazy cat sleeps."):
    tokens = tokenizer(prompt, return_tensors="pt")
    answer = model.generate(**tokens, max_new_tokens=32, do_sample=False)[0][tokens.input_ids.shape[1]:]
    texts.append((len(answer), tokenizer.decode(answer)))
parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]
messages = [
    {"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "user", "content": "Go"}
]
tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
chat = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
print(json.dumps({"texts": texts, "chat": chat, "vocabulary": len(tokenizer)}))
"""


def _make(target: Path, temporary: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pdx_cli", "tiny-model", str(target)]
    subprocess.run(command, check=True, capture_output=True, env={**ENV, "TMPDIR": str(temporary)})
    return target


def _digest(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.timeout(TEST_SECONDS)  # two processes that import torch
def test_the_model_is_reproducible_and_depends_on_the_prompt(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    first, second = _make(tmp_path / "deep" / "one", temporary), tmp_path / "two"
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(_digest(first))
    assert first.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in first.iterdir()} == {0o644}
    assert [path.name for path in first.parent.iterdir()] == ["one"], "no temporary directory is left"
    assert not list(temporary.iterdir()), "nor one of a library"

    generate = [sys.executable, "-P", "-c", GENERATE, str(first), str(second)]
    shown = subprocess.run(generate, check=True, capture_output=True, text=True, env=ENV)
    assert _digest(first) == _digest(second), "another process makes the same model"
    output = json.loads(shown.stdout.splitlines()[-1])
    (count, text), (other_count, other_text) = output["texts"]
    assert (count, other_count) == (32, 32)
    assert text != other_text
    assert text.isprintable()
    assert len(set(text)) > 5
    assert output["vocabulary"] == 512
    assert output["chat"] == "user: Hello there\nassistant: \nuser: Go\nassistant:"
