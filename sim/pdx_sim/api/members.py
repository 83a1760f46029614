"""The members of a body that decide how it is answered, with the types of vLLM's models.

vLLM's models are lax, as pydantic's are by default: `"stream": "false"`, "no", "off", "0" and 0 are false, and
`"n": "2"` is 2. Source: openai/completion/protocol.py `CompletionRequest`, openai/chat_completion/protocol.py
`ChatCompletionRequest`, generate/base/protocol.py `StreamOptions`.
"""

from typing import Annotated

from pydantic import BaseModel, Field, field_validator


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool | None = False


class Members(BaseModel):
    """What completions and chats have in common."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    return_token_ids: bool | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stop_token_ids: list[int] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionMembers(Members):
    """Of /v1/completions."""

    n: int = 1
    echo: bool | None = False
    logprobs: int | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _check_logprobs(cls, given: object) -> object:
        """Unlike other numbers, vLLM reads this one before it is converted."""
        if given is not None and not isinstance(given, int | float):
            raise ValueError("`logprobs` must be an integer.")
        return given

    @property
    def answer_tokens(self) -> int | None:
        """Tokens that the client requests at most."""
        return self.max_tokens

    @property
    def with_logprobs(self) -> bool:
        """Whether the answer contains logprobs."""
        return self.logprobs is not None


class ChatMembers(Members):
    """Of /v1/chat/completions."""

    n: int | None = 1
    include_reasoning: bool = True
    echo: bool = False
    logprobs: bool | None = False
    max_completion_tokens: int | None = None

    @property
    def answer_tokens(self) -> int | None:
        """Tokens that the client requests at most."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def with_logprobs(self) -> bool:
        """Whether the answer contains logprobs."""
        return bool(self.logprobs)
