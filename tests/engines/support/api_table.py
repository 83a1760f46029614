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
OF_ONE_ANSWER: Final = frozenset({"id", "created", "created_at", "system_fingerprint", "prompt_tokens_details"})
"""Members that differ between two answers of one engine, name its configuration, or report what it had cached."""
WHOLE_BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions/batch": {
        "messages": [[{"role": "user", "content": "ba"}], [{"role": "user", "content": "de"}]],
        "max_tokens": 4,
    },
    "/v1/responses": {"input": "ba de", "max_output_tokens": 4, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "ba de"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "ba de"}]},
    "/generative_scoring": {"query": "ba", "items": ["de", "fi"], "label_token_ids": [300, 301]},
    "/tokenize": {"prompt": "ba de"},
    "/detokenize": {"tokens": [300, 301]},
}
"""What an engine that generates answers at the paths that go whole; at the others it has nothing."""


class ApiTable:
    """The cases; a wiring's module inherits them and brings its `front` and `pair`."""

    @pytest.mark.parametrize(
        ("seed", "row"), [pytest.param(n, row, id=f"{row.label}-{n}") for n, row in enumerate(PARAMETERS)]
    )
    async def test_parameter(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, seed: int, row: Parameter
    ) -> None:
        path, body = PATHS[row.kind], _body(row, make_prompt(3_000_000 + 1000 * (front.port % 1000) + seed, 30))
        before = pair.decode.external_tokens
        status, headers, got = await _post(session, front.url + path, body)
        own_status, _, own = await _post(session, pair.prefill.url + path, _cleaned(row, body))
        assert (own_status, status) == ((400, 400) if row.refused else (200, 200)), got
        assert _differences(own, got) == []
        assert "mine" not in json.dumps(got)
        moved = row.verdict != "whole" and status == 200
        assert ("x-pdx-prefill" in headers) is moved
        tokens = got["usage"]["prompt_tokens"] if moved and row.example.get("prompt") != ONE_TOKEN else 0
        await eventually(lambda: pair.decode.external_tokens - before == tokens, 5, f"not {tokens} tokens moved")

    @pytest.mark.parametrize(
        "path", [row.path for row in endpoints() if (row.method, row.verdict) == ("POST", "whole")]
    )
    async def test_path_that_goes_whole(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, path: str
    ) -> None:
        body = {"model": MODEL, "temperature": 0, **WHOLE_BODIES.get(path, {"input": "ba"})}
        before = pair.decode.external_tokens
        status, headers, got = await _post(session, front.url + path, body)
        own_status, _, own = await _post(session, pair.prefill.url + path, body)
        assert (own_status, status) == ((200, 200) if path in WHOLE_BODIES else (404, 404))
        assert _differences(own, got) == []
        assert ("x-pdx-decode" in headers, "x-pdx-prefill" in headers) == (True, False)
        assert pair.decode.external_tokens == before


def _body(row: Parameter, prompt: str) -> dict[str, Any]:
    base = {"prompt": prompt} if row.kind == "text" else {"messages": [{"role": "user", "content": prompt}]}
    body = {"model": MODEL, "temperature": 0, "max_tokens": 8, **base, **row.example}
    if body.get("stream"):
        body.setdefault("stream_options", {"include_usage": True})
    return body


def _cleaned(row: Parameter, body: dict[str, Any]) -> dict[str, Any]:
    """The body for a single engine, without the parameter that the gateway removes: an engine would obey it."""
    clean = copy.deepcopy(body)
    if row.verdict == "removed":
        del clean[row.name]
    return clean


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    async with session.post(url, json=body) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.content_type != "text/event-stream":
            return response.status, headers, await response.json()
        lines = (await response.text()).split("\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return response.status, headers, _joined([json.loads(event) for event in events])


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as one answer: vLLM puts several tokens into one chunk when its front end is behind."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices]
    finished = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return {"text": "".join(texts), "finish_reason": finished, "usage": chunks[-1]["usage"]}


def _differences(own: Any, got: Any, at: str = "") -> list[str]:
    """Where two answers differ; logarithms may do so by rounding."""
    if isinstance(own, dict) and isinstance(got, dict):
        names = (own.keys() | got.keys()) - OF_ONE_ANSWER
        return [found for name in names for found in _differences(own.get(name), got.get(name), f"{at}.{name}")]
    if isinstance(own, list) and isinstance(got, list) and len(own) == len(got):
        pairs = enumerate(zip(own, got, strict=True))
        return [found for n, (a, b) in pairs for found in _differences(a, b, f"{at}[{n}]")]
    if isinstance(own, float) and isinstance(got, float):
        return [] if math.isclose(own, got, abs_tol=1e-3) else [f"{at}: {own} is {got}"]
    return [] if own == got else [f"{at}: {own!r} is {got!r}"]
