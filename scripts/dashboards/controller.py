"""What does the operator do?"""

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
                    "Objects that the operator works on.",
                    Unit.COUNT,
                    (Query('sum(pdx_operator_objects{condition="Ready"})', "objects"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Not ready",
                    "Objects that do not serve as they should.",
                    Unit.COUNT,
                    (Query('sum(pdx_operator_objects{condition="Ready",status!="True"})', "not ready"),),
                    Kind.NUMBER,
                    bad_above=1,
                ),
                Panel(
                    "Not yet worked on",
                    "Objects whose newest spec the operator has not got to. For minutes: it does not get through.",
                    Unit.COUNT,
                    (Query("sum(pdx_operator_unreconciled_objects)", "waiting"),),
                    Kind.NUMBER,
                    bad_above=1,
                ),
                Panel(
                    "Failed turns",
                    "Tried again with a growing pause; the log says why.",
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
                    "Objects by what their conditions say; `kubectl describe pdd` has the reason of each.",
                    Unit.COUNT,
                    (Query("sum by (condition, status) (pdx_operator_objects)", "{{condition}} {{status}}"),),
                ),
                Panel(
                    "Rollouts",
                    "Objects by where their rollout is.",
                    Unit.COUNT,
                    (Query("sum by (state) (pdx_operator_rollouts)", "{{state}}"),),
                    stacked=True,
                ),
                Panel(
                    "Age of rollouts",
                    "How long each object has been on its way to what its spec asks for. One that grows for an hour is "
                    "stuck.",
                    Unit.SECONDS,
                    (Query("max by (object) (pdx_operator_rollout_seconds)", "{{object}}"),),
                    plotted=True,
                ),
            ),
        ),
        (
            "Turns",
            (
                Panel(
                    "Turns by result",
                    "ok; failed: the API server said no or was away; fault: a defect of the operator.",
                    Unit.EVENTS,
                    (Query(rate("pdx_operator_reconcile_seconds_count", _ANY, by="result"), "{{result}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Time of a turn",
                    "Mostly waiting for the API server.",
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
                    "What the operator asks. An idle cluster has watches only.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_operator_api_requests_total", _ANY, by="verb"), "{{verb}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Answers that are errors",
                    "By status: 0 no answer, 403 a right that is missing, 422 an object that is refused, 429 too many.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_operator_api_requests_total", _ERRORS, by="code"), "{{code}}"),),
                ),
            ),
        ),
    ),
)
