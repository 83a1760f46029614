"""Secrets of many alphabets in many forms, and an observation that has a text in every field."""

import base64
import dataclasses
import json
import string
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from random import Random
from typing import Any, Final
from urllib.parse import quote

from pdx_api.spec.types import PDDeployment
from pdx_cli.sources.observation import Observation

Body = dict[str, Any]

_LENGTH: Final = 26
_WINDOW: Final = 8
"""A part of a secret with so many characters is a leak too."""
ALPHABETS: Final = {
    "letters": string.ascii_letters + string.digits,
    "hex": "0123456789abcdef",
    "url": string.ascii_letters + string.digits + "-_",
    "base64": string.ascii_letters + string.digits + "+/",
    "marks": string.ascii_letters + string.digits + "!#%*~^.",
}

_HEX: Final = "0123456789abcdef"
_ARGUMENTS: Final = '"env":[{"name":"WANDB_API_KEY","value":"KEY1"},{"name":"LOG_LEVEL","value":"info"}]'
_SIGV4: Final = "Credential=AKIAXXXXXXXXXXXXXXXX/20261127/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=KEY1"
_AZURE: Final = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=BASE64;EndpointSuffix=core.windows.net"
_REFUSED: Final = "Error code: 401 - {'error': {'message': 'Incorrect API key provided: KEY1. You can find'}}"
FORMS: Final = (
    # Shells and command lines.
    "export HF_TOKEN=KEY1",
    'export AWS_SECRET_ACCESS_KEY="KEY1"; python3 -m vllm',
    "export STARTUP_VALUE=KEY1",
    "export VLLM_STARTUP_VALUE=KEY1",
    "set HUGGING_FACE_HUB_TOKEN=KEY1",
    "$env:OPENAI_API_KEY = 'KEY1'",
    "MYSQL_PWD=KEY1 mysqldump -u root db",
    "VLLM_API_KEY=KEY1 VLLM_LOGGING_LEVEL=DEBUG",
    'API_TOKEN="""KEY1"""',
    "vllm serve m --api-key KEY1 --port 8000",
    "vllm serve m --api-key=KEY1",
    "vllm serve m --api-key other-key-1 KEY1 --port 8000",
    "vllm serve m \\\n  --api-key \\\n  KEY1 \\\n  --port 1",
    "--hf_token KEY1",
    "\x1b[36m(APIServer pid=1)\x1b[0;0m INFO args: --api-key KEY1",
    "\x1b[32mapi_key\x1b[0m=\x1b[1mKEY\x1b[0m",
    "curl -sS -H 'Authorization: Bearer KEY1' http://gw/v1/models",
    "+ curl -fsS -u admin:KEY1 https://nexus.example.com/x",
    "curl --user admin:KEY1 https://nexus.example.com/x",
    "mysql -u root -pKEY1 -h db",
    "sshpass -p KEY1 ssh user@host",
    "redis-cli -h redis -a KEY1 ping",
    "docker login -u me -p KEY1 ghcr.io",
    "wandb login KEY1",
    "huggingface-cli login --token KEY1 --add-to-git-credential",
    "docker run -e STARTUP_VALUE=KEY1 image",
    "docker run -e LMCACHE_STARTUP_VALUE=KEY1 image",
    "helm upgrade pdx ./pdx --set auth.password=KEY1,replicas=2",
    "--set-string 'hf.token=KEY1'",
    "kubectl create secret generic hf --from-literal=token=KEY1",
    "kubectl create secret generic hf --from-literal=x=KEY1",
    # Addresses.
    "GET https://svc-user:KEY1@artifacts.example.com/models/a.safetensors HTTP/1.1 200",
    "connecting to redis://:KEY1@redis.llm.svc:6379/0",
    "fatal: could not read https://KEY1@github.com/acme/models.git/",
    "Cloning https://x-access-token:KEY1@github.com/a/b",
    "Looking in indexes: https://__token__:KEY1@pypi.example.com/simple",
    "amqp://user:PERCENT@mq:5672/",
    "ftp://a:KEY1@h/",
    "postgresql+psycopg2://llm:KEY1@db:5432/llm?sslmode=require",
    "mongodb+srv://a:KEY1@c.mongodb.net/?w=majority",
    "jdbc:mysql://db/x?user=a&password=KEY1&ssl=true",
    "otpauth://totp/a?secret=KEY1&issuer=x",
    "https://models.blob.core.windows.net/c/a?sv=2022-11-02&sp=r&sig=KEY1&se=2027-01-01",
    "https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=60&X-Amz-Signature=KEY1",
    "https://storage.googleapis.com/b/o?GoogleAccessId=a@p.iam.gserviceaccount.com&Expires=1&Signature=PERCENT",
    '"GET /v1/models?access_token=KEY1&limit=2 HTTP/1.1" 200 OK',
    "https://maps.googleapis.com/x?key=KEY1",
    "POST form api_key%3DKEY%26model%3Dm",
    "https://hooks.slack.com/services/T0AAAAAAA/B0BBBBBBB/KEY1",
    "https://discord.com/api/webhooks/123456789012345678/KEY1",
    "https://acme.webhook.office.com/webhookb2/a-b@c-d/IncomingWebhook/KEY1/e-f",
    "https://api.telegram.org/bot123456789:KEY1/sendMessage",
    # Headers.
    "Authorization: Bearer KEY1",
    "> authorization: bearer KEY1",
    "Authorization: Basic BASE64",
    f"Authorization: AWS4-HMAC-SHA256 {_SIGV4}",
    'Authorization: Digest username="Mufasa", realm="x", response="KEY1"',
    "Proxy-Authorization: Negotiate KEY1",
    "Cookie: theme=dark; session=KEY1; lang=de",
    "set-cookie: sid=KEY1; Path=/; HttpOnly; Secure",
    "x-api-key: KEY1",
    "X-Auth-Token: KEY1",
    "x-goog-api-key: KEY1",
    "X-Amz-Security-Token: KEY1",
    "PRIVATE-TOKEN: KEY1",
    "Ocp-Apim-Subscription-Key: KEY1",
    "headers=[(b'host', b'127.0.0.1:8000'), (b'authorization', b'Bearer KEY1'), (b'accept', b'*/*')]",
    "headers=[(b'host', b'a'), (b'x-api-key', b'KEY1')]",
    "<CIMultiDictProxy('Host': 'a', 'Authorization': 'Bearer KEY1', 'Accept': '*/*')>",
    # Files.
    "machine huggingface.co login me password KEY1",
    "machine huggingface.co\n  login me\n  password KEY1\n",
    "db.example.com:5432:llm:svc:KEY1",
    '{"auths": {"ghcr.io": {"username": "u", "auth": "BASE64"}}}',
    '{\n  "auths": {\n    "ghcr.io": {\n      "auth": "BASE64"\n    }\n  }\n}',
    "[default]\naws_access_key_id = AKIAABCDEFGHIJKLMNOP\naws_secret_access_key = KEY1\n",
    "AWS_SESSION_TOKEN: KEY1",
    "spring.datasource.password=KEY1",
    "<server><username>a</username><password>KEY1</password></server>",
    "users:\n- name: a\n  user:\n    client-key-data: BASE64\n    token: KEY1\n",
    "apiVersion: v1\nkind: Secret\ntype: Opaque\ndata:\n  credentials: BASE64\n",
    '{"kind": "Secret", "data": {"x": "BASE64"}, "apiVersion": "v1"}',
    "kind: Secret\nstringData:\n  config.ini: |\n    user=a\n    pw=KEY1\n",
    "auth:\n  password: KEY1\n  user: a",
    "token: |\n  KEY1\nnext: 1",
    "- name: WANDB_API_KEY\n  value: KEY1\n- name: A\n  value: b",
    "registry-password: BASE64",
    "PEM",
    "PEM_ON_ONE_LINE",
    "PEM_WITHOUT_AN_END",
    # Connections.
    _AZURE,
    "Server=tcp:db,1433;Database=x;User Id=sa;Password=KEY1;Encrypt=True",
    "DRIVER={x};UID=sa;PWD=KEY1",
    "host=db user=llm password=KEY1 dbname=x",
    "host=db password='KEY1' dbname=x",
    # Structures in a text.
    '{"level": "info", "msg": "{\\"api_key\\": \\"KEY1\\"}"}',
    '{"a": "{\\"b\\": \\"{\\\\\\"password\\\\\\": \\\\\\"KEY1\\\\\\"}\\"}"}',
    '{"values.yaml": "hf:\\n  token: KEY1\\n"}',
    '{"spec": {"accessToken": "KEY1", "refreshToken": "KEY1", "apiKey": "KEY1"}}',
    "args: Namespace(host=None, api_key=['KEY1'], model='m')",
    "EngineArgs(model='m', hf_token='KEY1', dtype='auto')",
    "argv: ['vllm', 'serve', 'm', '--api-key', 'KEY1']",
    'cmd=["vllm","serve","m","--api-key","KEY1","--port","8000"]',
    _ARGUMENTS,
    "env=[{'name': 'MINIO_SECRET_KEY', 'value': 'KEY1'}]",
    '{"value":"KEY1","name":"WANDB_API_KEY"}',
    "clientSecret: KEY1",
    # Logs.
    _REFUSED,
    "config &{Endpoint:https://x Token:KEY1 Timeout:5s}",
    'level=info msg="login" token=KEY1 user=me',
    'level=info password="KEY1 with words KEY1" user=me',
    'password="a\\"KEY1" x=1',
    'passwd := "KEY1"',
    ":secret_key => 'KEY1',",
    "the password is KEY1",
    'using token "KEY1" for registry',
    "SECRET KEY1",
)
FRAMES: Final = (
    "TEXT",
    "INFO 05-04 12:00:00 [api_server.py:1] TEXT",
    "ERROR: TEXT failed, retrying",
    "2026-11-27T10:00:00Z stderr F TEXT",
)
_TOKENS: Final = (
    ("hf_", 34), ("sk-", 48), ("sk-proj-", 80), ("sk-ant-api03-", 82), ("ghp_", 36), ("gho_", 36), ("ghs_", 36),
    ("github_pat_", 80), ("glpat-", 20), ("AIza", 35), ("xoxb-123456789012-1234567890123-", 24), ("npm_", 36),
    ("eyJhbGciOiJSUzI1NiJ9.eyJ", 60), ("nvapi-", 64), ("pypi-AgEIcHlwaS5vcmc", 60), ("dckr_pat_", 27), ("ya29.", 100),
    ("hvs.", 90), ("gsk_", 52), ("r8_", 37), ("sk_live_", 24), ("SG.", 60), ("sq0atp-", 22), ("abc8Q~", 34),
    ("tskey-auth-", 40), ("pplx-", 48), ("xai-", 80), ("fw_", 24), ("glsa_", 40), ("figd_", 40), ("ATATT3xFfGF0", 60),
    ("", 40),
)  # fmt: skip
_HEX_TOKENS: Final = (("dop_v1_", 64), ("shpat_", 32), ("lsv2_pt_", 32), ("dapi", 32))
_CAPITAL_TOKENS: Final = (("AKIA", 16), ("ASIA", 16), ("AGE-SECRET-KEY-1", 58))


