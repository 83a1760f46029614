"""A support bundle contains no secret, key, prompt or answer, and still what support needs."""

import json
from typing import Any

import pytest
import yaml

from pdx_api.names import Role
from pdx_cli.sources.observation import EndedProcess, Engine, Gateway, Observation, WarningEvent
from pdx_cli.support import redaction
from pdx_cli.support.bundle import files_of
from tests.doctor_observations import HEALTHY, body
from tests.unit.cli.support.hidden_secrets import LINES, OBJECTS, SECOND, SECRET, harmless_lines

SECRETS = {
    "hub token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "openai key": "sk-proj-1234567890abcdefghij",
    "vllm key": "engine-key-0f9e8d",
    "client key": "Zm9vYmFyYmF6cXV4",
    "password": "hunter2-correct-horse",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "header": "QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
    "pem": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "prompt": "my doctor says that I have",
    "chat": "please keep my salary of 91,000 private",
    "answer": "your salary remains between us",
}
LOG = f"""\
INFO 05-04 12:00:00 [api_server.py:1] vLLM API server version 0.32.0
INFO 05-04 12:00:00 [utils.py:1] non-default args: {{'api_key': ['{SECRETS["vllm key"]}'], 'model': 'Qwen/Qwen3-8B'}}
INFO 05-04 12:00:01 [logger.py:1] Received request cmpl-1: prompt: '{SECRETS["prompt"]}', params: SamplingParams(n=1)
DEBUG 05-04 12:00:01 {{"messages": [{{"role": "user", "content": "{SECRETS["chat"]}"}}]}}
DEBUG 05-04 12:00:01     "content": "{SECRETS["answer"]}"
DEBUG 05-04 12:00:01 prompt_token_ids: [1, 2, 3]
DEBUG 05-04 12:00:01 Authorization: Bearer {SECRETS["client key"]}
DEBUG 05-04 12:00:01 authorization: Basic {SECRETS["header"]}
WARNING HF_TOKEN={SECRETS["hub token"]} OPENAI_API_KEY={SECRETS["openai key"]} id {SECRETS["aws"]} {SECRETS["jwt"]}
INFO connecting to http://admin:{SECRETS["password"]}@proxy.example:3128
-----BEGIN PRIVATE KEY-----
{SECRETS["pem"]}
-----END PRIVATE KEY-----
ERROR 05-04 12:00:02 [core.py:1] torch.OutOfMemoryError: CUDA out of memory
"""
ARGS = (
    "serve",
    "Qwen/Qwen3-8B",
    "--api-key",
    SECRETS["vllm key"],
    f"--hf-token={SECRETS['hub token']}",
    "--port",
    "8000",
)


def leaky() -> Observation:
    """An observation with a secret in every place that can hold one."""
    found = body()
    env = [{"name": "HF_TOKEN", "value": SECRETS["hub token"]}, {"name": "DB_PASSWORD", "value": SECRETS["password"]}]
    args = ["--api-key", SECRETS["vllm key"], "--max-num-seqs=4"]
    spec = {**found["spec"], "engine": {"env": [*env, {"name": "OMP_NUM_THREADS", "value": "4"}], "args": args}}
    state = {"endpoints": [], "note": f"Bearer {SECRETS['client key']}", "prompt": SECRETS["prompt"]}
    return Observation(
        name="qwen",
        now=HEALTHY.now,
        namespace="llm",
        body={**found, "spec": spec},
        pods=HEALTHY.pods,
        gateways=(Gateway("qwen-gateway-1", state, log=LOG, metrics="pdx_requests_total 1.0\n"),),
        engines=(Engine("qwen-decode-1", Role.DECODE, args=ARGS, log=LOG, metrics="vllm:num_requests_running 1.0\n"),),
        dead=(EndedProcess("prefill-0", LOG),),
        ended_logs={"qwen-prefill-1": LOG},
    )


@pytest.fixture(scope="module")
def bundle() -> dict[str, str]:
    return files_of(leaky(), (), f"The log says: {LOG}", {"pdx": "0.1.0"})


@pytest.mark.parametrize("kind", SECRETS)
def test_no_secret_and_no_prompt_is_in_any_file(kind: str, bundle: dict[str, str]) -> None:
    assert SECRETS[kind] in LOG + json.dumps(leaky().body) + "".join(ARGS)
    assert not [name for name, page in bundle.items() if SECRETS[kind] in page]


