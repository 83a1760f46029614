"""The models that engines report."""

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.models import latest, read_models, union


def _page(*names: str, created: int = 1, **more: Any) -> bytes:
    cards = [
        {"id": name, "object": "model", "created": created, "permission": [{"id": created}], **more} for name in names
    ]
    return json.dumps({"object": "list", "data": cards}).encode()


def test_a_model_is_equal_whenever_it_is_reported() -> None:
    before, after = read_models(_page("a", "b")), read_models(_page("a", "b", created=2))
    assert before is not None
    assert before == after
    assert after is not None
    kept = latest(before, after)
    assert [each.card["created"] for each in kept] == [1, 1], "clients see when the model was first reported"
    other = read_models(_page("a", created=3, max_model_len=7))
    assert other is not None
    assert [each.card["created"] for each in latest(kept, other)] == [3]
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
    assert found["a"].card["created"] == 1
