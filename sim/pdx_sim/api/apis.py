"""Which module reads and answers the requests of a path."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pdx_api.vllm.versions import abilities, minor
from pdx_sim.api.answers import Writer
from pdx_sim.api.messages import MessageWriter, read_message
from pdx_sim.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from pdx_sim.api.request import Call, read_completion
from pdx_sim.api.responses import ResponseWriter, read_response
from pdx_sim.settings import SimSettings

_Reader = Callable[[Mapping[str, Any], str, str | None, SimSettings], Call]
_READERS: Final[dict[str, _Reader]] = {
    COMPLETIONS: read_completion,
    CHAT: read_completion,
    MESSAGES: read_message,
    RESPONSES: read_response,
}
_WRITERS: Final[dict[str, type[Writer]]] = {MESSAGES: MessageWriter, RESPONSES: ResponseWriter}


def read_call(body: Mapping[str, Any], path: str, header_id: str | None, settings: SimSettings) -> Call:
    """Validate the body of a request at this path. Raises APIError."""
    return _READERS[path](body, path, header_id, settings)


def writer_of(call: Call, settings: SimSettings) -> Writer:
    """A writer of the answer."""
    return _WRITERS.get(call.path, Writer)(
        call,
        settings.model,
        settings.prompt_tokens_details,
        abilities(minor(settings.version)),
        settings.bidirectional,
    )
