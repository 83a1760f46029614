"""How the programs write their logs: a line for each record, as text or as a JSON object."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from pdx_api.names import LogFormat

_FIELDS: Final = "pdx_fields"


def fields(**values: Any) -> dict[str, Any]:
    """What a record says beside its message, for `extra`: JSON values by name."""
    return {_FIELDS: values}


class JsonFormatter(logging.Formatter):
    """An object for each record: time (UTC), level, logger, message, the record's own fields, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        document |= {"message": record.getMessage(), **getattr(record, _FIELDS, {})}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """As `logging` writes it by the format given, the record's own fields behind it as NAME=VALUE."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, a traceback on further ones."""
        found: dict[str, Any] = getattr(record, _FIELDS, {})
        if not found:
            return super().format(record)
        told = " ".join(f"{name}={_plain(value)}" for name, value in found.items())
        return f"{super().format(record)} {told}"


class StderrHandler(logging.Handler):
    """Writes to what is stderr at that time: each record at once and in one piece, since processes share it."""

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
    """Have this process write its log to stderr, one handler however often this is called.

    `text` is the format of a line of text, as `logging` takes it.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, StderrHandler)]:
        root.removeHandler(handler)
    root.addHandler(StderrHandler(kind, text))


def _plain(value: Any) -> str:
    """A value without blanks, so that fields can be told apart."""
    if isinstance(value, list):
        return ",".join(map(_plain, value)) or "-"
    if isinstance(value, dict):
        return "/".join(map(_plain, value.values()))
    return f"{value:g}" if isinstance(value, float) else str(value)
