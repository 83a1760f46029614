"""docs/api.md lists every path and parameter of vLLM, and what the gateway does with it."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.payload.body import decode_body, prefill_body, read_body
from pdx_proxy.payload.request import can_split
from tests.api_document import PATHS, Endpoint, Parameter, endpoints, parameters

ENDPOINTS: Final = endpoints()
PARAMETERS: Final = parameters()
MODELS: Final = {
    "text": ("openai/completion/protocol.py", "CompletionRequest"),
    "chat": ("openai/chat_completion/protocol.py", "ChatCompletionRequest"),
}
NO_FIELDS: Final = {"text": {"best_of"}, "chat": {"best_of"}}
"""Parameters that clients still send and vLLM 0.32 ignores."""
BASE: Final[dict[str, dict[str, Any]]] = {
    "text": {"prompt": "a"},
    "chat": {"messages": [{"role": "user", "content": "a"}]},
}
VERDICTS: Final = {
    Kind.GENERATE: "split",
    Kind.WHOLE: "whole",
    Kind.READ: "whole",
    Kind.HEALTH: "own",
    Kind.READY: "own",
}
NO_ROUTES: Final = {("GET", "/ready"), ("GET", "/metrics")}
"""A path of the gateway itself, and one that vLLM mounts."""
REGISTERING: Final = {"get", "post", "put", "delete", "websocket", "add_api_route"}


@pytest.fixture(scope="module")
def entrypoints() -> Path:
    """vLLM's sources, found without importing it: that takes ten seconds."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed: run `make install`")
    return Path(found.origin).parent / "entrypoints"


@pytest.mark.parametrize("kind", PATHS)
def test_every_field_of_vllm_is_documented(kind: str, entrypoints: Path) -> None:
    documented = {row.name for row in PARAMETERS if row.kind == kind}
    assert _fields(entrypoints, *MODELS[kind]) == documented - NO_FIELDS[kind]


def test_every_route_of_vllm_is_documented(entrypoints: Path) -> None:
    routes = {route for path in entrypoints.rglob("*.py") for route in _routes(path)}
    assert routes == {(row.method, row.path) for row in ENDPOINTS} - NO_ROUTES


def test_the_allow_list_is_the_documents() -> None:
    served = {Endpoint(method, path, VERDICTS[kind]) for path, (method, kind) in ROUTES.items()}
    assert served == {row for row in ENDPOINTS if row.verdict != "refused"}
    assert {row.verdict for row in ENDPOINTS} == {*VERDICTS.values(), "refused"}


def _cases(*verdicts: str) -> list[Any]:
    rows = [row for row in PARAMETERS if row.verdict in verdicts]
    return [pytest.param(row, id=f"{row.label}-{number}") for number, row in enumerate(rows)]


def _sent(row: Parameter) -> dict[str, Any]:
    return {**BASE[row.kind], "model": "a", **row.example}


@pytest.mark.parametrize("row", _cases("split", "whole", "removed"))
def test_an_example_is_served_as_documented(row: Parameter) -> None:
    assert row.name in row.example
    body = read_body(orjson.dumps(_sent(row)), "application/json")
    assert can_split(PATHS[row.kind], body.fields) is (row.verdict != "whole")


@pytest.mark.parametrize(
    "odd",
    [
        *({"n": "2"}, {"n": 2.0}, {"best_of": "2"}, {"prompt_logprobs": "0"}, {"prompt_logprobs": -1}),
        *({"echo": "true"}, {"echo": 1}, {"use_beam_search": "yes"}, {"truncate_prompt_tokens": "-1"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", PATHS)
def test_values_that_vllm_converts_are_not_split(kind: str, odd: dict[str, Any]) -> None:
    body = read_body(orjson.dumps({**BASE[kind], **odd}), "application/json")
    assert not can_split(PATHS[kind], body.fields)


@pytest.mark.parametrize("row", _cases("split"))
def test_the_prefill_leg_is_as_documented(row: Parameter) -> None:
    sent = _sent(row)
    leg = orjson.loads(prefill_body(read_body(orjson.dumps(sent), "application/json"), {}))
    expected = {
        "same": sent[row.name],
        "dropped": None,
        "own": {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "ignore_eos": True}.get(row.name),
    }
    if row.name == "vllm_xargs":
        expected["same"] = {"go": 1}
    assert leg.get(row.name) == expected[row.to_prefill]
    assert (row.name in leg) is (row.to_prefill != "dropped")


@pytest.mark.parametrize("row", _cases("removed"))
def test_removed_members_reach_no_engine(row: Parameter) -> None:
    body = read_body(orjson.dumps(_sent(row)), "application/json")
    assert row.name not in orjson.loads(decode_body(body, None))
    assert orjson.loads(prefill_body(body, {})).get(row.name) == ({} if row.to_prefill == "own" else None)


def _fields(entrypoints: Path, file: str, model: str) -> set[str]:
    tree = ast.parse((entrypoints / file).read_text())
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == model)
    bases = [ast.unparse(base) for base in definition.bases]
    assert bases == ["OpenAIBaseModel"], "another base may bring fields of its own"
    named = [
        node.target.id
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return {name for name in named if not name.startswith("_")}


def _routes(path: Path) -> Iterator[tuple[str, str]]:
    """What `@router.post("/path")` and `router.add_api_route("/path", …, methods=[…])` name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        first = node.args[0]
        if node.func.attr not in REGISTERING or "router" not in ast.unparse(node.func.value):
            continue
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            method = "POST" if node.func.attr == "add_api_route" else node.func.attr.upper()
            yield method, first.value
