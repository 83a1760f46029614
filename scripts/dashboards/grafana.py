"""A dashboard as Grafana's JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from scripts.dashboards.model import Board, Kind, Panel

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_SIZES: Final = {Kind.LINES: (12, 8), Kind.NUMBER: (6, 4)}
"""Width and height of a panel in Grafana's grid."""


def as_json(board: Board) -> str:
    """The file's text."""
    document = {
        "uid": board.uid,
        "title": f"PDX / {board.title}",
        "description": board.question,
        "tags": ["pdx"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [{"type": "dashboards", "tags": ["pdx"], "title": "PDX", "asDropdown": True, "keepTime": True}],
        "annotations": {"list": []},
        "templating": {"list": list(_variables(board))},
        "panels": list(_panels(board)),
    }
    return json.dumps(document, indent=1) + "\n"


def _variables(board: Board) -> Iterator[Mapping[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    if board.per_deployment:
        yield _labels("namespace", "Namespace", "label_values(pdx_requests_total, namespace)")
        chosen = 'label_values(pdx_requests_total{namespace=~"$namespace"}, pdx_dev_deployment)'
        yield _labels("deployment", "PDDeployment", chosen)


def _labels(name: str, label: str, query: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # also series that a plain scrape leaves without the label
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(board: Board) -> Iterator[Mapping[str, Any]]:
    number, y = 0, 0
    for title, panels in board.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, y, 24, 1),
        }
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            width, height = _SIZES[panel.kind]
            if x + width > _COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield {"id": number, "gridPos": _at(x, y, width, height), **_panel(panel)}
            x, tallest = x + width, max(tallest, height)
        y += tallest


def _at(x: int, y: int, width: int, height: int) -> Mapping[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> Mapping[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
        for index, query in enumerate(panel.queries)
    ]
    lines = panel.kind is Kind.LINES
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.answers,
        "datasource": _SOURCE,
        "targets": targets if lines else [{**target, "instant": False} for target in targets],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _LINES_OPTIONS if lines else _NUMBER_OPTIONS,
    }


_LINES_OPTIONS: Final = {
    "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["mean", "lastNotNull"]},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_NUMBER_OPTIONS: Final = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "area",
    "textMode": "auto",
}


def _defaults(panel: Panel) -> Mapping[str, Any]:
    steps: list[Mapping[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad_above is not None:
        steps.append({"color": "red", "value": panel.bad_above})
    if panel.bad_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.bad_below}]
    custom: Mapping[str, Any] = {}
    if panel.kind is Kind.LINES:
        custom = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if len(steps) > 1 else "off"},
        }
    return {"unit": panel.unit, "min": 0, "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}}
