"""The access log: one line for a request that failed or was slow, without any of its prompt or answer.

All values come from the gateway, except the client's request ID, which is truncated and cleaned. A storm of failures
does not become a storm of lines: beyond the limit of a second, one line reports the number of further requests.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pdx_api.logs import configure, fields
from pdx_api.settings.gateway import Logs
from pdx_proxy.config.settings import Settings
from pdx_proxy.telemetry.counters import FAILED, Outcome
from pdx_proxy.telemetry.timeline import NEVER, Timeline

LINES_PER_SECOND: Final = 20
"""Lines that one gateway writes per second. Its workers share them, at least 1 each."""
_MAX_CLIENT_ID: Final = 128
_MAX_LEGS: Final = 12
_MAX_FRAMES: Final = 8
_NOT_PLAIN: Final = re.compile(r"[^\x21-\x7e]")

_log: Final = logging.getLogger(__name__)


def configure_logs(settings: Settings) -> None:
    """Configure the gateway's log in this process."""
    configure(settings.logs.format, "pdx gateway: %(message)s")


class AccessLog:
    """Owner of one worker's access log."""

    def __init__(
        self, logs: Logs, workers: int, roles: Callable[[], Mapping[str, str]], clock: Callable[[], float]
    ) -> None:
        self.slow_seconds = logs.slow_seconds
        """A request is slow if its answer begins later than this."""
        self._most = max(1, LINES_PER_SECOND // workers)
        self._roles = roles
        """Returns the roles of the present endpoints by name."""
        self._clock = clock
        self._second = 0
        self._written = 0
        self._omitted = 0

    def concerns(self, outcome: Outcome, timeline: Timeline, seconds: float) -> bool:
        """Whether a request that has ended after `seconds` failed or was slow."""
        return outcome in FAILED or (seconds if timeline.first == NEVER else timeline.first) >= self.slow_seconds

    def note(
        self,
        path: str,
        client_id: str,
        outcome: Outcome,
        timeline: Timeline,
        seconds: float,
        raised: Exception | None = None,
    ) -> None:
        """Write the line of a request that has ended after `seconds`, if it failed or was slow.

        `raised` is an error inside the gateway.
        """
        if not self.concerns(outcome, timeline, seconds):
            return
        if not self._may_write():
            self._omit()
            return
        message = "request failed" if outcome in FAILED else "request was slow"
        found = describe(path, client_id, outcome, timeline, seconds, self._roles())
        error = {} if raised is None else describe_raised(raised)
        _log.warning(message, extra=fields(**found, **error))

    def _may_write(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        return self._written <= self._most

    def _omit(self) -> None:
        if not self._omitted:
            asyncio.get_running_loop().call_later(1.0, self._report_omitted)
        self._omitted += 1

    def _report_omitted(self) -> None:
        omitted, self._omitted = self._omitted, 0
        _log.warning("further requests failed or were slow", extra=fields(left_out=omitted))


def describe_raised(error: Exception) -> Mapping[str, Any]:
    """The fields for an error inside the gateway: its type and where it was raised.

    Not its message, which may quote the client's input.
    """
    frames = traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES)
    return {
        "error": type(error).__name__,
        "raised_in": [f"{Path(frame.filename).name}:{frame.lineno}:{frame.name}" for frame in frames],
    }


def describe(
    path: str, client_id: str, outcome: Outcome, timeline: Timeline, seconds: float, roles: Mapping[str, str]
) -> dict[str, Any]:
    """The fields for a request; times in seconds. `roles` has the present endpoints' roles by name."""
    times = {
        "queue": timeline.queued,
        "to_prefill": timeline.to_prefill,
        "prefill": timeline.prefill,
        "handoff": timeline.handoff,
        "first_token": timeline.first,
        "total": seconds,
    }
    legs = [
        {"role": roles.get(leg.endpoint, "gone"), "endpoint": leg.endpoint, "id": leg.request_id}
        for leg in timeline.legs[-_MAX_LEGS:]
    ]
    return {
        "outcome": outcome.value,
        "path": path,
        "stream": timeline.stream,
        "client_id": _NOT_PLAIN.sub("?", client_id[:_MAX_CLIENT_ID]) or "-",
        **{f"{phase}_seconds": round(time, 4) for phase, time in times.items() if time != NEVER},
        "failures": list(timeline.failures),
        **({"engine_text": timeline.engine_text} if timeline.engine_text else {}),
        "legs": legs,
    }
