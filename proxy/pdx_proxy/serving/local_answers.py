"""The requests that no engine serves: health, models, redirects, preflight requests, and what clients may not use."""

from collections.abc import Mapping
from typing import Final

from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.endpoints.models import ServedModel, union
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.cors import CORSPolicy, is_preflight
from pdx_proxy.http.downstream.exchange import Exchange, answer, own_headers
from pdx_proxy.http.errors import BAD_REQUEST, RefusedError, error_body, no_such_model, unavailable_body
from pdx_proxy.http.routes import MODELS, ROUTES, Kind, is_model, methods_of
from pdx_proxy.http.target import location

_NOT_FOUND: Final = b'{"detail":"Not Found"}'
_NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'
FRESH: Final[Mapping[str, str]] = {"cache-control": "no-store"}
"""A cache must not answer for the gateway later."""
_NO_ENGINE: Final = "No engine is ready."
_NO_WEBSOCKET: Final = "Send a POST over HTTP/1.1: the gateway opens no WebSocket."


class LocalAnswers:
    """Answers them for one worker."""

    def __init__(self, engines: Engines, keyring: Keyring, cors: CORSPolicy | None) -> None:
        self._engines = engines
        self._keyring = keyring
        self._cors = cors

    def answer(self, exchange: Exchange, *, draining: bool) -> None:
        """Answer a request that is none for engines."""
        path, method = exchange.path, exchange.method
        exchange.drop_body()
        if self._cors is not None and is_preflight(method, exchange.headers):
            status, text, headers = self._cors.preflight(exchange.headers)
            answer(exchange, status, text.encode(), headers, "text/plain; charset=utf-8")
            return
        route = ROUTES.get(path)
        allowed = ("GET", "HEAD") if route is None and is_model(path) else methods_of(route)
        if not allowed:
            self._answer_unserved(exchange)
        elif method == "GET" and method not in allowed and is_websocket(exchange.headers):
            answer(exchange, 426, error_body(426, _NO_WEBSOCKET, BAD_REQUEST, path=path), {"upgrade": "HTTP/1.1"})
        elif method not in allowed:
            answer(exchange, 405, _NOT_ALLOWED, {"allow": ", ".join(allowed)})
        elif route is None or route[1] is Kind.MODELS:
            self._answer_models(exchange)
        elif route[1] is Kind.READY:
            self._answer_ready(exchange, draining)
        else:
            answer(exchange, 200, b"", FRESH)

    def _answer_unserved(self, exchange: Exchange) -> None:
        """Redirect to the path without its trailing slashes, if that is served, as vLLM does; else 404."""
        path = exchange.path.rstrip("/")
        if path != exchange.path and (path in ROUTES or is_model(path)):
            # A path alone: behind a proxy that ends TLS, the scheme of this connection is not that of the client's.
            answer(exchange, 307, b"", {"location": location(path, exchange.query)})
        else:
            answer(exchange, 404, _NOT_FOUND, {})

    def _answer_ready(self, exchange: Exchange, draining: bool) -> None:
        if self._engines.snapshot.decode and not draining:
            answer(exchange, 200, b"", FRESH)
        else:
            answer(exchange, 503, unavailable_body(_NO_ENGINE), FRESH)

    def _answer_models(self, exchange: Exchange) -> None:
        """Answer with the models of the engines that answer clients, or with one of them; by API key, as vLLM does."""
        headers = {**own_headers(exchange), **FRESH}
        decode = self._engines.snapshot.decode
        try:
            self._keyring.identify(exchange.headers)
            if not decode:
                answer(exchange, 503, unavailable_body(_NO_ENGINE), {**headers, "retry-after": "1"})
                return
            page = _models_of(exchange.path, union(endpoint.models for endpoint in decode))
            answer(exchange, 200, page, headers)
        except RefusedError as refusal:
            answer(exchange, refusal.status, refusal.body(), {**headers, **refusal.headers})


def is_websocket(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for a WebSocket, as coding agents do before they send a POST (RFC 6455, 4.1)."""
    return "websocket" in headers.get("upgrade", "").lower()


def _models_of(path: str, models: Mapping[str, ServedModel]) -> bytes:
    """What a GET of this path returns; raises RefusedError for a model that no engine serves."""
    if path == MODELS:
        return b'{"object":"list","data":[%b]}' % b",".join(model.card for model in models.values())
    name = path.removeprefix(f"{MODELS}/")
    if name not in models:
        raise no_such_model(name)
    return models[name].card