def secret(numbers: Random, alphabet: str) -> str:
    """A random secret of an alphabet."""
    return "".join(numbers.choice(ALPHABETS[alphabet]) for _ in range(_LENGTH))


def text_with(form: str, value: str) -> str:
    """A form with a secret in it."""
    encoded = base64.b64encode(value.encode()).decode()
    pem = _pem(value)
    if form.startswith("PEM"):
        return {"PEM": pem, "PEM_ON_ONE_LINE": json.dumps({"private_key": pem})}.get(form, pem.rpartition("\n")[0])
    return form.replace("BASE64", encoded).replace("PERCENT", quote(f"{value}@/:")).replace("KEY1", value)


def _pem(value: str) -> str:
    text = base64.b64encode(value.encode() * 8).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----"])


def tokens(numbers: Random) -> Iterator[tuple[str, str]]:
    """Tokens of well-known services, which are secrets without a name before them, and their random parts."""
    kinds = ((_TOKENS, ALPHABETS["letters"]), (_HEX_TOKENS, _HEX), (_CAPITAL_TOKENS, string.ascii_uppercase + "234567"))
    for table, alphabet in kinds:
        for prefix, length in table:
            random = "".join(numbers.choice(alphabet) for _ in range(length))
            yield f"{prefix}{random}", random


