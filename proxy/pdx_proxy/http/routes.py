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
    HEALTH = auto()
    READY = auto()


ROUTES: Final[dict[str, tuple[str, Kind]]] = {
    "/v1/completions": ("POST", Kind.GENERATE),
    "/v1/chat/completions": ("POST", Kind.GENERATE),
    "/v1/chat/completions/batch": ("POST", Kind.WHOLE),
    "/v1/responses": ("POST", Kind.WHOLE),
    "/v1/messages": ("POST", Kind.WHOLE),
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
    "/v1/models": ("GET", Kind.READ),
    "/version": ("GET", Kind.READ),
    "/health": ("GET", Kind.HEALTH),
    "/ready": ("GET", Kind.READY),
}
