"""The rows of docs/failures.md about /v1/messages and /v1/responses."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.row import MOONCAKE_ALL, PULL, STREAM, Client, Phase, Row

_AGENTS: Final = "component/serving/test_agents.py::test_"
_FREED: Final = (Settlement.RELEASED, Settlement.LEASE)


def agent_rows() -> Iterator[Row]:
    """What these APIs alone show, and what they do not show."""
    yield Row(
        "message-stops",
        Phase.PREFILL,
        "P's one token of a message is a stop token: Mooncake hands nothing over",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        settled={Settlement.PREFILL_STOPPED: 1},
        orders=MOONCAKE_ALL,
        engines="P 1, before D in every order; D whole 1",
        counters="`pdx_local_prefills_total` no_kv 1",
        test=f"{_AGENTS}a_prefill_that_stops_at_its_first_token[{{order}}-{{stream}}]",
    )
    yield Row(
        "message-forces-tool",
        Phase.QUEUE,
        "a message forces a tool: vLLM may parse P's one token as JSON and answer 400 after the prefill",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        orders=PULL,
        engines="P nothing; D whole 1",
        counters="`pdx_not_split_total` parameters 1",
        test=f"{_AGENTS}a_message_that_forces_a_tool_is_whole[{{stream}}]",
    )
    for agent, text in (("messages", "message without a stop reason"), ("responses", "response without a token")):
        yield Row(
            f"aborted-{agent}",
            Phase.DECODE,
            f"D, which shuts down, answers a {text}; another D does not",
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            {Reason.ABORT: 1},
            settled=_FREED,
            orders=PULL,
            engines="P 2, D 2",
            test=f"{_AGENTS}an_aborted_answer_is_not_the_clients[{agent}-{{stream}}]",
        )
    yield Row(
        "response-load-fails",
        Phase.DECODE,
        "D could not load the KV of a streamed response: vLLM closes the connection behind `response.in_progress`",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.LOST: 1},
        settled=_FREED,
        orders=PULL,
        streams=STREAM,
        engines="P 2, D 2",
        test=f"{_AGENTS}a_failed_load_of_a_response_is_retried",
    )
    yield Row(
        "response-load-fails-long",
        Phase.DECODE,
        "the same with instructions and tools above 1 MiB, which vLLM repeats before its engine has the request",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.LOST: 1},
        settled=_FREED,
        orders=PULL,
        streams=STREAM,
        engines="P 2, D 2",
        test=f"{_AGENTS}a_failed_load_of_a_long_response_is_retried",
    )
