"""vLLM's answers to completions and chats: complete answers and the events of streams."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from pdx_api.vllm.versions import Abilities
from pdx_sim.api.paths import COMPLETIONS
from pdx_sim.api.request import APIError, Call
from pdx_sim.core.sequence import Finish, Leg, Sequence
from pdx_sim.core.tokens import detokenize, pieces

Usage: TypeAlias = dict[str, Any]
ANSWERED_BY_DECODE: Final = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[3, 1, 4]],
    "remote_engine_id": 'decode-"{0}"',
    "remote_host": "192.0.2.7",
    "remote_port": 5600,
}
"""Of a bidirectional D."""
DONE: Final = b"data: [DONE]\n\n"


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def named_event(kind: str, **content: Any) -> bytes:
    """An event with a name, which is also its member `type`."""
    return f"event: {kind}\n".encode() + event({"type": kind, **content})


@dataclass(slots=True)
class Choice:
    """One choice of an answer, with the text of its sequence."""

    index: int
    seq: Sequence
    hidden: int = 0
    """Tokens at the beginning that are not sent."""
    sent: int = 0
    """Tokens already sent in a stream."""
    ended: bool = False
    """Whether the stream has sent its finish reason."""
    _pieces: list[str] = field(default_factory=list)

    def take(self) -> int:
        """Take the next token for a stream; return its position."""
        position = self.sent
        self.sent += 1
        self.ended = self.ended or (self.seq.finish is not None and self.sent == self.seq.produced)
        return position

    def hide(self) -> None:
        """Pass over the tokens that are not sent, as far as they have been generated."""
        self.sent = max(self.sent, min(self.hidden, self.seq.produced))

    def text(self, begin: int, end: int) -> str:
        """The text of the tokens from `begin` to `end` that are sent."""
        if len(self._pieces) < end:
            self._pieces = pieces(self.seq.digest, self.seq.last_token)
        return "".join(self._pieces[max(begin, self.hidden) : end])


class Writer:
    """Writes the answer to one request."""

    def __init__(self, call: Call, model: str, details: bool, has: Abilities, bidirectional: bool = False) -> None:
        self.call = call
        self.model = model
        self.created = int(time.time())
        self._details = details
        self._has = has
        self._shows = bidirectional and call.leg is Leg.DECODE
        kind = "chat.completion" if call.chat else "text_completion"
        self._shared = {"id": call.answer_id, "object": kind, "created": self.created, "model": model}

    def whole(self, choices: list[Choice], with_params: bool = True) -> dict[str, Any]:
        """A complete answer."""
        params = (choices[0].seq.answer_params or self._answered) if with_params else None
        return {
            **self._shared,
            "choices": [self._choice(choice) for choice in choices],
            "usage": self.usage(choices),
            "kv_transfer_params": params,
            **self._prompt_tokens(choices[0].seq),
        }

    def _prompt_tokens(self, seq: Sequence) -> dict[str, Any]:
        """A chat's are outside of its choices."""
        return {"prompt_token_ids": list(seq.prompt) if self.call.return_token_ids else None} if self.call.chat else {}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        seq = choice.seq
        text = "" if seq.finish is Finish.ABORT else choice.text(0, seq.produced)
        ids = list(seq.prompt) if self.call.return_token_ids else None
        shared = {
            "index": choice.index,
            "logprobs": self._logprobs(choice, 0, seq.produced),
            "finish_reason": seq.finish,
            "stop_reason": None,
            "token_ids": None,
        }
        if self.call.chat:
            message = {"role": "assistant", "content": text}
            return {**shared, "message": message}
        text = detokenize(seq.prompt) + text if self.call.echo else text
        return {**shared, "text": text, "prompt_logprobs": None, "prompt_token_ids": ids}

    def usage(self, choices: list[Choice]) -> Usage:
        """Token counts; a prompt with several choices counts once."""
        prompt = sum(len(choice.seq.prompt) for choice in choices[:: self.call.n])
        completion = sum(choice.seq.produced for choice in choices)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": self._prompt_details(choices) if self._details else None,
        }

    def _prompt_details(self, choices: list[Choice]) -> dict[str, int | None]:
        rest = dict.fromkeys(("created_cache_tokens", "multimodal_tokens"))
        return {"cached_tokens": self.cached(choices), **rest}

    def cached(self, choices: list[Choice]) -> int:
        """Tokens that were not computed here. A D that receives P's number of cached tokens answers that number."""
        remote = self.call.params.get("remote_prefill_cached_tokens")
        own = max(choices[-1].seq.cached, choices[-1].seq.found)
        return remote if self.call.leg is Leg.DECODE and isinstance(remote, int) else own

    def announcements(self) -> list[bytes]:
        """Events that are sent before the engine has the request."""
        return []

    def first(self, choice: Choice) -> list[bytes]:
        """The event before the first token, if any: a chat's role, or an echoed prompt."""
        if self.call.chat:
            return [self._chunk({"index": choice.index, "delta": {"role": "assistant", "content": ""}})]
        if self.call.echo:
            return [self._chunk({"index": choice.index, "text": detokenize(choice.seq.prompt)}, self._params(None))]
        return []

    def token(self, choice: Choice) -> list[bytes]:
        """The event of the next token, with the finish reason if it is the last."""
        position = choice.take()
        finish = choice.seq.finish if choice.ended else None
        return [self._piece(choice, choice.text(position, position + 1), finish, position)]

    def ending(self, choice: Choice) -> list[bytes]:
        """The event with the finish reason of a choice whose last token was sent without it."""
        choice.ended = True
        return [self._piece(choice, "", choice.seq.finish, choice.sent)]

    def closing(self, choices: list[Choice]) -> list[bytes]:
        """The event with the usage, and the end."""
        usage = {**self._shared, "object": self._chunk_kind, "choices": [], "usage": self.usage(choices)}
        return [event(usage), DONE] if self.call.include_usage else [DONE]

    def failed(self, error: APIError) -> bytes | None:
        """What ends a stream in which the engine fails; None: the connection is closed."""
        return event(error.as_json()) + DONE

    def not_loaded(self, choices: list[Choice], error: APIError) -> list[bytes | None]:
        """The events that end a stream whose KV has failed to load; None: the connection is closed."""
        if self._has.ends_silently and self.call.path == COMPLETIONS:
            return [*self.closing(choices)]
        return [self.failed(error)]

    def _piece(self, choice: Choice, text: str, finish: Finish | None, position: int) -> bytes:
        logprobs = self._logprobs(choice, position, position + 1) if text else None
        content = {"delta": {"content": text}} if self.call.chat else {"text": text}
        return self._chunk(
            {
                "index": choice.index,
                **content,
                "logprobs": logprobs,
                "finish_reason": finish,
                "stop_reason": None,
                "token_ids": None,
            },
            self._params(finish),
        )

    @property
    def _answered(self) -> Mapping[str, Any] | None:
        """What a bidirectional D answers, for a P that may read its KV later."""
        return ANSWERED_BY_DECODE if self._shows else None

    def _params(self, finish: Finish | None) -> dict[str, Any]:
        """The hand-off parameters of an event with tokens; the last one has those of the answer."""
        if not self._has.null_params:
            return {}
        return {"kv_transfer_params": None if finish is None else self._answered}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.call.chat else "text_completion"

    def _chunk(self, choice: dict[str, Any], params: Mapping[str, Any] | None = None) -> bytes:
        choice.setdefault("logprobs", None)
        choice.setdefault("finish_reason", None)
        return event({**self._shared, "object": self._chunk_kind, "choices": [choice], **(params or {})})

    def _logprobs(self, choice: Choice, begin: int, end: int) -> dict[str, Any] | None:
        if not self.call.logprobs:
            return None
        texts = [choice.text(position, position + 1) for position in range(begin, end)]
        if self.call.chat:
            content = [{"token": text, "logprob": 0.0, "bytes": list(text.encode())} for text in texts]
            return {"content": [{**each, "top_logprobs": []} for each in content]}
        return {
            "tokens": texts,
            "token_logprobs": [0.0] * len(texts),
            "top_logprobs": [{text: 0.0} for text in texts],
            "text_offset": [len(choice.text(0, position)) for position in range(begin, end)],
        }
