"""Requests while the pods of a pair cannot exchange KV, and after the repair."""

import json
import time
from typing import Any, Final

from pdx_api.names import ADMIN_PORT, Role
from pdx_cluster.errors import ClusterError
from pdx_proxy.config.settings import Deadlines
from tests.cluster.tiny import breaks, objects, steps, verified
from tests.cluster.tiny.scene import SHORT_PROMPT, Scene

BLOCKED_SECONDS: Final = 60.0
RETURN_SECONDS: Final = 90.0
"""Limit from the repair until requests are split again."""
_EVERY_SECONDS: Final = 0.5
_BEFORE_SECONDS: Final = 5.0
_AFTER_PROOF_SECONDS: Final = 10.0
"""A request that arrives so long after the proof (the condition) must not wait for KV."""
_HANDOFF_SECONDS: Final = Deadlines().handoff_seconds
_SERVED_SECONDS: Final = 5.0
"""For a whole request. On a quiet machine, it takes less than a second."""


def serve_through(scene: Scene) -> str:
    """Block KV under steady requests, of which none may fail, and repair the pair; return one line with the times."""
    before = count_split(scene)
    with scene.steady_requests(_EVERY_SECONDS) as answers:
        time.sleep(_BEFORE_SECONDS)
        if count_split(scene) == before:
            raise ClusterError("no request was split before KV was blocked")
        began = time.time()
        with verified.EVERY_PORT.made(scene):
            _check_condition(scene)
            proved = time.time()
            time.sleep(max(0.0, began + BLOCKED_SECONDS / 2 - time.time()))
            split = count_split(scene)
            time.sleep(BLOCKED_SECONDS / 2)
            if count_split(scene) != split:
                raise ClusterError("requests were split though KV was blocked for half a minute")
    steps.check_all_answered(answers)
    longest, later = _waits(answers, began, proved + _AFTER_PROOF_SECONDS)
    breaks.replace_engine(scene, Role.DECODE)
    began = time.monotonic()
    scene.wait_until_settled(RETURN_SECONDS)  # while there is no D, no gateway pod is Ready
    seconds = _wait_until_split(scene, began)
    verified.wait_until_verified(scene)
    return (
        f"{len(answers)} requests, none failed; longest: {longest:.1f} s; longest that arrived "
        f"{_AFTER_PROOF_SECONDS:.0f} s after the proof: {later:.1f} s; split again {seconds:.1f} s after the new "
        "D was Ready"
    )


def _check_condition(scene: Scene) -> None:
    """Wait until the condition reports that KV does not move, and that D must be replaced after the repair."""
    message = verified.wait_until_broken(scene)
    if "delete the decode engine's pod" not in message:
        raise ClusterError(f"the condition does not report that D must be replaced: {message}")


def count_split(scene: Scene) -> int:
    """Return how many requests the gateway has split."""
    (gateway,) = scene.pods("pdx.dev/role=gateway")
    page = json.loads(scene.client("send", f"http://{gateway['status']['podIP']}:{ADMIN_PORT}/pdx/state"))
    return int(json.loads(page["text"])["outcomes"]["split"])


def _arrival(answer: dict[str, Any]) -> float:
    """When a request was sent."""
    return float(answer["at"] - answer["seconds"])


def _waits(answers: list[dict[str, Any]], began: float, known: float) -> tuple[float, float]:
    """Return the longest request since KV was blocked, and the longest one since that was known."""
    blocked = [each for each in answers if _arrival(each) >= began]
    longest = max(each["seconds"] for each in blocked)
    later = max((each["seconds"] for each in blocked if _arrival(each) >= known), default=0.0)
    if longest > _HANDOFF_SECONDS + _SERVED_SECONDS:
        raise ClusterError(f"a request waited {longest:.1f} s for KV, longer than a hand-off may take")
    if later > _SERVED_SECONDS:
        raise ClusterError(f"a request took {later:.1f} s though KV was known to be blocked")
    return longest, later


def _wait_until_split(scene: Scene, began: float) -> float:
    """Send requests until one is split; return the seconds since the beginning."""
    before, number = count_split(scene), 0
    while count_split(scene) == before:
        if time.monotonic() > began + RETURN_SECONDS:
            raise ClusterError(f"no request was split within {RETURN_SECONDS:.0f} s of the repair")
        number += 1
        body = {"model": objects.MODEL.name, "prompt": f"{number}. {SHORT_PROMPT}", "max_tokens": 2, "temperature": 0}
        scene.send(scene.service, "/v1/completions", body)
        time.sleep(_EVERY_SECONDS)
    return time.monotonic() - began
