"""The paths that generate."""

from typing import Final

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
