"""A client's request as engines receive it, and whether it can be split."""

from collections.abc import Mapping
from math import inf
from typing import Any

from pdx_proxy.payload.body import COMPLETIONS, Body


class Request:
    """A request that may go to an engine."""

    __slots__ = ("body", "deadline", "headers", "path", "session", "split")

    def __init__(
        self,
        path: str,
        body: Body,
        headers: tuple[tuple[str, str], ...],
        split: bool,
        session: str = "",
        deadline: float = inf,
    ) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        """The client's headers that go to engines."""
        self.split = split
        """Whether prefill and decode may run on different engines."""
        self.session = session
        """The client's name for the conversation; empty without one."""
        self.deadline = deadline
        """When the request expires, in the loop's time."""

    def whole(self) -> "Request":
        """The same request, not split."""
        return Request(self.path, self.body, self.headers, False, self.session, self.deadline)

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream. Deadlines depend on it."""
        return bool(self.body.fields.get("stream"))


def can_split(path: str, body: Mapping[str, Any]) -> bool:
    """Whether the request has one prompt and one answer, so that another engine can compute the prompt's KV.

    vLLM skips the connector for echo and prompt_logprobs (v1/core/sched/scheduler.py). With n > 1 each child request
    would fetch the same blocks, which the first one frees. A prompt that is truncated to leave room for the answer may
    be truncated differently for P, whose answer is one token.
    """
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1) or body.get("use_beam_search"):
        return False
    if body.get("echo") or body.get("prompt_logprobs") is not None:
        return False
    kept = body.get("truncate_prompt_tokens")
    if kept is not None and not (isinstance(kept, int) and kept >= 0):
        return False
    if path != COMPLETIONS:
        return True
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return bool(prompt) and (len(prompt) == 1 or isinstance(prompt[0], int))
    return isinstance(prompt, str) and bool(prompt) and body.get("prompt_embeds") is None
