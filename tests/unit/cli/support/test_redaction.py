"""A support bundle contains no secret, key, prompt or answer, and still what support needs."""

import json
from typing import Any

import pytest
import yaml

from pdx_api.names import Role
from pdx_cli.sources.observation import EndedProcess, Engine, Gateway, Observation
from pdx_cli.support import redaction
from pdx_cli.support.bundle import files_of
from tests.doctor_observations import HEALTHY, body

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
        ("tokenizer", False), ("key", False), ("keys", False), ("--max-num-batched-tokens", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert redaction.is_secret(name) is secret


@pytest.mark.parametrize("value", [{"a": [1, None, True, "x"]}, [], "plain text", 7, None])
def test_other_values_are_unchanged(value: Any) -> None:
    assert redaction.redacted(value) == value
