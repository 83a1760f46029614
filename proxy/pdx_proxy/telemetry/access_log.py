"""The gateway's log: one line for a request that failed or was slow, and nothing of what it asked or was answered.

What a line says comes from the gateway itself, but for the client's own id, which is cut and cleaned. A storm of
failures does not become a storm of lines: further ones of a second are counted and told of together.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pdx_api.logs import configure, fields
from pdx_proxy.config.settings import Logs, Settings
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.telemetry.timeline import NEVER, Timeline

LINES_PER_SECOND: Final = 20
"""Lines that one gateway writes in a second; its workers share them, at least 1 each."""
FAILED: Final = frozenset(
    {Outcome.SHED, Outcome.UNAVAILABLE, Outcome.BROKEN, Outcome.IDLE, Outcome.EXPIRED, Outcome.INTERNAL}
)
"""Outcomes that are no client's own doing."""
_MAX_CLIENT_ID: Final = 128
_MAX_LEGS: Final = 12
_MAX_FRAMES: Final = 8
_NOT_PLAIN: Final = re.compile(r"[^\x21-\x7e]")

_log: Final = logging.getLogger(__name__)


def configure_logs(settings: Settings) -> None:
    """Have this process write the gateway's log."""
    configure(settings.logs.format, "pdx gateway: %(message)s")


class AccessLog:
    """Owner of one worker's lines about requests."""

    def __init__(
        self, logs: Logs, workers: int, endpoints: Callable[[], Iterable[Endpoint]], clock: Callable[[], float]
    ) -> None:
        self.slow_seconds = logs.slow_seconds
        """From how many seconds on, until its answer begins, a request is slow."""
        self._most = max(1, LINES_PER_SECOND // workers)
        self._endpoints = endpoints
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def note(
        self,
        path: str,
        client_id: str,
        outcome: Outcome,
        timeline: Timeline,
        seconds: float,
        raised: Exception | None = None,
    ) -> None:
        """A request that took so long in all has ended: write its line if it failed or was slow.

        `raised` is an error of the gateway's own.
        """
        slow = (seconds if timeline.first == NEVER else timeline.first) >= self.slow_seconds
        if not slow and outcome not in FAILED:
            return
        if not self._may_write():
            self._leave_out()
            return
        roles = {endpoint.name: str(endpoint.role) for endpoint in self._endpoints()}
        message = "request failed" if outcome in FAILED else "request was slow"
        found = describe(path, client_id, outcome, timeline, seconds, roles)
        error = {} if raised is None else describe_raised(raised)
        _log.warning(message, extra=fields(**found, **error))

    def _may_write(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        return self._written <= self._most

    def _leave_out(self) -> None:
        if not self._left_out:
            asyncio.get_running_loop().call_later(1.0, self._tell_left_out)
        self._left_out += 1

    def _tell_left_out(self) -> None:
        left_out, self._left_out = self._left_out, 0
        _log.warning("further requests failed or were slow", extra=fields(left_out=left_out))


def describe_raised(error: Exception) -> Mapping[str, Any]:
    """What a line says of an error of the gateway's own: its kind and where it arose.

    Not its message, which may quote what a client sent.
    """
    frames = traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES)
    return {
        "error": type(error).__name__,
        "raised_in": [f"{Path(frame.filename).name}:{frame.lineno}:{frame.name}" for frame in frames],
    }


def describe(
    path: str, client_id: str, outcome: Outcome, timeline: Timeline, seconds: float, roles: dict[str, str]
) -> dict[str, Any]:
    """What a line says of a request; times in seconds. `roles` are those of the endpoints that are known now."""
    times = {
        "queue": timeline.queued,
        "to_prefill": timeline.to_prefill,
        "prefill": timeline.prefill,
        "handoff": timeline.handoff,
        "first_token": timeline.first,
        "total": seconds,
    }
    legs = [
        {"role": roles.get(name, "gone"), "endpoint": name, "id": request_id}
        for name, request_id in timeline.legs[-_MAX_LEGS:]
    ]
    return {
        "outcome": outcome.value,
        "path": path,
        "stream": timeline.stream,
        "client_id": _NOT_PLAIN.sub("?", client_id[:_MAX_CLIENT_ID]) or "-",
        **{f"{phase}_seconds": round(time, 4) for phase, time in times.items() if time != NEVER},
        "failures": list(timeline.failures),
        "legs": legs,
    }
