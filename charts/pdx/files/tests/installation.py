"""What `helm test` runs in a pod: an operator holds its Lease, and the API server serves PDDeployments.

Arguments: the Lease, its namespace, the path of the PDDeployments, and seconds to wait for the operator.
"""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FRESH_SECONDS = 60
"""An operator renews its Lease every few seconds."""


def fetched(path: str) -> Any:
    """Return an answer of the API server."""
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    request = urllib.request.Request(f"https://kubernetes.default.svc{path}", headers=headers)
    with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:  # noqa: S310
        return json.load(answer)


def holder(lease: str, namespace: str) -> str:
    """Return who holds the Lease; raises ValueError if nobody has renewed it lately."""
    spec = fetched(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}")["spec"]
    renewed = datetime.fromisoformat(spec["renewTime"])
    if not spec.get("holderIdentity") or (datetime.now(UTC) - renewed).total_seconds() > FRESH_SECONDS:
        raise ValueError(f"nobody has renewed the Lease {lease} since {renewed}")
    return str(spec["holderIdentity"])


def main(lease: str, namespace: str, path: str, seconds: str) -> None:
    """Wait for the operator; raises what was wrong last."""
    deadline = time.monotonic() + float(seconds)
    while True:
        try:
            name, objects = holder(lease, namespace), fetched(f"{path}?limit=1")["items"]
            break
        except (urllib.error.URLError, TimeoutError, KeyError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(2)
    some = "There are PDDeployments" if objects else "There is no PDDeployment yet"
    sys.stdout.write(f"The operator {name} works. {some}.\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
