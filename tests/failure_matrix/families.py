"""The rows of docs/failures.md for one family, each with a test of its own: pools, and Mooncake's transfers."""

from collections.abc import Iterator
from typing import Any, Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.row import (
    MOONCAKE_ALL,
    MOONCAKE_D_WAITS,
    MOONCAKE_P_FIRST,
    POOL,
    STREAM,
    Client,
    Phase,
    Row,
    Wiring,
)

_LEFT: Final = {Outcome.CLIENT_LEFT: 1}
_GONE: Final = "nothing: it has left"
_POOL_TEST: Final = "component/handoff/test_pool.py::test_"
_TRANSFERS_TEST: Final = "component/handoff/test_mooncake_transfers.py::test_"
_MOONCAKE: Final = "component/handoff/test_mooncake.py::test_"
_LOST: Final = {Settlement.DECODE_LOST: 1}


def _pool() -> Iterator[Row]:
    """Clients and engines while KV moves through a pool."""
    leaves = "the client leaves"
    for id_, phase, what, test, settled, engines in (
        (
            "prefill",
            Phase.PREFILL,
            f"{leaves}; P may be stopped",
            "a_client_that_leaves_stops_prefill[{shape}]",
            {Settlement.PREFILL_STOPPED: 1},
            "P is closed and stops; D nothing",
        ),
        (
            "unstoppable-prefill",
            Phase.PREFILL,
            f"{leaves}; P may not be stopped (LMCache)",
            "a_prefill_that_may_not_be_stopped_finishes[{shape}]",
            {Settlement.FINISHED: 1},
            "P finishes and saves; D nothing",
        ),
        ("decode", Phase.DECODE, leaves, "a_client_that_leaves_stops_decode[{shape}]", {}, "D is closed and stops"),
    ):
        yield Row(
            f"left-{id_}-pool",
            phase,
            what,
            _GONE,
            _LEFT,
            settled=settled,
            orders=POOL,
            engines=engines,
            test=_POOL_TEST + test,
        )
    yield Row(
        "left-answer-pool",
        Phase.ANSWER,
        leaves,
        _GONE,
        _LEFT,
        streams=STREAM,
        orders=POOL,
        engines="D is closed and stops",
        test=_POOL_TEST + "a_client_that_leaves_a_stream_ends_it",
    )
    for id_, phase, text, test, engines in (
        (
            "miss",
            Phase.DECODE,
            "D does not find what P saved",
            "what_is_not_found_is_computed[{shape}]",
            "one leg each; D computes the prompt, which its own metrics count",
        ),
        (
            "service-gone",
            Phase.PREFILL,
            "what keeps the pool is gone, for P and D alike",
            "a_pool_that_is_gone_costs_a_prefill[{shape}]",
            "one leg each; D computes the prompt. When it is back it is used again",
        ),
        (
            "deleted-decode-pool",
            Phase.PREFILL,
            "D is deleted; there is another",
            "a_decode_that_leaves_during_the_prefill_gets_no_leg[{shape}]",
            "the other D gets the leg",
        ),
    ):
        yield Row(
            id_, phase, text, Client.RIGHT, {Outcome.SPLIT: 1}, orders=POOL, engines=engines, test=_POOL_TEST + test
        )
    lost: dict[str, Any] = {"orders": POOL, "retries": {Reason.LOST: 1}, "outcomes": {Outcome.SPLIT: 1}}
    yield Row(
        "prefill-killed-pool",
        Phase.PREFILL,
        "P dies for good amid its save; there is another",
        Client.RIGHT,
        engines="with a server, no D finds KV that is half saved; the other P computes",
        test=_POOL_TEST + "a_prefill_that_dies_amid_its_save[{shape}]",
        **lost,
    )
    yield Row(
        "decode-killed-pool",
        Phase.DECODE,
        "D dies for good while it loads; there is another",
        Client.RIGHT,
        engines="P gets the request again, and finds its KV; the other D loads it",
        test=_POOL_TEST + "a_decode_that_dies_while_it_loads[{shape}]",
        **lost,
    )


