"""An informer of pods sends the endpoints at each change."""

import asyncio
from typing import Any

import pytest

from pdx_proxy.discovery.pod_watcher import PodDiscovery
from tests.unit.api.kube.scripted_api_server import UNREACHABLE, Script, bookmark, event
from tests.unit.proxy.discovery.test_pods import POD, changed

NAME = POD["metadata"]["name"]


def pod(name: str, version: str, *more: tuple[str, Any]) -> dict[str, Any]:
    return changed(("metadata name", name), ("metadata resourceVersion", version), *more)


async def sent_by(script: Script) -> list[list[str]]:
    """The names of the endpoints at each change, those that leave with a hyphen."""
    sent: list[list[str]] = []

    def receive(specs: Any) -> None:
        sent.append(sorted(spec.name + ("-" if spec.leaving else "") for spec in specs))

    watching = asyncio.create_task(PodDiscovery("ns", "m", lambda: 0.5).informer(script.cluster, receive).run())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watching, 0.3)
    return sent


async def test_changes_are_sent() -> None:
    leaving = ("metadata deletionTimestamp", "now")
    steps = [
        event("ADDED", pod("new", "8")),
        event("MODIFIED", pod("new", "9", leaving)),
        bookmark("10"),
        event("DELETED", pod("new", "11", leaving)),
    ]
    script = Script(steps, items=[POD])
    script.last = []
    assert await sent_by(script) == [[NAME], ["new", NAME], ["new-", NAME], [NAME]]


async def test_an_odd_pod_is_no_endpoint_and_stops_nothing() -> None:
    odd: list[dict[str, Any]] = [{}, {"metadata": 7}, {"metadata": {"name": ["a"]}, "spec": "x", "status": []}]
    script = Script([*(event("ADDED", body) for body in odd), event("ADDED", pod("new", "8"))], items=odd)
    script.last = []
    assert (await sent_by(script))[-1] == ["new"]


@pytest.mark.parametrize("complete", [True, False])
async def test_during_an_outage_nothing_is_sent(complete: bool) -> None:
    script = Script(items=[POD])
    script.second_page = None if complete else UNREACHABLE
    assert await sent_by(script) == [[NAME]] * complete
