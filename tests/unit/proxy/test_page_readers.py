"""Every reader of what engines send, with generated pages: no exception but its own, values in range, little CPU.

A thousand pages for each reader, and a hundred thousand in `make soak`. Each page has a number, which a failure names;
with the environment variable FIRST_PAGE=n, a run begins there.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, cast

import orjson
import pytest

from pdx_api.connectors.families import MOST_CHARACTERS, MOST_DEVICES
from pdx_api.connectors.mooncake import _identity
from pdx_api.names import Role
from pdx_api.vllm_metrics import MOST, MOST_BYTES, read_ranks, read_waiting
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.models import read_models, union
from pdx_proxy.endpoints.version import read_version
from pdx_proxy.engines.probe import error_text, read_pause
from pdx_proxy.engines.transfer_params import LegRefused, transfer_params
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import BadAnswer
from pdx_proxy.http.upstream.retry_after import LONGEST_SECONDS, retry_after
from pdx_proxy.payload.apis import APIS
from pdx_proxy.payload.error_event import error_of
from pdx_proxy.payload.first_event import is_open
from pdx_proxy.serving.stream_end import Break, error_events, stream_end
from pdx_proxy.telemetry.spans import _usage_attributes
from pdx_proxy.verification.diagnosis import read_facts
from pdx_proxy.verification.verdict import judge, read_answer
from tests.random_answers import random_event, random_header, random_json, random_stream, random_wire
from tests.random_pages import random_page

SHORT: Final = 1_000
LONG: Final = 100_000
FIRST: Final = int(os.environ.get("FIRST_PAGE", "0"))
MOST_CPU: Final = 5.0
"""Seconds of CPU for one page. The largest pages take up to 1 s; a reader that is quadratic takes minutes."""
PATHS: Final = tuple(APIS)
CARD: Final = {"id": "sim", "object": "model", "created": 1, "root": "sim", "max_model_len": 4096, "permission": [{}]}
P: Final = Endpoint(EndpointSpec(Address("127.0.0.1", 1), Role.PREFILL), State.WARM, generation=1)


def metrics(rng: random.Random) -> None:
    page = random_page(rng)
    read_waiting(page)
    for report in read_ranks(page, (None, 0, 1, 77)):
        for name, value in asdict(report).items():
            if isinstance(value, int | float):
                assert 0 <= value <= (MOST_BYTES if name == "transfer_bytes" else MOST), name


def models(rng: random.Random) -> None:
    page = random_json(rng, {"object": "list", "data": [CARD] * rng.randrange(1, 4)})
    found = read_models(page)
    for model in found or ():
        assert len(model.card) <= 64 << 10
        assert orjson.loads(model.card)["id"] == model.name
        model.name.encode()
    assert len(union([found or ()])) <= 1000


def version(rng: random.Random) -> None:
    facts = read_facts(random_json(rng, {"version": "0.32.0"}), random_json(rng, {"data": [CARD]}), random_page(rng))
    assert facts.version is None or isinstance(facts.version, str)
    assert facts.model is None or isinstance(facts.model, str)
    assert len(read_version(random_json(rng, {"version": "0.32.0"}))) <= 64


def error_events_of_streams(rng: random.Random) -> None:
    name, data = random_event(rng)
    error = error_of(name, data)
    if error is not None:
        assert 400 <= error.status <= 599
        if error.status < 500:  # the event itself is relayed
            assert not error.body
        else:
            orjson.loads(error.body)
            for path in PATHS:
                assert error_events(path, error.status, error.body).endswith(b"\n\n")
    last = b"event: " + name + b"\ndata: " + data + b"\n\n"
    for path in PATHS:
        assert error_events(path, rng.choice((400, 429, 500, 503)), data).endswith(b"\n\n")
        assert stream_end(path, last, Break(500, "lost", "X")).endswith(b"\n\n")


def errors_of_pages(rng: random.Random) -> None:
    text = error_text(random_json(rng, {"error": {"message": "m", "type": "x", "code": 500}}))
    assert len(text) <= 1000
    text.encode()


def retry_afters(rng: random.Random) -> None:
    answer = Answer()
    answer.status = rng.choice((429, 503, 200, 500))
    answer.headers = [(b"retry-after", random_header(rng)), (b"date", random_header(rng))]
    seconds = retry_after(answer)
    assert 0.0 <= seconds <= LONGEST_SECONDS


def prefill_answers(rng: random.Random) -> None:
    answer, path = Answer(), rng.choice(PATHS)
    answer.status, answer.complete = rng.choice((200, 200, 200, 201, 400, 500)), True
    choice = {"index": 0, "text": "a", "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "output_tokens": 1}
    params = {"do_remote_prefill": True, "remote_port": 1, "remote_block_ids": [[1, 2]], "remote_host": "h"}
    answer.add(
        random_json(rng, {"choices": [choice], "stop_reason": "x", "usage": usage, "kv_transfer_params": params})
    )
    try:
        found = transfer_params(P, answer, APIS[path])
    except (LegRefused, BadAnswer):
        return
    assert found is None or isinstance(found, dict)


def first_events(rng: random.Random) -> None:
    answer, path, body = Answer(), rng.choice(PATHS), random_stream(rng)
    answer.status, answer.chunked, answer.framed = 200, True, True
    answer.headers = [(b"content-type", b"text/event-stream")]
    failure: BadAnswer | None = None
    view = memoryview(body)
    while answer.size < len(body):
        piece = bytes(view[answer.size : answer.size + rng.choice((1, 7, 100, 5000))])
        answer.add(piece)
        answer.size += len(piece)
        answer.complete = answer.size == len(body) and rng.random() < 0.5
        try:
            is_open(P.name, answer, path, rng.randrange(10_000))
            while answer.unread:
                is_open(P.name, answer, path, 10)
        except BadAnswer as found:
            failure = found
            break
    assert failure is None or 400 <= failure.status <= 599


class Transport:
    """A transport that takes all and sends nothing."""

    def __init__(self) -> None:
        self.closed = False
        self.sock = socket.socket()

    def get_extra_info(self, _: str) -> socket.socket:
        return self.sock

    def write(self, data: bytes) -> None:
        """Takes it."""

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    close = abort


def heads_and_chunks(rng: random.Random) -> None:
    transport, wire = Transport(), random_wire(rng)
    connection = Connection(P.name, asyncio.get_running_loop())
    try:
        connection.connection_made(cast("Any", transport))
        connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
        sent = 0
        while sent < len(wire) and not transport.closed:
            size = rng.choice((1, 50, 5000, 300_000))
            connection.data_received(wire[sent : sent + size])
            sent += size
            answer = connection.answer
            assert len(answer.content) + sum(map(len, answer.raw)) <= 2 * sent + (64 << 10)
        answer = connection.answer
        assert connection.lost is not None or not answer.status or 200 <= answer.status <= 999
        connection.connection_lost(None)
    finally:
        transport.sock.close()


PROBED: Final = {
    "usage": {"prompt_tokens": 300, "prompt_tokens_details": {"cached_tokens": 299}},
    "choices": [{"text": "a b", "logprobs": {"tokens": ["a", "b"], "top_logprobs": [{"a": -0.5, "c": -1.5}] * 2}}],
}


def probe_answers(rng: random.Random) -> None:
    answers = [read_answer(random_json(rng, PROBED)) for _ in range(2)]
    for split in answers:
        for alone in answers:
            if split is not None:
                judge(split, alone)


def pauses(rng: random.Random) -> None:
    read_pause(random_json(rng, {"is_paused": True}))


REGISTERED: Final = {"0": {"engine_id": "e", "worker_addr": {"0": {"0": "tcp://10.0.0.1:1"}, "1": {"0": "tcp://a:2"}}}}


def identities(rng: random.Random) -> None:
    try:
        identity = _identity(orjson.loads(random_json(rng, REGISTERED)), "10.0.0.1", 8998, 0)
    except (LookupError, TypeError, ValueError):
        return
    assert 0 < len(identity.engine_id) <= MOST_CHARACTERS
    assert 1 <= identity.tensor_parallel <= MOST_DEVICES
    assert 1 <= identity.pipeline_parallel <= MOST_DEVICES


def usages(rng: random.Random) -> None:
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}}
    page = random_json(rng, usage)
    for value in _usage_attributes(page[rng.randrange(len(page) + 1) :]).values():
        assert type(value) is int
        assert value >= 0


READERS: Final[tuple[Callable[[random.Random], None], ...]] = (
    *(metrics, models, version, error_events_of_streams, errors_of_pages, retry_afters, prefill_answers),
    *(first_events, heads_and_chunks, probe_answers, pauses, identities, usages),
)
SOAK: Final = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("pages", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=SOAK)])
async def test_generated_pages(reader: Callable[[random.Random], None], pages: int) -> None:
    for number in range(FIRST, pages):
        began = time.thread_time()
        try:
            reader(random.Random(f"{reader.__name__} {number}"))
        except Exception as error:
            error.add_note(f"FIRST_PAGE={number} repeats this")
            raise
        assert time.thread_time() - began < MOST_CPU, f"FIRST_PAGE={number} repeats this"