def _leaves() -> Iterator[Row]:
    """A client leaves while KV moves through Mooncake."""
    ended = (Settlement.FINISHED, Settlement.RELEASED)
    for id_, phase, orders, settled, engines, test in (
        (
            "prefill-first",
            Phase.PREFILL,
            MOONCAKE_P_FIRST,
            {Settlement.PREFILL_STOPPED: 1},
            "P is closed after 1 s, unless it finishes before; D nothing",
            "while_prefill_computes",
        ),
        (
            "prefill-waits",
            Phase.PREFILL,
            MOONCAKE_D_WAITS,
            {Settlement.FINISHED: 1},
            "P finishes; then D is closed",
            "while_prefill_computes",
        ),
        (
            "between",
            Phase.BETWEEN,
            MOONCAKE_P_FIRST,
            {Settlement.RELEASED: 1},
            "D refuses a leg, whereupon P frees its blocks",
            "between_the_legs",
        ),
        ("decode", Phase.DECODE, MOONCAKE_ALL, ended, "D is closed; nothing stays held", "while_decode_waits"),
        ("answer", Phase.ANSWER, MOONCAKE_ALL, {}, "D is closed and stops", "an_answer"),
    ):
        left = f"{_TRANSFERS_TEST}a_client_that_leaves_{test}[{{order}}]"
        yield _mooncake(f"left-{id_}", phase, "the client leaves", _GONE, _LEFT, left, engines, orders, settled=settled)


def _engines_go() -> Iterator[Row]:
    """An engine is lost for good, is full, or has restarted unnoticed."""
    whole, split, right = {Outcome.WHOLE: 1}, {Outcome.SPLIT: 1}, Client.RIGHT
    lost: dict[str, Any] = {"retries": {Reason.LOST: 1}}
    yield _mooncake(
        "prefill-killed",
        Phase.PREFILL,
        "P dies for good while D waits",
        right,
        whole,
        _TRANSFERS_TEST + "a_prefill_that_dies_while_decode_waits[{order}]",
        "D is closed and keeps blocks until its time-out; D whole 1",
        MOONCAKE_D_WAITS,
        settled=_LOST,
        **lost,
    )
    yield _mooncake(
        "prefill-killed-late",
        Phase.DECODE,
        "P dies behind its answer, its write under way",
        right,
        whole,
        _TRANSFERS_TEST + "a_prefill_that_dies_behind_its_answer[{order}]",
        "D is closed and keeps blocks until its time-out; D whole 1",
        settled=_LOST,
        **lost,
    )
    yield _mooncake(
        "decode-killed",
        Phase.DECODE,
        "D dies for good while it waits; there is another",
        right,
        split,
        _TRANSFERS_TEST + "a_decode_that_dies_while_it_waits[{order}]",
        "P's finished blocks are freed through the other D, which then serves with P",
        settled=(Settlement.RELEASED, Settlement.FINISHED, Settlement.LEASE, Settlement.DECODE_LOST, None),
        **lost,
    )
    yield _mooncake(
        "prefill-full-queued",
        Phase.PREFILL,
        "P answers 503 twice, and D only queues its leg",
        right,
        whole,
        _MOONCAKE + "a_full_p_whose_d_only_queues_keeps_no_place[{plain}-{shape}]",
        "D's leg is closed; a leg under the ID frees P's place; D whole 1",
        MOONCAKE_D_WAITS,
        settled={Settlement.FINISHED: 1},
        retries={Reason.STATUS: 1},
    )
    yield _mooncake(
        "bootstrap-silent",
        Phase.QUEUE,
        "P's bootstrap stops answering, and a new connection to P is opened",
        right,
        split,
        _TRANSFERS_TEST + "a_bootstrap_that_stops_answering[{order}]",
        "P nothing: it may have restarted since its warm-up; another P is selected",
        retries={Reason.CONNECT: 1},
    )
    yield _mooncake(
        "no-bootstrap",
        Phase.QUEUE,
        "P's bootstrap has never answered",
        right,
        whole,
        _MOONCAKE + "a_p_without_a_bootstrap_is_not_picked[{plain}]",
        "D whole 1",
    )
    yield _mooncake(
        "prefill-restarted",
        Phase.QUEUE,
        "P has restarted since its warm-up",
        right,
        whole,
        _MOONCAKE + "p_is_recognised_on_a_new_connection[{plain}]",
        "D whole 1: no D gets the old P's identity",
        **lost,
    )


def _mooncake(
    id_: str,
    phase: Phase,
    fails: str,
    client: Client | str,
    outcomes: dict[Outcome, int],
    test: str,
    engines: str,
    orders: tuple[Wiring, ...] = MOONCAKE_ALL,
    **more: Any,
) -> Row:
    return Row(
        f"mooncake-{id_}",
        phase,
        fails,
        client,
        outcomes,
        engines=engines,
        orders=orders,
        alternate=True,
        test=test,
        **more,
    )


def family_scenarios() -> tuple[Row, ...]:
    """The rows that have tests of their own."""
    return (*_pool(), *_leaves(), *_engines_go())
