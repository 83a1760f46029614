"""What `pdx probe` is asked: two engines and how they are wired. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from pdx_api.connectors.base import Connector
from pdx_api.connectors.families import Family, Pull
from pdx_api.hosts import host_problem
from pdx_api.names import Order, Role
from pdx_api.user_info import shown_url
from pdx_cli.errors import InputError


@dataclass(frozen=True, slots=True)
class Question:
    """The engines, their connector and the order of the legs."""

    prefill: str
    """Base URL."""
    decode: str
    connector: Connector
    order: Order
    model: str | None = None
    """The name to request; None: the one that both engines serve."""
    identity_port: int | None = None
    """The port at which P serves its identity; None: the connector's."""
    seconds: float = 30.0
    """Deadline of each request."""

    @property
    def family(self) -> Family:
        """The protocol of the hand-off."""
        return self.connector.family(self.order)

    def order_of(self, mode: object) -> Order | None:
        """Return the connector's order in which P's answer has this `transfer_mode`: pull or push; None without one."""
        orders = (order for order in self.connector.orders if _mode(self.connector.family(order)) == mode)
        return next(orders, None)

    def url(self, role: Role) -> str:
        """Return the base URL of one engine."""
        return self.prefill if role is Role.PREFILL else self.decode


def _mode(family: Family) -> str:
    return "pull" if isinstance(family, Pull) else "push"


def engine_url(flag: str, text: str) -> str:
    """Return the base URL of an engine; raises InputError for anything else."""
    given = text.strip()
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _invalid(flag, given) from error
    if parts.scheme not in ("http", "https") or not host or port == 0 or re.search(r"[\s@]", given):
        raise _invalid(flag, given)
    if problem := host_problem(host):
        raise _invalid(flag, given, problem)
    base = f"{parts.scheme}://{parts.netloc}"
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise InputError(f"{flag} {given} has a path; write only {base}.")
    return base


def _invalid(flag: str, given: str, problem: str = "") -> InputError:
    why = problem and f": {problem}"
    return InputError(
        f"{flag} {shown_url(given)} is not the URL of an engine{why}; write http://HOST:PORT or https://HOST:PORT."
    )
