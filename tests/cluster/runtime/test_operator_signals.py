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
WIDE = WORST[3]
"""An object of almost 256 KiB, the most that the operator plans."""


def code_after(operator: Operator, number: signal.Signals) -> int:
    """Send a signal; return the exit code of the operator, which must end soon, without a traceback."""
    operator.process.send_signal(number)
    try:
        code = operator.process.wait(SOON)
    except subprocess.TimeoutExpired:
        operator.kill()
        raise
    assert "Traceback" not in operator.text(), operator.text()
    return code


@pytest.mark.parametrize("number", SIGNALS)
def test_a_standby_ends(start_operator: StartOperator, namespace: str, number: signal.Signals) -> None:
    flags = ("--namespace", namespace, "--own-namespace", SYSTEM, "--lease-name", f"s-{namespace}"[:63].strip("-"))
    leader = start_operator(*flags)
    eventually(partial(leads, leader), what="a leader")
    assert code_after(start_operator(*flags), number) == 0
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
    assert code_after(operator, number) in (0, -number)  # the second before it listens to signals


@pytest.mark.parametrize("number", SIGNALS)
def test_it_ends_while_it_plans_large_objects(
    api: Api, start_operator: StartOperator, namespace: str, number: signal.Signals
) -> None:
    operator = start_operator()
    for each in range(6):
        kind, body = WIDE(each)
        api.create(kind, namespace, text_of(body))
    eventually(lambda: f"{namespace}/wide-" in operator.text(), what="a plan")
    assert code_after(operator, number) == 0
