"""The dashboard of the operator."""

from typing import Final

from scripts.dashboards.model import Board, Kind, Panel, Query, Unit, mean, quantile, rate

_ANY: Final = ""
_FAILED: Final = 'result!="ok"'
_ERRORS: Final = 'code!~"2..|404|409"'

BOARD: Final = Board(
    "pdx-operator",
    "Operator",
    "What does the operator do?",
    (
        (
            "At a glance",
            (
                Panel(
                    "PDDeployments",
                    "Objects that the operator reconciles.",
                    Unit.COUNT,
                    (Query('sum(pdx_operator_objects{condition="Available"})', "objects"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Not available",
                    "Objects whose condition Available is not True: requests are not answered.",
                    Unit.COUNT,
                    (Query('sum(pdx_operator_objects{condition="Available",status!="True"})', "not available"),),
                    Kind.NUMBER,
                    bad_above=1,
                ),
                Panel(
                    "Unreconciled",
                    "Objects whose newest spec is not reconciled yet. If it lasts for minutes, the operator cannot "
                    "reconcile.",
                    Unit.COUNT,
                    (Query("sum(pdx_operator_unreconciled_objects)", "waiting"),),
                    Kind.NUMBER,
                    bad_above=1,
                ),
                Panel(
                    "Failed reconciles",
                    "They are repeated with growing pauses; the log has the reason.",
                    Unit.EVENTS,
                    (Query(f"{rate('pdx_operator_reconcile_seconds_count', _FAILED)} or vector(0)", "failed"),),
                    Kind.NUMBER,
                    bad_above=0.1,
                ),
            ),
        ),
        (
            "The objects",
            (
                Panel(
                    "Conditions",
                    "Objects by the status of each condition; `kubectl describe pdd` shows the reasons.",
                    Unit.COUNT,
                    (Query("sum by (condition, status) (pdx_operator_objects)", "{{condition}} {{status}}"),),
                ),
                Panel(
                    "Rollouts",
                    "Objects by the state of their rollout.",
                    Unit.COUNT,
                    (Query("sum by (state) (pdx_operator_rollouts)", "{{state}}"),),
                    stacked=True,
                ),
                Panel(
                    "Age of rollouts",
                    "How long each object has been changing towards its spec. A rollout that takes more than an "
                    "hour is "
                    "stuck.",
                    Unit.SECONDS,
                    (Query("max by (object) (pdx_operator_rollout_seconds)", "{{object}}"),),
                    plotted=True,
                ),
            ),
        ),
        (
            "Reconciles",
            (
                Panel(
                    "Reconciles by result",
                    "ok; failed: the API server refused a request or was away; fault: a defect of the operator.",
                    Unit.EVENTS,
                    (Query(rate("pdx_operator_reconcile_seconds_count", _ANY, by="result"), "{{result}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Time of a reconcile",
                    "Mostly the wait for the API server.",
                    Unit.SECONDS,
                    (
                        Query(mean("pdx_operator_reconcile_seconds", _ANY), "mean"),
                        Query(quantile(0.95, "pdx_operator_reconcile_seconds", _ANY), "p95"),
                    ),
                ),
            ),
        ),
        (
            "The API server",
            (
                Panel(
                    "Requests by verb",
                    "Requests of the operator. An idle cluster has watches only.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_operator_api_requests_total", _ANY, by="verb"), "{{verb}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Errors of the API server",
                    "By status. 0: no answer. 403: a missing right. 422: a refused object. 429: too many requests.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_operator_api_requests_total", _ERRORS, by="code"), "{{code}}"),),
                ),
            ),
        ),
    ),
)
