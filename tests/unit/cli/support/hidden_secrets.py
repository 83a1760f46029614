"""Forms in which a secret may stand in a text or in an object, and lines that contain none."""

import json
import re
from pathlib import Path
from typing import Any, Final

SECRET: Final = "zq7hunter2xk"
SECOND: Final = "vw8correct3horse"
_PEM: Final = f"-----BEGIN RSA PRIVATE KEY-----\nMII{SECRET}\n{SECOND}==\n-----END RSA PRIVATE KEY-----"

_FORMS: Final = (
    "INFO: secret=KEY1",
    "HF_TOKEN=$(echo KEY1 KEY2)",
    "<password>KEY1</password>",
    "HF_TOKEN 'KEY1'",
    '{"env": {"FOO_BAR": "KEY1"}}',
    "\x1b[32mtoken\x1b[0m=KEY1",
    "next?u=password%3DKEY1",
    "KEY=KEY1",
    "Using api_key=KEY1",
    "redis password: KEY1",
    "env AWS_SECRET_ACCESS_KEY=KEY1",
    "vllm serve m --api-key KEY1",
    "vllm serve m --api-key KEY1 KEY2 --port 8000",
    "vllm serve m --api-key=KEY1 --port 8000",
    "vllm serve m --hf-token 'KEY1 KEY2'",
    "authorization: token KEY1",
    "Authorization: Bearer KEY1",
    "curl -H 'Authorization: ApiKey KEY1' http://h",
    'curl -H "x-api-key: KEY1" http://h',
    "curl -u admin:KEY1 http://h",
    "Proxy-Authorization: Digest username=a, response=KEY1",
    "Cookie: session=KEY1; other=KEY2",
    "non-default args: {'api_key': ['KEY1', 'KEY2'], 'model': 'm'}",
    "non-default args: {'api_key': 'KEY1', 'tokens': 3}",
    'got {"apiKey": "KEY1", "model": "m"}',
    'got {"apiKey":"KEY1","model":"m"}',
    'got "{\\"password\\": \\"KEY1\\"}"',
    "Namespace(api_key='KEY1', port=8000)",
    "Namespace(port=8000, api_key=['KEY1', 'KEY2'])",
    "args: ['serve', 'm', '--api-key', 'KEY1', 'KEY2', '--port', '8000']",
    'args: ["--hf-token", "KEY1"]',
    "connecting to redis://:KEY1@redis:6379/0",
    "connecting to postgres://user:KEY1@db/x",
    "connecting to https://user:KEY1/KEY2@proxy:3128",
    "cloning https://KEY1@github.com/a/b",
    "GET /v1/models?api_key=KEY1 200",
    "GET /blob?sv=1&sig=KEY1 403",
    "PGPASSWORD=KEY1",
    "export DB_PASS=KEY1",
    "export DB_PASS='KEY1 KEY2'",
    "OPENAI_KEY = KEY1",
    "SECRET_KEY: KEY1 KEY2",
    "WANDB_API_KEY=KEY1 HF_TOKEN=KEY2 vllm serve m",
    "API_KEYS=KEY1,KEY2",
    "API_KEYS=KEY1, KEY2",
    "API_KEYS: KEY1, KEY2",
    "REDIS_PWD:KEY1",
    "client_secret => KEY1",
    "dbPassword := KEY1",
    "sshKey: KEY1",
    "AccountKey=KEY1;EndpointSuffix=core",
    "host=db user=u password=KEY1 dbname=x",
    "password=KEY1 and another password=KEY2",
    "token: KEY1",
    "HUGGING_FACE_HUB_TOKEN=KEY1",
    "hf_token='KEY1'KEY2",
    "EnvVar{Name:WANDB_KEY,Value:KEY1,}",
    '{"name": "MY_VARIABLE", "value": "KEY1"}',
    '{"value": "KEY1", "name": "MY_VARIABLE"}',
    "{'name': 'HF_TOKEN', 'value': 'KEY1'}",
    "- name: DB_URL\n  value: KEY1",
    '"name": "HF_TOKEN",\n    "value": "KEY1"',
    "password: |\n  KEY1\n  KEY2\nnext: line",
    "api_keys:\n- KEY1\n- KEY2\nnext: line",
    "password:\n  KEY1\nnext: line",
    "machine h login u password KEY1",
    "key sk-KEY1-KEY2 was refused",
    "credentials: {'a': 'KEY1', 'b': {'c': 'KEY2'}}",
    'passphrase = "KEY1 KEY2"',
    "x-goog-api-key: KEY1",
    "MYSQL_ROOT_PASSWORD=KEY1",
    "GITHUB_PAT=KEY1",
    "SENTRY_DSN=KEY1",
    "AUTH_TOKENS=['KEY1', 'KEY2']",
    "webhook https://hooks.slack.com/services/KEY1/KEY2",
    "eyJKEY1.KEY2.x",
    'wrote kubeconfig: {"users": [{"token": "KEY1"}]}',
    "signing_key: 'KEY1'",
    "--token KEY1",
    '  --password "KEY1"',
    "run with --set auth.password=KEY1",
)
LINES: Final = (
    *(form.replace("KEY1", SECRET).replace("KEY2", SECOND) for form in _FORMS),
    _PEM,
    f"log {_PEM!r} end",
)
"""Each contains SECRET, and some contain SECOND."""

