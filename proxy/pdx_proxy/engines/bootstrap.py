"""Asking for the identity of an engine that tells it at a port beside its API (`families.AtBootstrap`)."""

from dataclasses import replace
from typing import Final

import orjson

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import AtBootstrap, Identity
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.engines import Engines
from pdx_proxy.http.upstream.connection import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, EngineFailure, LostConnection, Reason

_SECONDS: Final = 3.0
"""How long a bootstrap may take: it answers out of memory."""


async def ask_identity(engines: Engines, endpoint: Endpoint, asked: AtBootstrap) -> Identity:
    """The identity of the start that listens now; raises EngineFailure in the endpoint's name."""
    port = endpoint.spec.identity_port or CONNECTORS[endpoint.connector].port_names[asked.port]
    address = Address(endpoint.address.host, port)
    leg = engines.leg(Endpoint(replace(endpoint.spec, address=address, pod="", rank=None)))
    try:
        await leg.connect()
        leg.send("GET", asked.path, (), b"")
        answer = await leg.whole(_SECONDS)
    except ConnectFailure as failure:
        raise ConnectFailure(endpoint.name, f"its {asked.port}: {failure.detail}") from failure
    except EngineFailure as failure:
        raise LostConnection(endpoint.name, f"its {asked.port}: {failure.detail}") from failure
    finally:
        leg.end()
    try:
        return asked.read(_document(answer), address.host, port, endpoint.spec.rank or 0)
    except (LookupError, TypeError, ValueError) as error:
        detail = f"its {asked.port} names no identity: {error!r}"
        raise BadAnswer(endpoint.name, detail, Reason.LOST, 502, b"") from error


def _document(answer: Answer) -> object:
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    return orjson.loads(answer.body)
