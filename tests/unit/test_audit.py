"""Terms and writers, as tests read them from the API server's audit log."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.runtime.audit import Audit, terms


def _event(second: int, process: int, resource: str, name: str, **more: Any) -> str:
    event = {
        "stageTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
        "user": {"username": "o"},
        "userAgent": f"pdx-operator (host-{process})",
        "verb": "patch",
        "requestURI": f"/{resource}/{name}",
        "objectRef": {"resource": resource, "namespace": "pdx-system" if resource == "leases" else "ns", "name": name},
        "responseStatus": {"code": 200},
        **more,
    }
    return json.dumps(event) + "\n"


def _taken(second: int, process: int) -> str:
    return _event(second, process, "leases", "l", requestObject={"spec": {"holderIdentity": f"holder-{process}"}})


def test_a_write_belongs_to_the_term_in_which_it_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text(_taken(0, 9))
    audit = Audit(path)
    with path.open("a") as log:
        log.write(_taken(1, 1) + _event(2, 1, "services", "s") + _taken(3, 1))
        log.write(_event(6, 1, "services", "s") + _taken(5, 2) + _event(7, 2, "services", "s"))
        log.write(_event(8, 2, "services", "s", responseStatus={"code": 409}))
        log.write(_event(9, 3, "services", "of a user", userAgent="kubectl"))
        log.write(_event(9, 2, "services", "not yet whole")[:40])
    first, second = terms(audit.writes(), "ns", "l")
    assert first.writers() == {"services ns/s": {"pdx-operator (host-1)"}}
    assert second.writers() == {"services ns/s": {"pdx-operator (host-1)", "pdx-operator (host-2)"}}
    assert (first.holder, second.holder, second.agent) == ("holder-1", "holder-2", "pdx-operator (host-2)")
