"""Results of transfer probes become the condition KVTransferVerified, without a write while nothing changes."""

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, PDDEPLOYMENT
from pdx_api.names import ADMIN_PORT
from pdx_api.verification import RESULT_PATH, Broken, Cause, Finding, Verdict
from tests.cluster.runtime.harness import Api, Operator, at_rest, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

WELL = Finding(Verdict.VERIFIED, pairs=1, possible=1)
BROKEN = Finding(
    Verdict.BROKEN,
    possible=1,
    broken=(Broken("p-0", "d-0", "the decode engine has computed it", Cause.MODEL),),
    broken_pairs=1,
)


class Gateway(ThreadingHTTPServer):
    """The admin port of every gateway pod of a namespace, on a loopback address of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        numbers = [random.randint(1, 250) for _ in range(3)]
        self.address = f"127.{numbers[0]}.{numbers[1]}.{numbers[2]}"
        super().__init__((self.address, ADMIN_PORT), _Handler)
        self.updates = threading.Condition()
        self.finding, self.stamp = WELL, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """An operator that ends closes its connections."""

    def publish(self, finding: Finding) -> None:
        with self.updates:
            self.finding, self.stamp = finding, self.stamp + 1
            self.updates.notify_all()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        gateway = self.server
        assert isinstance(gateway, Gateway)
        url = urlsplit(self.path)
        assert url.path == RESULT_PATH
        query = parse_qs(url.query, keep_blank_values=True)
        with gateway.updates:
            gateway.updates.wait_for(lambda: query["after"] != [str(gateway.stamp)], float(query["wait"][0]))
            answer = {"stamp": str(gateway.stamp), "finding": gateway.finding.as_json(), "lastSuccess": None}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_transfer_probes_become_a_condition(api: Api, operator: Operator, namespace: str) -> None:
    def verified() -> tuple[str | None, str | None]:
        found = api.condition(namespace, "KVTransferVerified")
        return found.get("status"), found.get("reason")

    gateway = Gateway()
    try:
        with kubelets(api, namespace, address=gateway.address):
            api.deploy(namespace)
            eventually(lambda: verified() == ("True", "Verified"), what="verified by itself")
            eventually(lambda: api.condition(namespace, "Progressing").get("status") == "False", what="settled")
            before = at_rest(lambda: (operator.writes(), _version(api, namespace)))
            gateway.publish(WELL)  # another probe with the same result
            time.sleep(3)
            assert (operator.writes(), _version(api, namespace)) == before
            gateway.publish(BROKEN)
            eventually(lambda: verified() == ("False", "ModelsDiffer"), what="broken")
            assert (
                "p-0 to d-0: the decode engine has computed it"
                in api.condition(namespace, "KVTransferVerified")["message"]
            )
            gateway.publish(WELL)
            eventually(lambda: verified() == ("True", "Verified"), what="repaired")
            eventually(
                lambda: {"ModelsDiffer", "KVTransferRestored"} <= {event["reason"] for event in api.events(namespace)},
                what="Events",
            )
            api.change(namespace, {"mode": "Aggregated"})
            eventually(lambda: verified() == ("Unknown", "Aggregated"), what="one pool")
    finally:
        gateway.shutdown()
        gateway.server_close()


def test_a_rollout_to_engines_whose_kv_does_not_move_stops(api: Api, operator: Operator, namespace: str) -> None:
    def replicas() -> dict[str, int]:
        """Of the engines, by revision and role."""
        found = api.items(DEPLOYMENT, namespace, labelSelector="pdx.dev/role in (prefill, decode)")
        return {body["metadata"]["name"].removeprefix("m-"): body["spec"]["replicas"] for body in found}

    def reason(kind: str) -> str | None:
        return api.condition(namespace, kind).get("reason")

    gateway = Gateway()
    try:
        with kubelets(api, namespace, address=gateway.address):
            api.deploy(namespace)
            eventually(lambda: reason("KVTransferVerified") == "Verified", what="verified")
            eventually(lambda: reason("Progressing") == "Complete", what="settled")
            old, before = api.status(namespace)["revision"], replicas()
            api.change(namespace, {"engine": {"maxModelLen": 4096}})
            eventually(lambda: len(replicas()) == 4, what="new engines")
            eventually(lambda: api.status(namespace)["revision"] != old, what="the new revision")
            new = api.status(namespace)["revision"]
            pair = Broken(
                f"m-prefill-{new}-1-x", f"m-decode-{new}-1-y", "the decode engine has computed it", Cause.MODEL
            )
            gateway.publish(Finding(Verdict.BROKEN, possible=2, broken=(pair,), broken_pairs=1))
            eventually(lambda: reason("Degraded") == reason("Progressing") == "RolloutStopped", what="stopped")
            assert api.condition(namespace, "Available")["status"] == "True"
            held = at_rest(replicas)
            assert {name: held[name] for name in before} == before, "the old engines serve"
            eventually(lambda: "RolloutStopped" in {event["reason"] for event in api.events(namespace)}, what="Event")
            gateway.publish(WELL)
            api.change(namespace, {"engine": {"maxModelLen": None}})
            eventually(lambda: replicas() == before and reason("Progressing") == "Complete", what="set back")
    finally:
        gateway.shutdown()
        gateway.server_close()


def _version(api: Api, namespace: str) -> str:
    found = api.get(PDDEPLOYMENT, namespace, "m")
    assert found is not None
    return str(found["metadata"]["resourceVersion"])
