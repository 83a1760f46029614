"""`python -m tests.charts.recorder FILE FLAGS...` runs the operator and writes down each verb that it uses, as
`verb resource[.group][/subresource]`. Whatever the operator asks the API server goes through aiohttp."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from pdx_operator.app.main import main

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def verbs(method: str, url: str, status: int) -> Iterator[str]:
    """What somebody must be allowed for a request that was answered like this."""
    parts = urlsplit(url)
    root, *steps = parts.path.strip("/").split("/")
    group = steps.pop(0) if root == "apis" and steps else ""
    if root not in ("api", "apis") or len(steps) < 2:
        return  # discovery
    del steps[0]
    if steps[0] == "namespaces" and len(steps) > 2:
        del steps[:2]
    plural, name, subresource = (*steps, "", "")[:3]
    resource = (f"{plural}.{group}" if group else plural) + (f"/{subresource}" if subresource else "")
    if method == "GET":
        watched = parse_qs(parts.query).get("watch") == ["true"]
        yield f"{'watch' if watched else 'get' if name else 'list'} {resource}"
    else:
        yield f"{_VERBS[method]} {resource}"
        if (method, status) == ("PATCH", 201):
            yield f"create {resource}"  # an apply that made the object


def record(path: Path) -> None:
    """Have each request of this process written down."""
    log, send = path.open("a", buffering=1), aiohttp.ClientSession._request

    async def recorded(session: aiohttp.ClientSession, method: str, url: Any, **options: Any) -> aiohttp.ClientResponse:
        answer = await send(session, method, url, **options)
        for used in verbs(method.upper(), str(answer.url), answer.status):
            log.write(f"{used}\n")
        return answer

    aiohttp.ClientSession._request = recorded  # type: ignore[assignment]


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
