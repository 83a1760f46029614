"""docs/api.md lists every path and parameter of vLLM, and what the gateway does with it."""

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import orjson
import pydantic
import pytest

from pdx_proxy.http.errors import RefusedError
from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.payload.body import decode_body, prefill_body, read_body
from pdx_proxy.payload.decisions import DECIDING, REFUSED, TYPES, Decisions, decide, scalar
from pdx_proxy.payload.tools import are_clients_tools
from tests.api_document import DOCUMENT, PATHS, Endpoint, Parameter, endpoints, parameters, sections

ENDPOINTS: Final = endpoints()
PARAMETERS: Final = parameters()
MODELS: Final = {
    "text": ("openai/completion/protocol.py", "CompletionRequest"),
    "chat": ("openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "messages": ("anthropic/protocol.py", "AnthropicMessagesRequest"),
    "responses": ("openai/responses/protocol.py", "ResponsesRequest"),
}
NO_FIELDS: Final[dict[str, set[str]]] = {
    "text": {"best_of"},
    "chat": {"best_of"},
    "messages": set(),
    "responses": {"conversation"},
}
"""Parameters that clients still send and vLLM 0.32 ignores."""
BASE: Final[dict[str, dict[str, Any]]] = {
    "text": {"prompt": "a"},
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8},
    "responses": {"input": "a"},
}
UNREAD: Final = {
    *("prompt", "prompt_embeds", "previous_response_id", "conversation", "tools", "truncation", "tool_choice"),
    "thinking",
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
}
"""Deciding members that are no scalars, whose values only count as given or not, or that are estimates."""
READ: Final = {"text": 6, "chat": 7, "messages": 1, "responses": 3}
"""How many deciding members are read as pydantic reads them."""
OWN: Final[dict[str, dict[str, Any]]] = {
    "text": {"stream": False, "max_tokens": 1, "ignore_eos": True},
    "chat": {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "ignore_eos": True},
    "messages": {"stream": False, "max_tokens": 1, "thinking": {"type": "disabled"}},
    "responses": {"stream": False, "store": False, "max_output_tokens": 1, "ignore_eos": True},
}
VERDICTS: Final = {
    Kind.GENERATE: "split",
    Kind.WHOLE: "whole",
    Kind.READ: "whole",
    Kind.MODELS: "own",
    Kind.HEALTH: "own",
    Kind.READY: "own",
}
NO_ROUTES: Final = {("GET", "/ready"), ("GET", "/metrics")}
"""A path of the gateway itself, and one that vLLM mounts."""
REGISTERING: Final = {"get", "post", "put", "delete", "websocket", "add_api_route"}


ENGINES_TOOLS: Final = {
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search"),
    *("code_interpreter", "mcp", "image_generation", "tool_search", "shell", "programmatic_tool_calling"),
    *("computer", "computer_use_preview"),
}
"""Types of tools that an engine or OpenAI's servers run, or of which that is not certain."""


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


def _decide(kind: str, body: dict[str, Any]) -> Decisions:
    return decide(PATHS[kind], {name: orjson.dumps(value) for name, value in body.items()})


VALUES: Final[list[Any]] = [
    *(True, False, None, 0, 1, 2, -1, -2, 0.0, -0.0, 1.0, 2.0, 1.5, 1e300, 10**30, 2**63),
    *("true", "TRUE", "tRuE", "t", "yes", "y", "on", "1", "false", "False", "no", "N", "off", "f", "0"),
    *("", " ", " true", "true ", "2", "-1", "-2", "+1", "1.0", "1.000", "1.", ".0", "1.5", " 1 ", "\t1\n", "1e0", "01"),
    *("1_0", "1__0", "_1", "1_", "0x1", "nan", "inf", "-0", "--1", "abc", "null", "\u0661", "\u00a01", "9" * 30),
    *([], [1], {}, {"a": 1}, [[]]),
]
"""JSON values, most of which pydantic converts or refuses."""


