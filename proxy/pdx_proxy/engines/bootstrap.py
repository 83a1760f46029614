"""Queries the identity of an engine that publishes it at a port of its own (`families.AtBootstrap`)."""

from dataclasses import replace
from typing import Final

import orjson

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import AtBootstrap, Identity
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, EngineFailure, LostConnection, Reason

_SECONDS: Final = 3.0
"""How long the answer may take: the engine has it in memory."""


async def query_identity(engines: Engines, endpoint: Endpoint, source: AtBootstrap) -> Identity:
    """Return the identity of the process that listens now; raises EngineFailure with the endpoint's name."""
    port = endpoint.spec.identity_port or CONNECTORS[endpoint.connector].port_names[source.port]
    address = Address(endpoint.address.host, port)
    leg = engines.leg(Endpoint(replace(endpoint.spec, address=address, pod="", rank=None)))
    try:
        await leg.connect()
        leg.send("GET", source.path, (), b"")
        answer = await leg.whole(_SECONDS)
    except ConnectFailure as failure:
        raise type(failure)(endpoint.name, f"its {source.port}: {failure.detail}", local=failure.local) from failure
    except EngineFailure as failure:
        raise LostConnection(endpoint.name, f"its {source.port}: {failure.detail}", local=failure.local) from failure
    finally:
        leg.end()
    try:
        return source.read(_document(answer), address.host, port, endpoint.spec.rank or 0)
    except (LookupError, TypeError, ValueError) as error:
        detail = f"its {source.port} names no identity: {error!r}"
        raise BadAnswer(endpoint.name, detail, Reason.LOST, 502, b"") from error


def _document(answer: Answer) -> object:
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    return orjson.loads(answer.body)
