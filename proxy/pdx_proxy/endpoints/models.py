"""The models that engines report, and what clients receive as `/v1/models`. Pure.

A page is untrusted. Its models are checked when they are read, and kept as bytes that are sent as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

_MOST_MODELS: Final = 1000
"""Models of one engine, LoRA adapters included."""
_PAGE_BYTES: Final = 4 * 1024 * 1024
_CARD_BYTES: Final = 64 * 1024
"""Bytes of one model. vLLM's has about 500."""
_NAME_CHARACTERS: Final = 1024
_DEEPEST: Final = 32
"""Objects and arrays within each other, in one model."""
_VARYING: Final = ("created", "permission")
"""Members of a model that vLLM makes anew for every answer (entrypoints/serve/engine/protocol.py, ModelCard)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or a LoRA adapter, as an engine reports it."""

    name: str
    """What clients send as `model`."""
    facts: bytes
    """Its members that stay the same, as JSON: equal facts are an equal model."""
    longest: int = field(compare=False)
    """The most tokens of a prompt and its answer; 0: not reported."""
    card: bytes = field(compare=False)
    """All members, as a JSON object."""


def read_models(page: bytes) -> tuple[ServedModel, ...] | None:
    """Return the models of an engine's `/v1/models`; None for a page that is none, or that exceeds a bound."""
    if len(page) > _PAGE_BYTES:
        return None
    try:
        cards = orjson.loads(page)["data"]
        if not isinstance(cards, list) or len(cards) > _MOST_MODELS:
            return None
        return tuple(map(_model, cards))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _model(card: dict[str, Any]) -> ServedModel:
    """Return a model; raises ValueError, KeyError, TypeError or AttributeError for what is none."""
    name = card["id"]
    if not isinstance(name, str):
        raise TypeError(name)
    if len(name) > _NAME_CHARACTERS or _is_deeper(card, _DEEPEST):
        raise ValueError(name[:_NAME_CHARACTERS])
    facts = {key: value for key, value in card.items() if key not in _VARYING}
    text = orjson.dumps(card)
    if len(text) > _CARD_BYTES:
        raise ValueError(name)
    longest = card.get("max_model_len")
    longest = longest if type(longest) is int and longest > 0 else 0
    return ServedModel(name, orjson.dumps(facts, option=orjson.OPT_SORT_KEYS), longest, text)


def _is_deeper(value: object, levels: int) -> bool:
    """Whether objects and arrays within a value are nested deeper than this."""
    if not isinstance(value, dict | list):
        return False
    if not levels:
        return True
    return any(_is_deeper(part, levels - 1) for part in (value.values() if isinstance(value, dict) else value))


def latest(before: Sequence[ServedModel], reported: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Return the models that are reported; as they were before where nothing but the varying members has changed."""
    former = {model.name: model for model in before}
    return tuple(former[model.name] if former.get(model.name) == model else model for model in reported)


def union(groups: Iterable[Sequence[ServedModel]]) -> dict[str, ServedModel]:
    """Return the models of several engines by name, each as the first engine reports it."""
    found: dict[str, ServedModel] = {}
    for models in groups:
        for model in models:
            found.setdefault(model.name, model)
    return found
