"""Every panel's queries, run over a stretch of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scripts.dashboards import BOARDS
from scripts.dashboards.model import Board, Panel, Query
from tests.dashboards.server import PrometheusServer, QueryError, Series

WINDOW: Final = "4s"
"""In place of Grafana's $__rate_interval: eight scrapes."""


@dataclass(frozen=True)
class Finding:
    """What a query of a panel returned."""

    board: Board
    panel: Panel
    query: Query
    series: Sequence[Series]
    error: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.series

    @property
    def span(self) -> str:
        """Least and greatest value."""
        values = [value for series in self.series for _, value in series.points]
        return f"{min(values):.3g} to {max(values):.3g}" if values else ""


def filled(expr: str, window: str = WINDOW) -> str:
    """A panel's expression as Grafana would send it with All chosen."""
    for name, value in (("$__rate_interval", window), ("$namespace", ".*"), ("$deployment", ".*")):
        expr = expr.replace(name, value)
    return expr


async def survey(
    server: PrometheusServer, begin: float, end: float, boards: Iterable[Board] = BOARDS, window: str = WINDOW
) -> list[Finding]:
    """The findings of all queries of all panels."""
    findings: list[Finding] = []
    for board in boards:
        for panel in board.panels:
            for query in panel.queries:
                try:
                    series = await server.over(filled(query.expr, window), begin, end)
                except QueryError as error:
                    findings.append(Finding(board, panel, query, (), str(error)))
                else:
                    findings.append(Finding(board, panel, query, series))
    return findings


def table(findings: Iterable[Finding]) -> str:
    """For people."""
    rows = [("dashboard", "panel", "query", "series", "values"), ("---",) * 5]
    for each in findings:
        seen = each.error or each.span or "EMPTY"
        rows.append((each.board.title, each.panel.title, each.query.legend, str(len(each.series)), seen))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
