"""Mutations of what /v1/messages and /v1/responses need, and of legs that are sent once."""

from typing import Final

from tests.mutations.mutation import Mutation

_AGENTS: Final = "component/serving/test_agents.py::test_"
_ROW: Final = "component/handoff/test_failures.py::test_row"

MUTATIONS: Final = (
    Mutation(
        "D gets parameters twice over a closed idle connection",
        "handoff/legs.py",
        "once=params is not None",
        "once=False",
        f"{_ROW}[decode-stale-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "in a push, too",
        "handoff/push_legs.py",
        "once=True",
        "once=False",
        f"{_ROW}[decode-stale-push-Concurrent-whole-Retry]",
    ),
    Mutation(
        "D waits for a P that may stop",
        "handoff/push_legs.py",
        "return Order.PREFILL_FIRST if first else",
        "return Order.PREFILL_FIRST if False else",
        f"{_AGENTS}a_prefill_that_stops_at_its_first_token[Mooncake-DecodeFirst-whole]",
    ),
    Mutation(
        "a P that stopped counts as failed",
        "engines/transfer_params.py",
        "if api.may_stop:",
        "if False:",
        f"{_AGENTS}a_prefill_that_stops_at_its_first_token[Mooncake-PrefillFirst-stream]",
    ),
    Mutation(
        "a message that forces a tool is split",
        "payload/decisions.py",
        "splits = choice is None or not forces_tool(choice)",
        "splits = True",
        f"{_AGENTS}a_message_that_forces_a_tool_is_whole[whole]",
    ),
    Mutation(
        "a long announcement begins an answer",
        "payload/first_event.py",
        "_REPEATED: Final = 3",
        "_REPEATED: Final = 0",
        f"{_AGENTS}a_failed_load_of_a_long_response_is_retried",
    ),
    Mutation(
        "an aborted message is an answer",
        "payload/first_event.py",
        "return content.find(_STOP_REASON) < 0",
        "return False",
        f"{_AGENTS}an_aborted_answer_is_not_the_clients[messages-whole]",
    ),
    Mutation(
        "an aborted response is an answer",
        "payload/first_event.py",
        'return name == b"response.completed" and _completes_without_token(event)',
        "return False",
        f"{_AGENTS}an_aborted_answer_is_not_the_clients[responses-stream]",
    ),
)