@pytest.mark.parametrize("kind", PATHS)
def test_deciding_members_are_read_as_vllm_reads_them(kind: str, entrypoints: Path) -> None:
    annotations = _annotations(entrypoints, *MODELS[kind])
    names = {"Annotated": Annotated, "Field": pydantic.Field, "_INT64_MAX": (1 << 63) - 1}
    compared = 0
    for name in DECIDING[PATHS[kind]] & annotations.keys() - UNREAD:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(eval(annotations[name], names))
        for value in VALUES:
            read = TYPES[PATHS[kind]][name](scalar(json.dumps(value).encode()))
            try:
                expected = adapter.validate_python(json.loads(json.dumps(value)))
            except pydantic.ValidationError:
                expected = REFUSED
            assert (type(read), read) == (type(expected), expected), (name, value)
            compared += 1
    assert compared == READ[kind] * len(VALUES)
    assert not annotations.keys() & NO_FIELDS[kind], "vLLM reads it now"


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_what_vllm_refuses_is_whole_and_has_no_stream(kind: str) -> None:
    base = {**BASE[kind], "stream": "on"}
    assert _decide(kind, base).stream
    assert _decide(kind, base).splits
    odds: list[dict[str, Any]] = [{"n": "many"}, {"stream": "maybe"}, {"stream": [True]}, {"n": [[]] * 50}]
    odds.append({"use_beam_search": None})
    for odd in odds:
        decisions = _decide(kind, {**base, **odd})
        assert not decisions.stream
        assert not decisions.splits


@pytest.mark.parametrize("kind", ["messages", "responses"])
def test_a_stream_that_vllm_refuses_is_whole(kind: str) -> None:
    streams: list[Any] = ["maybe", [True], {}, 2]
    for stream in streams:
        decisions = _decide(kind, {**BASE[kind], "stream": stream})
        assert (decisions.stream, decisions.splits) == (False, False)


TOOL_CHOICES: Final[list[tuple[Any, bool]]] = [
    *(({"type": "tool", "name": "a"}, False), ({"name": "a", "type": "tool"}, False), ({"type": "tool"}, False)),
    *(({"type": "any"}, True), ({"type": "auto"}, True), ({"type": "none"}, True), (None, True)),
    *(("tool", True), ([], True), ({"type": ["tool"]}, True), ({"type": "any", "name": "a" * (1 << 20)}, False)),
]
"""Values of a message's `tool_choice`, and whether it is split. vLLM refuses some of those that are."""


@pytest.mark.parametrize(("choice", "splits"), TOOL_CHOICES, ids=lambda value: str(value)[:30])
def test_a_message_that_forces_a_tool_is_whole(choice: Any, splits: bool) -> None:
    assert _decide("messages", {**BASE["messages"], "tool_choice": choice}).splits is splits


WHOLE_RESPONSES: Final[list[dict[str, Any]]] = [
    *({"previous_response_id": "resp_" + "1" * 100}, {"previous_response_id": 7}, {"conversation": {"id": "a"}}),
    *({"background": "on"}, {"background": 1}, {"background": []}, {"truncation": "disable"}, {"truncation": 1}),
    *({"tools": [{"type": "function"}, {"type": "shell"}]}, {"tools": [{}]}, {"tools": {}}, {"tools": "function"}),
    *({"tools": [{"type": "function"}] * 60_000}, {"tools": [{"type": ["function"]}]}, {"prompt": "p"}),
]


@pytest.mark.parametrize("members", WHOLE_RESPONSES, ids=lambda members: str(members)[:40])
def test_a_response_that_one_engine_must_serve(members: dict[str, Any]) -> None:
    decisions = _decide("responses", {**BASE["responses"], **members, "stream": True})
    assert not decisions.splits
    assert decisions.stream is (members.get("background") != [])


@pytest.mark.parametrize(
    "members",
    [
        *({"previous_response_id": None}, {"conversation": None}, {"prompt": None}),
        *({"tools": None}, {"tools": []}, {"tools": [{"type": "custom", "name": "a"}, {"type": "local_shell"}]}),
    ],
    ids=str,
)
def test_a_response_with_defaults_is_split(members: dict[str, Any]) -> None:
    assert _decide("responses", {**BASE["responses"], **members}).splits


