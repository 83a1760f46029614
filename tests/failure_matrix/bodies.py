"""The rows of docs/failures.md about large bodies and about values that vLLM refuses."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.telemetry.counters import Outcome
from tests.failure_matrix.row import Client, Phase, Row

_LARGE: Final = "component/http/test_large_bodies.py::test_"


def rows() -> Iterator[Row]:
    """Bodies that would cost the gateway or an engine too much."""
    for id_, text, client, outcome, engines, test in (
        (
            "hostile",
            "a large body is truncated, too deep, or has too many members, arrays or objects",
            "400 in vLLM's shape",
            Outcome.REFUSED,
            "nothing",
            f"{_LARGE}hostile_large_bodies[fast]",
        ),
        (
            "slices",
            "a large body is read. Other requests are answered between two slices of it",
            Client.RIGHT,
            Outcome.SPLIT,
            "the same body",
            f"{_LARGE}other_requests_are_answered_between_slices[served]",
        ),
        (
            "refused-value",
            "`stream`, `n` or another deciding member has a value that vLLM refuses",
            Client.REFUSED,
            Outcome.REFUSED_BY_ENGINE,
            "one D gets the whole request, without a stream's deadlines",
            f"{_LARGE}what_vllm_refuses_goes_whole_to_one_engine",
        ),
    ):
        yield Row(f"body-{id_}", Phase.QUEUE, text, client, {outcome: 1}, engines=engines, test=test)
