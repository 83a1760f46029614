"""Dashboards as data: one module for each question that a dashboard answers."""

from collections.abc import Mapping
from typing import Final

from scripts.dashboards import controller, pods, refusals, split, users
from scripts.dashboards.grafana import as_json
from scripts.dashboards.model import Board

BOARDS: Final[tuple[Board, ...]] = (users.BOARD, split.BOARD, pods.BOARD, refusals.BOARD, controller.BOARD)


def dashboards() -> Mapping[str, str]:
    """Every dashboard's file name and JSON."""
    return {f"{board.uid}.json": as_json(board) for board in BOARDS}