_ENGINE: Final = {"env": [{"name": "WANDB_API_KEY", "value": SECRET}], "args": ["--api-key", SECOND]}
_COPY: Final = json.dumps({"spec": {"engine": _ENGINE}})
OBJECTS: Final[tuple[dict[str, Any], ...]] = (
    {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": _COPY}}},
    {"metadata": {"annotations": {"example.com/copy": _COPY}}},
    {"metadata": {"annotations": {"pdx.dev/template": _COPY}}},
    {"metadata": {"annotations": {"api-key": SECRET}}},
    {"spec": {"engine": {"env": [{"name": "MY_VARIABLE", "value": SECRET}]}}},
    {"spec": {"engine": {"env": [{"name": "VLLM_API_KEY", "value": SECRET}]}}},
    {"spec": {"engine": {"env": {"WANDB_KEY": SECRET, "OTHER": SECOND}}}},
    {"spec": {"engine": {"args": ["--api-key", SECRET, SECOND, "--port", "1"]}}},
    {"spec": {"engine": {"args": [f"--api-key={SECRET}", "--hf-token", SECOND]}}},
    {"spec": {"decode": {"args": ["--kv-transfer-config", f'{{"extra": {{"password": "{SECRET}"}}}}']}}},
    {"spec": {"decode": {"args": [f'--kv-transfer-config={{"extra": {{"api_keys": ["{SECRET}"]}}}}']}}},
    {"spec": {"decode": {"command": ["sh", "-c", f"export TOKEN={SECRET}; vllm serve m --api-key {SECOND}"]}}},
    {"spec": {"decode": {"args": ["-e", f"MY_VARIABLE={SECRET}"]}}},
    {"spec": {"podTemplate": {"httpGet": {"httpHeaders": [{"name": "X-Custom", "value": SECRET}]}}}},
    {"spec": {"kvTransfer": {"config": {"redis": {"password": SECRET, "keys": {"auth": [SECRET, SECOND]}}}}}},
    {"spec": {"kvTransfer": {"config": {"credentials": {"a": SECRET, "b": {"c": [SECOND]}}}}}},
    {"spec": {"kvTransfer": {"config": {"url": f"redis://:{SECRET}@redis", "pgpass": SECOND}}}},
    {"spec": {"x": {"apiVersion": "v1", "kind": "Secret", "data": {"a": SECRET}, "stringData": {"b": SECOND}}}},
    {"spec": {"x": {"key": "api-key", "value": SECRET}}},
    {"spec": {"x": {f"password={SECRET}": 1}}},
    {"status": {"conditions": [{"type": "Ready", "message": f"it says: api_key={SECRET}"}]}},
)
"""Parts of a PDDeployment that contain the secrets."""

_ROOT: Final = Path(__file__).parents[4]


def harmless_lines() -> list[str]:
    """Lines of the repository's own logs, manifests and pages that contain no secret."""
    files = (Path(__file__).parent / name for name in ("harmless.txt", "harmless_logs.txt"))
    own = [line for file in files for line in file.read_text().splitlines()]
    tests = "".join(
        path.read_text() for path in sorted((_ROOT / "tests/unit").rglob("test_*.py")) if "support" not in path.parts
    )
    logged = re.findall(r'"((?:\([\w ]+pid=\d+\) )?(?:INFO|WARNING|ERROR|DEBUG)\b[^"\\{}]{10,})"', tests)
    golden = sorted((_ROOT / "tests/unit/golden").rglob("*.yaml"))
    manifests = [line for path in golden for line in path.read_text().splitlines()]
    return [line for line in (*own, *logged, *dict.fromkeys(manifests)) if line.strip()]
