"""Where the groups of settings are: in the gateway's settings, in the help and in the spec."""

from enum import StrEnum
from typing import Final

from pdx_api.settings import gateway
from pdx_api.settings.setting import Group, Setting, declared


class Section(StrEnum):
    """The sections of the help, in their order."""

    SELECTION = "selection of engines"
    OBJECTIVES = "service level objectives"
    FAILURES = "failures"
    DEADLINES = "deadlines"
    LIMITS = "limits of this gateway, for all of its workers together"
    STREAMS = "browsers and streams"
    LOG = "log on stderr"
    TRACES = "traces"
    VERIFICATION = "verification"
    KEYS = "API keys"
    TLS = "TLS on the serving port"


GROUPS: Final = (
    Group(gateway.Choosing, "choosing", Section.SELECTION, "routing"),
    Group(gateway.PrefillFailures, "retries", Section.FAILURES, "routing"),
    Group(gateway.Retries, "retries", Section.FAILURES, "routing.retries"),
    Group(gateway.Deadlines, "deadlines", Section.DEADLINES, "routing.deadlines"),
    Group(gateway.Queue, "limits", Section.LIMITS, "routing.queue"),
    Group(gateway.ClientLimits, "limits", Section.LIMITS, "gateway.limits"),
    Group(gateway.OutlierDetection, "health", Section.FAILURES, "routing.outlier_detection"),
    Group(gateway.SlowStart, "health", Section.FAILURES, "routing"),
    Group(gateway.Logs, "logs", Section.LOG, "gateway.logs"),
    Group(gateway.CORS, "cors", Section.STREAMS, "gateway.cors"),
    Group(gateway.Streams, "streams", Section.STREAMS, "gateway"),
    Group(gateway.SLO, "slo", Section.OBJECTIVES, "slo"),
    Group(gateway.Verification, "verification", Section.VERIFICATION, "kv_transfer.verification"),
    Group(gateway.Tracing, "tracing", Section.TRACES, "observability.tracing"),
    Group(gateway.Keys, "keys", Section.KEYS),
    Group(gateway.TLS, "tls", Section.TLS),
)
"""In the order in which the operator writes the flags."""
SETTINGS: Final[tuple[Setting, ...]] = tuple(each for group in GROUPS for each in declared(group))
