"""The most tokens that a request allows for its answer. Read only while an engine is short of KV. Pure."""

import re
from math import inf
from typing import Final

from pdx_proxy.http.messages import BodyParts
from pdx_proxy.payload.body import Body

_MOST_TOKENS: Final = re.compile(rb'"max_(?:completion_|output_)?tokens":\s*(\d{1,12})\b')


def most_answer_tokens(body: Body) -> float:
    """Return the largest number of tokens that the body allows its answer; infinity if it sets none.

    An estimate: of several such members, the least counts.
    """
    answer = body.answer
    text = bytes(answer) if isinstance(answer, BodyParts) else answer
    return min((float(found) for found in _MOST_TOKENS.findall(text)), default=inf)
