"""Parses what gateways and engines answer. Pure. Except in `state_of`, a body that cannot be parsed counts as empty."""

import json
from typing import Any, Final

from pdx_api.names import Mode, Role
from pdx_api.vllm_metrics import read_metrics

STATE_PATH: Final = "/pdx/state"
"""On a gateway's admin port: its engines, and what it has served."""
ENGINE_PATHS: Final = ("/version", "/v1/models", "/metrics")
"""What a healthy engine is asked for."""


def state_of(found: Any) -> dict[str, Any]:
    """Return a gateway's state from the JSON at STATE_PATH; raises ValueError if it is not the state of a gateway."""
    counts, endpoints = ("inFlight", "outcomes"), found.get("endpoints") if isinstance(found, dict) else None
    if not isinstance(endpoints, list) or not all(map(_is_endpoint, endpoints)):
        raise ValueError("no list of endpoints")
    if found.get("mode") not in (None, *Mode) or not all(isinstance(found.get(each), dict) for each in counts):
        raise ValueError("no mode and counts of a gateway")
    state: dict[str, Any] = found
    return state


def _is_endpoint(found: Any) -> bool:
    """Whether it has the fields that every version of the gateway reports about an engine."""
    if not isinstance(found, dict) or found.get("role") not in list(Role) or not isinstance(found.get("inFlight"), int):
        return False
    return all(isinstance(found.get(each), str) for each in ("name", "url", "state"))


def engine_fields(version: bytes, models: bytes, metrics: bytes) -> dict[str, Any]:
    """Return what an engine answers at ENGINE_PATHS, as fields of `Engine`."""
    return {
        "version": version_of(version),
        "model": model_of(models),
        "names": names_of(models),
        "tokens": read_metrics(metrics).prompt_sources,
        "metrics": metrics.decode(errors="replace"),
    }


def version_of(body: bytes) -> str | None:
    """Return vLLM's version from /version."""
    found = parsed(body)
    return str(found["version"]) if "version" in found else None


def model_of(body: bytes) -> str | None:
    """Return the model string that the engine has loaded, from /v1/models."""
    cards = parsed(body).get("data")
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    return card.get("root") or card.get("id")


def names_of(body: bytes) -> tuple[str, ...]:
    """Return the names that clients may send as `model`, adapters included, from /v1/models."""
    cards = parsed(body).get("data")
    return tuple(str(card.get("id")) for card in cards if isinstance(card, dict)) if isinstance(cards, list) else ()


def parsed(body: bytes) -> dict[str, Any]:
    """Return a JSON object; empty for anything else."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
