"""What engines answer, read: pure. An answer that cannot be read says nothing."""

import json
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from pdx_cli.local.evidence import COMPUTED, COUNTER, EXTERNAL
from pdx_cli.sources.picture import Tokens

CANARY_PATH: Final = "/pdx/canary"
"""On a gateway's admin port: what its canaries have shown of each pair."""


def version_of(body: bytes) -> str | None:
    """vLLM's version, of /version."""
    found = parsed(body)
    return str(found["version"]) if "version" in found else None


def model_of(body: bytes) -> str | None:
    """The model string that an engine has loaded, of /v1/models."""
    cards = parsed(body).get("data")
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    return card.get("root") or card.get("id")


def tokens_of(page: bytes) -> Tokens | None:
    """Prompt tokens by where they came from, of /metrics."""
    counts: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(page.decode(errors="replace")):
            for sample in family.samples:
                if sample.name == COUNTER:
                    source = sample.labels.get("source", "")
                    counts[source] = counts.get(source, 0.0) + sample.value
    except ValueError:
        return None
    return Tokens(sum(counts.values()), counts.get(EXTERNAL, 0.0), counts.get(COMPUTED, 0.0)) if counts else None


def parsed(body: bytes) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