def leaks(files: Mapping[str, str], value: str) -> list[str]:
    """The files that contain a part of a secret, or of its base64."""
    encoded = base64.b64encode(value.encode()).decode()
    parts = {value[start : start + _WINDOW] for start in range(len(value) - _WINDOW + 1)} | {encoded[4:20]}
    return [name for name, page in files.items() if any(part in page for part in parts)]


def observation_with(text: str) -> Observation:
    """An observation with a text in every field that holds one."""
    found = _filled(Observation, text)
    assert isinstance(found, Observation)
    return dataclasses.replace(found, name="m", namespace="n", deployment=None, body=_body(text))


def _body(text: str) -> Body:
    """A PDDeployment with a text in every kind of place."""
    document = json.dumps({"x": text, "list": [text]})
    container = {
        "name": "engine",
        "env": [{"name": "STARTUP", "value": text}],
        "args": ["--x", text],
        "command": ["sh", "-c", text],
        "lifecycle": {"preStop": {"httpGet": {"httpHeaders": [{"name": "X-Note", "value": text}]}}},
    }
    pod = {"spec": {"initContainers": [container]}, "metadata": {"annotations": {"note": text, "document": document}}}
    condition = {"type": "Ready", "status": "False", "message": text}
    copies = {"kubectl.kubernetes.io/last-applied-configuration": document, "example.com/values": document}
    return {
        "metadata": {"name": "m", "annotations": {"note": text, **copies}, "labels": {"note": text}},
        "spec": {
            "engine": {"env": {"STARTUP": text}, "args": [f"--x={text}"]},
            "decode": {"podTemplate": pod},
            "kvTransfer": {"config": {"extra": text, "list": [text], text: 1}},
        },
        "status": {"conditions": [condition]},
    }


_IDENTITIES: Final = frozenset({"name"})
"""Fields of gateways, engines and processes whose values become names of files."""


def _filled(kind: Any, text: str) -> Any:
    """A value of a type with the text wherever it can be."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _filled(arguments[0], text)
    if origin is tuple:
        return (_filled(arguments[0], text),)
    if origin is not None and issubclass(origin, Mapping):
        return {"key": {"note": text, "list": [text]} if arguments[1] is Any else _filled(arguments[1], text)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind, localns={"PDDeployment": PDDeployment})
        keeps = _IDENTITIES if kind.__module__.endswith("observation") else frozenset()
        names = [field.name for field in dataclasses.fields(kind) if field.name != "deployment"]
        values = {name: "n" if name in keeps else _filled(hints[name], text) for name in names}
        return kind(**values)
    if kind is datetime:
        return datetime(2026, 5, 4, tzinfo=UTC)
    if issubclass(kind, Enum):
        return next(iter(kind))
    return text if kind is str else kind()