def test_what_support_needs_remains(bundle: dict[str, str]) -> None:
    spec = yaml.safe_load(bundle["object.yaml"])["spec"]["engine"]
    assert spec["env"][0] == {"name": "HF_TOKEN", "value": "[removed]"}
    assert spec["env"][2] == {"name": "OMP_NUM_THREADS", "value": "4"}
    assert spec["args"] == ["--api-key", "[removed]", "--max-num-seqs=4"]
    assert "conditions" in bundle["object.yaml"]
    log = bundle["engines/qwen-decode-1/log.txt"]
    assert "torch.OutOfMemoryError: CUDA out of memory" in log
    assert "Received request cmpl-1: prompt: [removed]" in log
    assert bundle["engines/qwen-decode-1/arguments.txt"].splitlines()[-2:] == ["--port", "8000"]
    assert "vllm:num_requests_running 1.0" in bundle["engines/qwen-decode-1/metrics.txt"]
    assert "pdx_requests_total 1.0" in bundle["gateways/qwen-gateway-1/metrics.txt"]
    assert json.loads(bundle["versions.json"])["pdx"] == "0.1.0"
    assert {"README.txt", "cluster.json", "findings.json", "ended/qwen-prefill-1/log.txt"} <= set(bundle)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("apiKey", True), ("api_key", True), ("--api-key", True), ("VLLM_API_KEY", True),
        ("Authorization", True), ("AWS_SECRET_ACCESS_KEY", True), ("db-password", True), ("x-api-key", True),
        ("apiKeySecretRef", False), ("tokenSecretRef", False), ("max_tokens", False), ("promptTokens", False),
        ("PGPASSWORD", True), ("DB_PASS", True), ("OPENAI_KEY", True), ("SECRET_KEY", True), ("REDIS_PWD", True),
        ("wandbKey", True), ("HFTOKEN", True), ("HF_TOKEN_PROD", True), ("api_tokens", True), ("credentials", True),
        ("x-goog-api-key", True), ("basicAuth", True), ("cache_key_prefix", False), ("eos_token_id", False),
        ("time_to_first_token", False), ("num_key_value_heads", False), ("topologyKey", False), ("KeyError", False),
        ("author", False), ("bypass", False), ("tokenize", False), ("monkey", False), ("secretName", False),
        ("tokenizer", False), ("key", False), ("keys", False), ("--max-num-batched-tokens", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert redaction.is_secret(name) is secret


@pytest.mark.parametrize("value", [{"a": [1, None, True, "x"]}, [], "plain text", 7, None])
def test_other_values_are_unchanged(value: Any) -> None:
    assert redaction.redacted(value) == value


def _with_text(line: str) -> Observation:
    """An observation with a text in every input of a bundle that holds one."""
    engine = Engine("d-1", Role.DECODE, args=("sh", "-c", line), log=line, metrics=line, problem=line)
    status = {"conditions": [{"type": "Ready", "message": line}]}
    annotated = {**body(), "metadata": {"name": "qwen", "annotations": {"note": line}}, "status": status}
    return Observation(
        name="qwen",
        now=HEALTHY.now,
        body=annotated,
        events=(WarningEvent("Pod", "d-1", "Failed", line),),
        unseen=(line,),
        gateways=(Gateway("g-1", {"note": line}, problem=line, verification={"error": line}, log=line, metrics=line),),
        engines=(engine,),
        dead=(EndedProcess("p-0", line),),
        ended_logs={"p-1": line},
    )


def _leaks(files: dict[str, str]) -> list[str]:
    return [name for name, page in files.items() if SECRET in page or SECOND in page]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("INFO 05-04 [a.py:1] ", ""), ("word ", " word\nlast line")])
def test_a_secret_is_removed_from_every_input(line: str, before: str, after: str) -> None:
    assert SECRET in line
    prefix = before if "\n" not in line else ""
    files = files_of(_with_text(prefix + line + after), (), prefix + line + after, {})
    assert _leaks(files) == []


@pytest.mark.parametrize("part", OBJECTS)
def test_a_secret_is_removed_from_every_part_of_an_object(part: dict[str, Any]) -> None:
    assert SECRET in json.dumps(part)
    observation = Observation(name="qwen", now=HEALTHY.now, body={**body(), "metadata": {"name": "qwen"}, **part})
    state = Observation(name="qwen", now=HEALTHY.now, gateways=(Gateway("g", part),))
    assert _leaks(files_of(observation, (), "", {})) + _leaks(files_of(state, (), "", {})) == []


def test_there_are_many_forms_of_secrets() -> None:
    assert len(LINES) + len(OBJECTS) >= 50


def test_harmless_lines_stay() -> None:
    lines = harmless_lines()
    changed = [line for line in lines if redaction.text(line) != line]
    assert len(lines) > 300
    assert len(changed) <= 0.05 * len(lines), changed


def test_harmless_lines_stay_on_one_page() -> None:
    lines = harmless_lines()
    page = redaction.text("\n".join(lines)).split("\n")
    assert len(page) == len(lines)
    changed = [line for line, shown in zip(lines, page, strict=True) if line != shown]
    assert len(changed) <= 0.05 * len(lines), changed


def test_an_object_of_any_depth_is_shown() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": [deep]}
    assert "[removed]" in str(redaction.redacted(deep))
    state = Observation(name="qwen", now=HEALTHY.now, gateways=(Gateway("g", {"a": deep}),))
    assert "[removed]" in files_of(state, (), "", {})["gateways/g/state.json"]


@pytest.mark.parametrize(
    "line", ["a" * 200_000, "a-" * 100_000, "key=" * 50_000, "--api-key " * 20_000, "'" * 100_000, "://a:" * 30_000]
)
def test_long_lines_are_read_in_time(line: str) -> None:
    redaction.text(line)
