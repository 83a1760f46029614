"""Every example of docs/api.md at real engines: through the gateway as from one engine, and KV moved or did not."""

import copy
import json
import math
from typing import Any, Final

import aiohttp
import pytest

from tests.api_document import PATHS, Parameter, endpoints, parameters
from tests.engines.conftest import Pair
from tests.engines.support.harness import MODEL, Gateway, eventually, make_prompt

PARAMETERS: Final = parameters()
ONE_TOKEN: Final = [300]
"""A prompt that vLLM counts as computed where it ends up, though it was fetched."""
OF_ONE_ANSWER: Final = frozenset(
    {
        *("id", "created", "created_at", "system_fingerprint", "prompt_tokens_details", "input_tokens_details"),
        *("signature", "call_id", "item_id"),
    }
)
"""Members that differ between two answers of one engine, name its configuration, or report what it had cached."""
WHOLE_BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions/batch": {
        "messages": [[{"role": "user", "content": "ba"}], [{"role": "user", "content": "de"}]],
        "max_tokens": 4,
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "ba de"}]},
    "/generative_scoring": {"query": "ba", "items": ["de", "fi"], "label_token_ids": [300, 301]},
    "/tokenize": {"prompt": "ba de"},
    "/detokenize": {"tokens": [300, 301]},
}
"""What an engine that generates answers at the paths that go whole; at the others it has nothing."""


def _case(seed: int, row: Parameter, *, soak: bool = False) -> Any:
    return pytest.param(seed, row, id=f"{row.label}-{seed}", marks=pytest.mark.soak if soak else ())


def _one_of_each_way() -> list[Any]:
    served = set[tuple[object, ...]]()
    found = list[Any]()
    for seed, row in enumerate(PARAMETERS):
        way = row.kind, row.verdict, row.to_prefill, bool(row.refused_from), row.example.get("stream", False)
        found.append(_case(seed, row, soak=way in served))
        served.add(way)
    return found


EVERY_ROW: Final = [_case(seed, row) for seed, row in enumerate(PARAMETERS)]
ONE_OF_EACH_WAY: Final = _one_of_each_way()
"""The first row of each way in which the gateway serves a request; the other rows run in `make soak`."""


class ApiTable:
    """The cases; a wiring's module inherits them and brings its `front` and `pair`."""

    @pytest.mark.parametrize(("seed", "row"), EVERY_ROW)
    async def test_parameter(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, seed: int, row: Parameter
    ) -> None:
        path, body = PATHS[row.kind], _body(row, make_prompt(3_000_000 + 1000 * (front.number % 1000) + seed, 30))
        await eventually(lambda: front.state()["inFlight"]["settling"] == 0, 30, "the row before is being settled")
        before = pair.decode.external_tokens
        status, headers, got = await post(session, front.url + path, body)
        own_status, _, own = await post(session, pair.prefill.url + path, _cleaned(row, body))
        refused = "" < row.refused_from <= await pair.version(session)
        refusal = 404 if row.name == "previous_response_id" else 400
        assert (own_status, status) == ((refusal, refusal) if refused else (200, 200)), got
        assert differences(counted(own), counted(got)) == []
        assert "mine" not in json.dumps(got)
        moved = row.verdict != "whole" and status == 200
        assert ("x-pdx-prefill" in headers) is moved
        if refused and row.to_prefill == "dropped":
            return  # P has accepted what D refuses: a short leg may release P's blocks, and its tokens count
        tokens = _prompt_tokens(got["usage"]) if moved and row.example.get("prompt") != ONE_TOKEN else 0
        await eventually(lambda: pair.decode.external_tokens - before == tokens, 5, f"not {tokens} tokens moved")

    @pytest.mark.parametrize(
        "path", [row.path for row in endpoints() if (row.method, row.verdict) == ("POST", "whole")]
    )
    async def test_path_that_goes_whole(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, path: str
    ) -> None:
        body = {"model": MODEL, "temperature": 0, **WHOLE_BODIES.get(path, {"input": "ba"})}
        before = pair.decode.external_tokens
        status, headers, got = await post(session, front.url + path, body)
        own_status, _, own = await post(session, pair.prefill.url + path, body)
        assert (own_status, status) == ((200, 200) if path in WHOLE_BODIES else (404, 404))
        assert differences(own, got) == []
        assert ("x-pdx-decode" in headers, "x-pdx-prefill" in headers) == (True, False)
        assert pair.decode.external_tokens == before


def _body(row: Parameter, prompt: str) -> dict[str, Any]:
    base: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    if row.kind in ("text", "responses"):
        base = {"prompt" if row.kind == "text" else "input": prompt}
    limit = "max_output_tokens" if row.kind == "responses" else "max_tokens"
    body = {"model": MODEL, "temperature": 0, limit: 8, **base, **row.example}
    if body.get("stream") and row.kind in ("text", "chat"):
        body.setdefault("stream_options", {"include_usage": True})
    return body


def _cleaned(row: Parameter, body: dict[str, Any]) -> dict[str, Any]:
    """The body for a single engine, without the parameter that the gateway removes: an engine would obey it."""
    clean = copy.deepcopy(body)
    if row.verdict == "removed":
        del clean[row.name]
    return clean


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    async with session.post(url, json=body) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.content_type != "text/event-stream":
            return response.status, headers, await response.json()
        lines = (await response.text()).split("\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if url.endswith(("/v1/messages", "/v1/responses")):
        return response.status, headers, _joined_events([json.loads(event) for event in events])
    assert events.pop() == "[DONE]"
    return response.status, headers, _joined([json.loads(event) for event in events])


def _joined_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream of a message or of a response as one answer. A response comes whole with its last event."""
    last = events[-1]
    if last["type"] == "response.completed":
        return dict(last["response"])
    assert last == {"type": "message_stop"}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    (end,) = [event for event in events if event["type"] == "message_delta"]
    return {"text": "".join(delta["text"] for delta in deltas), "delta": end["delta"], "usage": end["usage"]}


def _prompt_tokens(usage: dict[str, Any]) -> int:
    """The tokens of the prompt. Anthropic's leave out those from the cache."""
    return int(usage.get("prompt_tokens") or usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0))


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as one answer: vLLM puts several tokens into one chunk when its front end is behind."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices]
    finished = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return {"text": "".join(texts), "finish_reason": finished, "usage": chunks[-1]["usage"]}


def counted(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of a message with all tokens of its prompt as its input: the engines have cached different ones."""
    usage = answer.get("usage")
    if not usage or "input_tokens" not in usage:
        return answer
    kept = {name: value for name, value in usage.items() if name != "cache_read_input_tokens"}
    return {**answer, "usage": {**kept, "input_tokens": _prompt_tokens(usage)}}


def differences(own: Any, got: Any, at: str = "") -> list[str]:
    """Where two answers differ; logarithms may do so by rounding."""
    if isinstance(own, dict) and isinstance(got, dict):
        names = (own.keys() | got.keys()) - OF_ONE_ANSWER
        return [found for name in names for found in differences(own.get(name), got.get(name), f"{at}.{name}")]
    if isinstance(own, list) and isinstance(got, list) and len(own) == len(got):
        pairs = enumerate(zip(own, got, strict=True))
        return [found for n, (a, b) in pairs for found in differences(a, b, f"{at}[{n}]")]
    if isinstance(own, float) and isinstance(got, float):
        return [] if math.isclose(own, got, abs_tol=1e-3) else [f"{at}: {own} is {got}"]
    return [] if own == got else [f"{at}: {own!r} is {got!r}"]
