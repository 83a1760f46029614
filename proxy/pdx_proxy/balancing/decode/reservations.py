"""What a request adds to the state of the engines that answer, once its engine has answered 200.

Until then, D counts as if it had the prompt's KV, or had to prefill it. That is taken back if the request fails.
"""

from pdx_proxy.balancing.decode.kept_prompts import KeptPrompts
from pdx_proxy.balancing.decode.placement import PrefillShare
from pdx_proxy.balancing.prefill.backlog import PrefillLeg, Reservation
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.payload.prompt_blocks import PromptBlocks


class SplitPrompt(Reservation):
    """A prompt whose KV a D gets, and keeps."""

    __slots__ = ("_endpoint", "_engine", "_kept", "_open", "_prefills", "_prompt")

    def __init__(self, prefills: PrefillBalancer, kept: KeptPrompts, endpoint: Endpoint, prompt: PromptBlocks) -> None:
        self._prefills = prefills
        self._kept = kept
        self._endpoint = endpoint
        self._prompt = prompt
        self._open = True
        self._engine = prefills.expected.engine(endpoint.name)
        self._engine.cache.reserve(prompt)

    def answered(self, now: float) -> None:
        if self._open:
            self._open = False
            engine, prompt = self._engine, self._prompt
            engine.cache.touch(prompt, engine.longest)
            self._kept.add(min(prompt.tokens, engine.longest))
            self._prefills.share_kept(self._endpoint, prompt, now)

    def dropped(self) -> None:
        if self._open:
            self._open = False
            self._engine.cache.withdraw(self._prompt)


class WholePrompt(Reservation):
    """A prompt that a D prefills, which takes a share of its time."""

    __slots__ = ("_leg", "_open", "_seconds", "_share")

    def __init__(self, leg: PrefillLeg, share: PrefillShare, seconds: float) -> None:
        self._leg = leg
        self._share = share
        self._seconds = seconds
        self._open = True
        share.add(seconds, leg.sent_at)

    def answered(self, now: float) -> None:
        self._open = False
        self._leg.answered(now)

    def dropped(self) -> None:
        if self._open:
            self._open = False
            self._share.take_back(self._seconds, self._leg.sent_at)
            self._leg.dropped()
