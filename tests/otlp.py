"""What tests read of traces: spans as an OTLP receiver gets them, whether a process of its own or within the test."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as a receiver got it. IDs are hexadecimal digits; times are nanoseconds."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: dict[str, Any]
    error: bool = False
    events: tuple[tuple[str, int], ...] = ()
    links: tuple[str, ...] = ()
    state: str = ""
    resource: dict[str, Any] = field(default_factory=dict)


_KINDS = {1: "internal", 2: "server", 3: "client"}


def spans_of(document: dict[str, Any]) -> Iterator[ReceivedSpan]:
    """The spans of a request to an OTLP receiver in OTLP's JSON encoding."""
    for resource_spans in document.get("resourceSpans", ()):
        resource = _attributes(resource_spans["resource"].get("attributes", ()))
        for scope in resource_spans["scopeSpans"]:
            for span in scope["spans"]:
                yield _span(span, resource)


def _span(span: dict[str, Any], resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        str(resource["service.name"]),
        span["name"],
        _KINDS[int(span["kind"])],
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        _attributes(span.get("attributes", ())),
        span.get("status", {}).get("code") == 2,
        tuple((event["name"], int(event["timeUnixNano"])) for event in span.get("events", ())),
        tuple(link["spanId"] for link in span.get("links", ())),
        span.get("traceState", ""),
        resource,
    )


def _attributes(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {entry["key"]: _value(entry["value"]) for entry in entries}


def _value(value: dict[str, Any]) -> Any:
    ((kind, found),) = value.items()
    return int(found) if kind == "intValue" else found


def read_spans(path: Path) -> list[ReceivedSpan]:
    """The spans in a collector's file: one request on each line. A line that is being written is left for later."""
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [span for line in lines for span in spans_of(json.loads(line))]


def tree(spans: Iterable[ReceivedSpan], client: str) -> str:
    """The spans of one trace as a tree below the client's span, with their times in milliseconds."""
    found = sorted(spans, key=lambda span: span.began)
    origin = found[0].began if found else 0
    lines = ["client"]

    def add(parent: str, indent: str) -> None:
        children = [span for span in found if span.parent_id == parent]
        for number, span in enumerate(children):
            last = number == len(children) - 1
            lines.append(f"{indent}{'└─ ' if last else '├─ '}{_line(span, origin)}")
            add(span.span_id, f"{indent}{'   ' if last else '│  '}")

    add(client, "")
    return "\n".join(lines)


def _line(span: ReceivedSpan, origin: int) -> str:
    times = f"{(span.began - origin) / 1e6:.1f} to {(span.ended - origin) / 1e6:.1f} ms"
    events = "".join(f", {name} at {(time - origin) / 1e6:.1f} ms" for name, time in span.events)
    return f"{span.service}: {span.name} ({span.kind}), {times}{events}"
