"""The models that engines report."""

import json
import pickle
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.models import ServedModel, latest, read_models, union
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.snapshot_frames import SnapshotFrames


def _page(*names: str, created: int = 1, **more: Any) -> bytes:
    cards = [
        {"id": name, "object": "model", "created": created, "permission": [{"id": created}], **more} for name in names
    ]
    return json.dumps({"object": "list", "data": cards}).encode()


def created(model: ServedModel) -> Any:
    return json.loads(model.card)["created"]


def test_a_model_is_equal_whenever_it_is_reported() -> None:
    before, after = read_models(_page("a", "b")), read_models(_page("a", "b", created=2))
    assert before is not None
    assert before == after
    assert after is not None
    kept = latest(before, after)
    assert [created(model) for model in kept] == [1, 1], "clients see when the model was first reported"
    other = read_models(_page("a", created=3, max_model_len=7))
    assert other is not None
    assert [created(model) for model in latest(kept, other)] == [3]
    assert other != before[:1]


@pytest.mark.parametrize(
    "page", [b"", b"{", b"[]", b"{}", b'{"data":[{}]}', b'{"data":[{"id":1}]}', b'{"data":7}', b'{"data":[7]}', b"\xff"]
)
def test_pages_that_are_none(page: bytes) -> None:
    assert read_models(page) is None


def test_models_reach_other_processes() -> None:
    models = read_models(_page("a", "sql"))
    assert models is not None
    spec = EndpointSpec(Address("h", 1), Role.DECODE)
    after = pickle.loads(pickle.dumps(Endpoint(spec, models=models)))
    assert after.models == models
    assert after.models[1].card == models[1].card
    assert replace(after, models=()) != after, "a change of the models is published"


def test_the_union_has_each_name_once() -> None:
    first, second = read_models(_page("a", "sql")), read_models(_page("a", "law", created=2))
    assert first is not None
    assert second is not None
    found = union([first, second, ()])
    assert list(found) == ["a", "sql", "law"]
    assert created(found["a"]) == 1


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


def card(member: str, name: str = "sim") -> bytes:
    return f'{{"data":[{{"id":{json.dumps(name)},"x":{member}}}]}}'.encode()


TAKEN = {
    "an integer above 64 bits": card("9" * 23),
    "a negative one": card("-" + "9" * 30),
    "a small number": card("1e-400"),
    "31 levels": card(nested(31)),
    "almost 64 KiB": card(json.dumps("a" * 65_000)),
    "a name with odd characters": card("1", "\u0000\u2028\U0001f600"),
    "an adapter with the same name twice": card("1")[:-2] + b"," + card("2")[9:],
    "1,000 models": json.dumps({"data": [{"id": str(number)} for number in range(1000)]}).encode(),
}
REFUSED = {
    "33 levels": card(nested(33)),
    "33 levels of objects": card(nested(33, '{"x":[', "]}")),
    "600 levels": card(nested(600)),
    "100,000 levels": card(nested(100_000)),
    "levels outside a model": nested(50_000).encode(),
    "more than 64 KiB": card(json.dumps("a" * 66_000)),
    "64 KiB of escapes": card(json.dumps("\x01" * 20_000)),
    "64 KiB of keys": card(json.dumps({str(number): number for number in range(10_000)})),
    "1,001 models": json.dumps({"data": [{"id": str(number)} for number in range(1001)]}).encode(),
    "a long name": card("1", "a" * 2000),
    "a lone surrogate": card(r'"\ud800"'),
    "a lone surrogate in the name": b'{"data":[{"id":"\\ud800"}]}',
    "no UTF-8": b'{"data":[{"id":"\xff"}]}',
    "NaN": card("NaN"),
    "a number without end": card("1" * 5_000_000),
    "an object as the list": b'{"data":{"id":{"id":"a"}}}',
    "a text as the list": b'{"data":"abc"}',
    "a page of 5 MiB": b'{"data":[],"x":"' + b"a" * (5 << 20) + b'"}',
}


@pytest.mark.parametrize("kind", TAKEN)
def test_whatever_is_read_is_sent_to_workers_and_clients(kind: str) -> None:
    models = read_models(TAKEN[kind])
    assert models
    for model in models:
        assert orjson.loads(model.card)["id"] == model.name
    frames = SnapshotFrames()
    frames.put(Snapshot.of([Endpoint(EndpointSpec(Address("h", 1), Role.DECODE), models=models)]))
    (changed,) = pickle.loads(frames.since(frames.none)[4:]).changed
    assert changed.models == models


@pytest.mark.parametrize("kind", REFUSED)
def test_pages_beyond_a_bound_are_none(kind: str) -> None:
    assert read_models(REFUSED[kind]) is None
