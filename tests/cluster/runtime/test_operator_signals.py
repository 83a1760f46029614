"""SIGTERM and SIGINT end the operator soon, whatever it does. (Without an API server: see test_operator_faults.)"""

import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.charts.worst_objects import WORST, text_of
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import GRACE, SYSTEM, Api, Operator, eventually

pytestmark = pytest.mark.timeout(120)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SOON = GRACE / 2
LARGE = WORST[:6]
"""Plain, deep, large, wide and odd objects, and one with long metadata."""


def ends(operator: Operator, number: signal.Signals) -> bool:
    """Send a signal; return whether the operator ends soon, without an error."""
    operator.process.send_signal(number)
    try:
        return operator.process.wait(SOON) in (0, -number) and "Traceback" not in operator.text()
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.parametrize("number", SIGNALS)
def test_a_standby_ends(start_operator: StartOperator, namespace: str, number: signal.Signals) -> None:
    flags = ("--namespace", namespace, "--own-namespace", SYSTEM, "--lease-name", f"s-{namespace}"[:63].strip("-"))
    leader = start_operator(*flags)
    eventually(partial(leads, leader), what="a leader")
    assert ends(start_operator(*flags), number)
    assert leads(leader)


def leads(operator: Operator) -> bool:
    return "pdx_operator_leading 1.0" in operator.get("/metrics")[1]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("after", [0.1, 0.4, 0.7, 1.0, 1.5])
def test_it_ends_while_it_starts(
    identity: Path, namespace: str, tmp_path: Path, after: float, number: signal.Signals
) -> None:
    operator = Operator.start(identity, tmp_path, "--namespace", namespace)
    time.sleep(after)
    assert ends(operator, number), operator.text()


@pytest.mark.parametrize("number", SIGNALS)
def test_it_ends_while_it_plans_large_objects(
    api: Api, start_operator: StartOperator, namespace: str, number: signal.Signals
) -> None:
    operator = start_operator()
    for make in LARGE:
        kind, body = make(0)
        api.create(kind, namespace, text_of(body))
    assert ends(operator, number), operator.text()
