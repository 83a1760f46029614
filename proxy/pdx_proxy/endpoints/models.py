"""The models that engines report, and what clients receive as `/v1/models`. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

_VARYING: Final = ("created", "permission")
"""Members of a model that vLLM makes anew for every answer (entrypoints/serve/engine/protocol.py, ModelCard)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or a LoRA adapter, as an engine reports it."""

    name: str
    """What clients send as `model`."""
    facts: bytes
    """Its members that stay the same, as JSON: equal facts are an equal model."""
    card: dict[str, Any] = field(compare=False)
    """All members."""


def read_models(page: bytes) -> tuple[ServedModel, ...] | None:
    """Return the models of an engine's `/v1/models`; None for a page that is none."""
    try:
        cards = msgspec.json.decode(page)["data"]
        return tuple(_model(card) for card in cards)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, KeyError, TypeError):
        return None


def _model(card: dict[str, Any]) -> ServedModel:
    name = card["id"]
    if not isinstance(name, str):
        raise TypeError(name)
    facts = {key: value for key, value in card.items() if key not in _VARYING}
    return ServedModel(name, msgspec.json.encode(facts, order="deterministic"), card)


def latest(before: Sequence[ServedModel], reported: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Return the models that are reported; as they were before where nothing but the varying members has changed."""
    former = {model.name: model for model in before}
    return tuple(former[each.name] if former.get(each.name) == each else each for each in reported)


def union(groups: Iterable[Sequence[ServedModel]]) -> dict[str, ServedModel]:
    """Return the models of several engines by name, each as the first engine reports it."""
    found: dict[str, ServedModel] = {}
    for models in groups:
        for model in models:
            found.setdefault(model.name, model)
    return found