@pytest.mark.parametrize("name", ["background", "truncation"])
def test_a_null_that_vllm_fails_to_answer_with_is_refused(name: str) -> None:
    for stream in (False, True):
        with pytest.raises(RefusedError, match=f"{name} must not be null; leave it out"):
            _decide("responses", {**BASE["responses"], name: None, "stream": stream})


def test_every_type_of_a_tool_is_classified() -> None:
    """A new one fails here: does the client run it, or may an engine?"""
    tool = pytest.importorskip("openai.types.responses.tool")
    members = get_args(get_args(tool.Tool)[0])
    types = {kind for member in members for kind in get_args(member.model_fields["type"].annotation)}
    clients = {kind for kind in types if are_clients_tools(orjson.dumps([{"type": kind}]))}
    assert clients == {"function", "custom", "namespace", "local_shell", "apply_patch"}
    assert types - clients == ENGINES_TOOLS


@pytest.mark.parametrize("row", _cases("split", "whole", "removed"))
def test_an_example_is_served_as_documented(row: Parameter) -> None:
    assert row.name in row.example
    assert _decide(row.kind, _sent(row)).splits is (row.verdict != "whole")


@pytest.mark.parametrize(
    "odd",
    [
        *({"n": "2"}, {"n": 2.0}, {"best_of": "2"}, {"prompt_logprobs": "0"}, {"prompt_logprobs": -1}),
        *({"echo": "true"}, {"echo": 1}, {"use_beam_search": "yes"}, {"truncate_prompt_tokens": "-1"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["text", "chat"])
def test_values_that_vllm_converts_decide(kind: str, odd: dict[str, Any]) -> None:
    assert not _decide(kind, {**BASE[kind], **odd}).splits


@pytest.mark.parametrize("row", _cases("split"))
def test_the_prefill_leg_is_as_documented(row: Parameter) -> None:
    sent = _sent(row)
    body = read_body(orjson.dumps(sent), "application/json", PATHS[row.kind])
    leg = orjson.loads(bytes(prefill_body(body, {})))
    expected = {
        "same": sent[row.name],
        "dropped": None,
        "own": OWN[row.kind].get(row.name),
    }
    if row.name == "vllm_xargs":
        expected["same"] = {"go": 1}
    assert leg.get(row.name) == expected[row.to_prefill]
    assert (row.name in leg) is (row.to_prefill != "dropped")


@pytest.mark.parametrize("row", _cases("removed"))
def test_removed_members_reach_no_engine(row: Parameter) -> None:
    body = read_body(orjson.dumps(_sent(row)), "application/json", PATHS[row.kind])
    assert row.name not in orjson.loads(bytes(decode_body(body, None)))
    assert orjson.loads(bytes(prefill_body(body, {}))).get(row.name) == ({} if row.to_prefill == "own" else None)


def _fields(entrypoints: Path, file: str, model: str) -> set[str]:
    return set(_annotations(entrypoints, file, model))


def _annotations(entrypoints: Path, file: str, model: str) -> dict[str, str]:
    """The fields of a request model and their types, as its source spells them."""
    tree = ast.parse((entrypoints / file).read_text())
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == model)
    bases = [ast.unparse(base) for base in definition.bases]
    assert bases in (["OpenAIBaseModel"], ["BaseModel"]), "another base may bring fields of its own"
    named = {
        node.target.id: ast.unparse(node.annotation)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name: annotation for name, annotation in named.items() if not name.startswith("_")}


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


def test_the_page_names_every_parameter_and_each_value_that_decides() -> None:
    page = DOCUMENT.read_text()
    assert {
        name for rows in sections().values() for name in {row.name for row in rows} if f"`{name}" not in page
    } == set()
    assert {"`n: 1`", "`n: 2`", "`truncate_prompt_tokens: -1`"} <= set(re.findall("`[^`]+`", page))
