"""The log format of all programs: one line for each record, as text or as a JSON object."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from pdx_api.names import LogFormat

_FIELDS: Final = "pdx_fields"


def fields(**values: Any) -> dict[str, Any]:
    """Further fields of a record, for `extra`: JSON values by name."""
    return {_FIELDS: values}


class JsonFormatter(logging.Formatter):
    """One object for each record: time (UTC), level, logger, message, its further fields, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        document |= {"message": record.getMessage(), **getattr(record, _FIELDS, {})}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """The given format of `logging`, followed by the record's further fields as NAME=VALUE."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; a traceback follows on further lines."""
        found: dict[str, Any] = getattr(record, _FIELDS, {})
        if not found:
            return super().format(record)
        pairs = " ".join(f"{name}={_plain(value)}" for name, value in found.items())
        return f"{super().format(record)} {pairs}"


class StderrHandler(logging.Handler):
    """Writes to the current stderr: each record at once and in one write, because processes share stderr."""

    def __init__(self, kind: LogFormat, text: str) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter() if kind is LogFormat.JSON else TextFormatter(text))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except OSError:
            self.handleError(record)


def configure(kind: LogFormat, text: str) -> None:
    """Write this process's log to stderr. Further calls replace the handler.

    `text` is the format of text lines, in the syntax of `logging`.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, StderrHandler)]:
        root.removeHandler(handler)
    root.addHandler(StderrHandler(kind, text))


def _plain(value: Any) -> str:
    """A value without blanks, which separate fields."""
    if isinstance(value, list):
        return ",".join(map(_plain, value)) or "-"
    if isinstance(value, dict):
        return "/".join(map(_plain, value.values()))
    return f"{value:g}" if isinstance(value, float) else str(value)
