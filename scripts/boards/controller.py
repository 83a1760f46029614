"""What does the operator do?"""

from typing import Final

from scripts.boards.model import Board, Kind, Panel, Query, Unit, mean, quantile, rate

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
                    (Query("sum(pdx_operator_objects)", "objects"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Turns",
                    "Looks at an object, each second. An idle cluster has few.",
                    Unit.EVENTS,
                    (Query(rate("pdx_operator_reconcile_seconds_count", _ANY), "turns"),),
                    Kind.NUMBER,
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
