"""When objects of the cluster appear: one watch for each kind, in a separate thread."""

import contextlib
import json
import ssl
import threading
import time
import urllib.request
from collections import defaultdict

from pdx_api.kube.kinds import CHILD_KINDS, Kind
from pdx_api.names import LABEL_DEPLOYMENT
from pdx_cluster.app.cluster import Cluster


class Watcher:
    """Notes the moment at which each child is first seen."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._tls = ssl.create_default_context(cafile=str(cluster.authority))
        self.seen: dict[str, list[float]] = defaultdict(list)
        """Moments (monotonic, seconds) at which the children of an object appeared."""
        for kind in CHILD_KINDS:
            threading.Thread(target=self._watch, args=(kind,), daemon=True).start()

    def _watch(self, kind: Kind) -> None:
        url = f"{self._cluster.url}{kind.path(self._namespace)}?watch=true&labelSelector={LABEL_DEPLOYMENT}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._cluster.token}"})
        # A kind without objects sends no event: its watch ends at the timeout, long after the last use of `seen`.
        answer = urllib.request.urlopen(request, timeout=600, context=self._tls)
        with contextlib.suppress(TimeoutError), answer as lines:
            for line in lines:
                now = time.monotonic()
                event = json.loads(line)
                if event["type"] == "ADDED":
                    self.seen[event["object"]["metadata"]["labels"][LABEL_DEPLOYMENT]].append(now)
