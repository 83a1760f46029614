"""The paths that clients may use: an allow-list, without vLLM's administrative paths. Pure."""

from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """How a path is served."""

    GENERATE = auto()
    """May be split between a prefill and a decode engine."""
    WHOLE = auto()
    """Goes to one engine."""
    READ = auto()
    """A GET without a body, to one engine."""
    MODELS = auto()
    """The models that engines report."""
    HEALTH = auto()
    READY = auto()


MODELS: Final = "/v1/models"

ROUTES: Final[dict[str, tuple[str, Kind]]] = {
    "/v1/completions": ("POST", Kind.GENERATE),
    "/v1/chat/completions": ("POST", Kind.GENERATE),
    "/v1/chat/completions/batch": ("POST", Kind.WHOLE),
    "/v1/responses": ("POST", Kind.GENERATE),
    "/v1/messages": ("POST", Kind.GENERATE),
    "/v1/messages/count_tokens": ("POST", Kind.WHOLE),
    "/v1/embeddings": ("POST", Kind.WHOLE),
    "/v2/embed": ("POST", Kind.WHOLE),
    "/v1/score": ("POST", Kind.WHOLE),
    "/score": ("POST", Kind.WHOLE),
    "/generative_scoring": ("POST", Kind.WHOLE),
    "/v1/rerank": ("POST", Kind.WHOLE),
    "/v2/rerank": ("POST", Kind.WHOLE),
    "/rerank": ("POST", Kind.WHOLE),
    "/classify": ("POST", Kind.WHOLE),
    "/pooling": ("POST", Kind.WHOLE),
    "/tokenize": ("POST", Kind.WHOLE),
    "/detokenize": ("POST", Kind.WHOLE),
    MODELS: ("GET", Kind.MODELS),
    "/version": ("GET", Kind.READ),
    "/health": ("GET", Kind.HEALTH),
    "/ready": ("GET", Kind.READY),
}


def is_model(path: str) -> bool:
    """Whether the path names one model. The name may contain slashes."""
    return path.startswith(f"{MODELS}/") and not path.endswith("/")


def methods_of(route: tuple[str, Kind] | None) -> tuple[str, ...]:
    """The methods of a path; none for a path that is not served. HEAD is a GET whose answer has no body."""
    if route is None:
        return ()
    return ("GET", "HEAD") if route[0] == "GET" else (route[0],)
