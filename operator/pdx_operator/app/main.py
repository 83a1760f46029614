"""The operator's entry point: command line, logs, endpoints."""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pdx_api import logs
from pdx_api.defaults import GATEWAY_REPOSITORY
from pdx_api.kube.client import Cluster
from pdx_api.kube.credentials import CredentialsError
from pdx_api.kube.kinds import KIND_OF
from pdx_api.names import FIELD_MANAGER, LogFormat
from pdx_api.version import pdx_version
from pdx_operator.app.health import PortError, serving
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.operator import Operator
from pdx_operator.app.settings import Settings
from pdx_operator.render.rbac import RoleKind

DEFAULT_GATEWAY_IMAGE: Final = f"{GATEWAY_REPOSITORY}:{pdx_version()}"
DEFAULT_LEASE: Final = "pdx-operator"
_LEAST_LEASE_SECONDS: Final = 4
_log: Final = logging.getLogger(__name__)
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns 1, with one sentence on stderr, if it cannot start."""
    settings = parse_arguments(argv)
    _configure_logs(settings)
    try:
        return asyncio.run(_serve(settings))
    except CredentialsError as error:
        sys.stderr.write(f"pdx operator: no cluster is configured: {error}\n")
    except PortError as error:
        sys.stderr.write(f"pdx operator: {error}\n")
    return 1


def create_parser() -> argparse.ArgumentParser:
    """Create the parser of the program's flags."""
    parser = argparse.ArgumentParser(prog="python -m pdx_operator", description="Reconciles PDDeployments.")
    parser.add_argument(
        "--namespace", action="append", default=[], help="namespace to watch; repeatable (default: all)"
    )
    parser.add_argument(
        "--gateway-image", default=DEFAULT_GATEWAY_IMAGE, help="image of gateways if the spec names none"
    )
    parser.add_argument("--health-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics; 0: none")
    parser.add_argument(
        "--log-format", type=LogFormat, choices=list(LogFormat), default=LogFormat.TEXT, help="Text (default) or JSON"
    )
    parser.add_argument("--verbose", action="store_true", help="also log plans and requests")
    add = parser.add_argument
    add(
        "--own-namespace",
        default=_own_namespace(),
        help="namespace of the operator (default: that of its pod, if it runs in one)",
    )
    add(
        "--gateway-pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="pull secret of the default gateway image, in the namespace of each PDDeployment; repeatable",
    )
    add(
        "--gateway-pull-policy",
        choices=("", "Always", "IfNotPresent", "Never"),
        default="",
        help="pull policy of the default gateway image; empty (default): Kubernetes' default for its tag",
    )
    add(
        "--max-gateway-upgrades",
        type=int,
        default=4,
        metavar="N",
        help="PDDeployments whose gateways are replaced at the same time after an upgrade, at least 1 (%(default)s)",
    )
    add(
        "--lease-name",
        default=DEFAULT_LEASE,
        help="Lease in the operator's own namespace; of all operators with the same name, only one works (%(default)s)",
    )
    add(
        "--lease-seconds",
        type=int,
        default=15,
        help="seconds without renewal of the Lease after which another operator takes over, at least 4 (%(default)s)",
    )
    return parser


def parse_arguments(argv: Sequence[str] | None) -> Settings:
    """Read the command line; a wrong one ends the program."""
    parser = create_parser()
    given = parser.parse_args(argv)
    if given.lease_seconds < _LEAST_LEASE_SECONDS:
        parser.error(f"--lease-seconds is {given.lease_seconds}; write at least {_LEAST_LEASE_SECONDS}")
    if given.max_gateway_upgrades < 1:
        parser.error(f"--max-gateway-upgrades is {given.max_gateway_upgrades}; write at least 1")
    return Settings(
        gateway_image=given.gateway_image,
        gateway_pull_secrets=tuple(dict.fromkeys(given.gateway_pull_secret)),
        gateway_pull_policy=given.gateway_pull_policy,
        gateway_role=RoleKind.ROLE if given.namespace else RoleKind.CLUSTER_ROLE,
        max_gateway_upgrades=given.max_gateway_upgrades,
        operator_namespace=given.own_namespace,
        lease_name=given.lease_name,
        lease_seconds=given.lease_seconds,
        namespaces=tuple(dict.fromkeys(given.namespace)),
        health_port=given.health_port,
        log_format=given.log_format,
        verbose=given.verbose,
    )


def _own_namespace() -> str:
    """The namespace of this pod; empty outside a pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""


def _configure_logs(settings: Settings) -> None:
    logs.configure(settings.log_format, "%(asctime)s %(levelname)s %(message)s")
    logging.getLogger().setLevel(logging.INFO)
    for package in ("pdx_operator", "pdx_api"):
        logging.getLogger(package).setLevel(logging.DEBUG if settings.verbose else logging.INFO)
    logging.getLogger("kopf").setLevel(logging.INFO if settings.verbose else logging.WARNING)
    # kopf logs every event that it delivers.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task has handled.

    When the operator ends, asyncio closes kopf's watches, which is sometimes an error in kopf (kopf 1.45,
    clients/watching.py `infinite_watch`: "generator didn't stop after athrow()"). It has no effect.
    """
    if "asyncgen" in context:
        _log.debug("Closing %s: %s", context["asyncgen"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


async def _serve(settings: Settings) -> int:
    """The exit status."""
    asyncio.get_running_loop().set_exception_handler(handle_loop_error)
    namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
    metrics = Metrics(time.time)
    watches = len(namespaces) * len(KIND_OF)
    cluster = await Cluster.connect(FIELD_MANAGER, settings.requests, watches, metrics.count_request)
    operator = Operator(settings, cluster, metrics, namespaces)
    try:
        async with serving(settings.health_port, operator.is_alive, operator.is_ready, metrics):
            return await operator.run()
    finally:
        await cluster.close()
