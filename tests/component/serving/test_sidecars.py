"""Answers that an engine's sidecar gives, or changes: one request is no evidence that the engine is lost."""

from typing import Final

import pytest

from pdx_api.logs import TextFormatter
from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World
from tests.component.sidecar import MARK, Sidecar, answer_of, sidecars

PROMPT: Final = f"{MARK} what a long prompt this is. " * 40
INTERNAL: Final = "http://engine-internal.example:9999/elsewhere"
LARGE: Final = b'{"error":{"message":"' + b"x" * (3 << 20) + b'"}}'
REDIRECT: Final = answer_of(307, "text/html", b"<a>elsewhere</a>", f"location: {INTERNAL}\r\n")


def _of(made: list[Sidecar], *, prefill: bool) -> list[Sidecar]:
    return [sidecar for sidecar in made if sidecar.is_prefill is prefill]


async def _ejected(world: World) -> int:
    """How many ejections there have been, for any cause."""
    return sum(count for count in (await world.state())["ejections"].values() if isinstance(count, int))


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_prefill_that_refuses_at_length_is_not_lost(chunked: bool, order: Order, make_world: MakeWorld) -> None:
    """Older vLLM repeats a wrong body in its error, up to 100 MB (vllm#49239). D gets the request whole."""
    world = await make_world(order, 2, 1, gateway=False)
    framing = b"transfer-encoding: chunked\r\n\r\n%x\r\n" if chunked else b"content-length: %d\r\n\r\n"
    async with sidecars(world) as made:
        for sidecar in _of(made, prefill=True):
            sidecar.answer = b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\n" + framing % len(LARGE) + LARGE
            sidecar.answer += b"\r\n0\r\n\r\n" if chunked else b""
        reply = await world.complete(prompt=PROMPT)
        assert (reply.status, reply.text) == (200, Shape().expected(prompt=PROMPT))
        assert sum(sidecar.asked for sidecar in _of(made, prefill=True)) == 1
        assert await world.outcomes() == {"whole": 1}
        assert not await _ejected(world)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_redirect_is_an_engines_failure(
    stream: bool, order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Its target is in the log, and not in the client's answer. Two engines get the request, as with any 5xx."""
    world = await make_world(order, 1, 2, gateway=False)
    async with sidecars(world) as made:
        for sidecar in _of(made, prefill=False):
            sidecar.answer = REDIRECT
        reply = await world.complete(Shape(stream=stream), prompt=PROMPT)
        assert (reply.status, "location" in reply.headers) == (502, False)
        assert reply.error["code"] == 502
        assert [sidecar.asked for sidecar in _of(made, prefill=False)] == [1, 1]
        assert not await _ejected(world)
    form = TextFormatter("%(message)s")
    (line,) = (form.format(record) for record in caplog.records if record.getMessage() == "request failed")
    assert INTERNAL in line


async def test_a_redirect_of_a_prefill_is_a_failure(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 1, gateway=False)
    async with sidecars(world) as made:
        for sidecar in _of(made, prefill=True):
            sidecar.answer = REDIRECT
        reply = await world.complete(prompt=PROMPT)
        assert (reply.status, reply.text) == (200, Shape().expected(prompt=PROMPT))
        assert sum(bool(sidecar.asked) for sidecar in _of(made, prefill=True)) == 1
        assert await world.outcomes() == {"whole": 1}


@pytest.mark.parametrize("status", [429, 503])
async def test_the_text_of_a_busy_sidecar_is_in_the_log(
    status: int, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the status and the time, in an error of the API."""
    world = await make_world(Order.PREFILL_FIRST, 0, 1, gateway=False)
    async with sidecars(world) as made:
        made[0].answer = answer_of(status, "text/plain", b"no healthy upstream", "retry-after: 2\r\n")
        reply = await world.complete(prompt=PROMPT)
        assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (status, status, "2")
        assert b"upstream" not in reply.raw
    form = TextFormatter("%(message)s")
    (line,) = (form.format(record) for record in caplog.records if record.getMessage() == "request failed")
    assert "no healthy upstream" in line
