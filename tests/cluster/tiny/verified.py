"""Breaks the KV transfer in several ways, repairs it, and checks KVTransferVerified and `pdx doctor`."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors.nixl import SIDE_CHANNEL_PORT
from pdx_api.names import ConditionType, Role
from pdx_api.verification import Cause
from pdx_cluster.errors import ClusterError
from tests.cluster.tiny import breaks, objects
from tests.cluster.tiny.scene import Scene

WITHIN_SECONDS: Final = 60.0
"""Limit from a break, or from when the replaced engine is Ready, to the condition."""
_REPAIR_SECONDS: Final = 240.0
_CONDITION: Final = ConditionType.KV_TRANSFER_VERIFIED


@dataclass(frozen=True, slots=True)
class Break:
    """One way to break the KV transfer."""

    what: str
    made: Callable[[Scene], AbstractContextManager[None]]
    """In force in its context."""
    causes: tuple[Cause, ...]
    """Causes that are correct."""
    before: Role | None = None
    """Role whose engine is replaced so that the break takes effect."""
    after: Role | None = None
    """Role whose engine is replaced so that the repair takes effect."""


MODEL: Final = Break(
    "D started with another model string",
    lambda scene: breaks.rewritten_pods(scene, Role.DECODE, breaks.OTHER_MODEL),
    (Cause.MODEL,),
    before=Role.DECODE,
    after=Role.DECODE,
)
CONNECTOR: Final = Break(
    "P started without its connector",
    lambda scene: breaks.rewritten_pods(scene, Role.PREFILL, breaks.NO_CONNECTOR),
    (Cause.NO_CONNECTOR,),
    before=Role.PREFILL,
    after=Role.PREFILL,
)
SIDE_CHANNEL: Final = Break(
    "P's side channel blocked, and D replaced",  # after the handshake, D does not need it again
    lambda scene: breaks.blocked_ports(scene, Role.PREFILL, "--destination-port", str(SIDE_CHANNEL_PORT)),
    (Cause.PORTS, Cause.HANDOFF),  # with onLoadFailure Fail, D answers an error
    before=Role.DECODE,
)
EVERY_PORT: Final = Break(
    "every port of P but the API's blocked, under a pair that works",
    lambda scene: breaks.blocked_ports(scene, Role.PREFILL, "!", "--destination-port", "8000"),
    (Cause.PORTS, Cause.HANDOFF, Cause.TRANSFER),
    after=Role.DECODE,  # NIXL does not restore a connection that it has lost
)
BREAKS: Final = (EVERY_PORT, SIDE_CHANNEL, MODEL, CONNECTOR)


def wait_until_verified(scene: Scene) -> float:
    """Wait for the condition, and return the seconds that it took."""
    began = time.monotonic()
    _wait(scene, "True", _REPAIR_SECONDS)
    return time.monotonic() - began


def wait_until_broken(scene: Scene) -> str:
    """Wait until the condition reports that KV does not move; return its message."""
    _wait(scene, "False", WITHIN_SECONDS)
    return str(_condition(scene)["message"])


def break_only(scene: Scene, way: Break) -> str:
    """Check that condition and doctor report the break; return one line with the time. The break ends with it."""
    with way.made(scene):
        if way.before is not None:
            breaks.replace_engine(scene, way.before)
        began = time.monotonic()
        _wait(scene, "False", WITHIN_SECONDS)
        to_false = time.monotonic() - began
        condition = _condition(scene)
        _check_doctor(scene, way)
    if condition["reason"] not in way.causes:
        raise ClusterError(f"{way.what}: the condition reports {condition['reason']}: {condition['message']}")
    since = "the engine was Ready" if way.before is not None else "the break"
    return f"{way.what}: False {to_false:.0f} s after {since} ({condition['reason']})"


def break_and_repair(scene: Scene, way: Break) -> str:
    """Check that condition and doctor report the break, and then the repair; return one line with the times."""
    broken = break_only(scene, way)
    if way.after is not None:
        breaks.replace_engine(scene, way.after)
    to_true = wait_until_verified(scene)
    _wait_until_healthy(scene)
    return f"{broken}; repaired: True after {to_true:.0f} s"


def _wait(scene: Scene, status: str, seconds: float) -> None:
    """Run `kubectl wait`; raises ClusterError with the condition when the time runs out."""
    limit = f"--timeout={seconds:.0f}s"
    try:
        scene.kubectl(
            "wait", f"--for=condition={_CONDITION}={status}", f"pdd/{scene.name}", limit, seconds=seconds + 30
        )
    except ClusterError as error:
        raise ClusterError(f"{error}: {_condition(scene)}\n{scene.kubectl('get', 'pods', '-o', 'wide')}") from error


def _condition(scene: Scene) -> dict[str, Any]:
    return dict(scene.conditions()[_CONDITION])


def _check_doctor(scene: Scene, way: Break) -> None:
    code, found = doctor(scene)
    named = {finding["cause"] for finding in found["findings"] if finding["severity"] == "wrong"}
    if code != 1 or not named & set(way.causes):
        raise ClusterError(f"{way.what}: `pdx doctor` ends with {code} and prints {json.dumps(found)}")


def _wait_until_healthy(scene: Scene) -> None:
    """Wait until the doctor finds nothing: status and gateways need a moment after a repair."""
    deadline = time.monotonic() + 90
    while (result := doctor(scene))[0] != 0:
        if time.monotonic() > deadline:
            raise ClusterError(f"repaired, but `pdx doctor` ends with {result[0]} and prints {json.dumps(result[1])}")
        time.sleep(1.0)


def doctor(scene: Scene) -> tuple[int, dict[str, Any]]:
    """Run `pdx doctor --json` as a user of the cluster; return its exit code and output."""
    command = [objects.PYTHON, "-m", "pdx_cli", "doctor", scene.name, "-n", scene.namespace, "--json"]
    environment = {**os.environ, "KUBECONFIG": str(scene.cluster.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    if done.returncode not in (0, 1):
        raise ClusterError(f"`pdx doctor` ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found
