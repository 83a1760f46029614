"""One worker's choice of engines: applies the policies of the settings and counts choices."""

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pdx_api.connectors.families import Push
from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.decode.balancer import DecodeBalancer
from pdx_proxy.balancing.decode.handoff_seconds import HandoffSeconds
from pdx_proxy.balancing.decode.kept_prompts import FEW
from pdx_proxy.balancing.decode.placement import Place, Targets
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import LoadOf, Policy, affine, least, least_load, pressures
from pdx_proxy.balancing.prefill.backlog import PrefillLeg
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.config.settings import SLO, Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Affinity, Counters, NotSplitReason, Phase

SESSION_HEADER: Final = "x-session-id"


_GENERATE: Final = Kind.GENERATE
_LEAST: Final = PolicyName.LEAST_REQUESTS.value
_CONSTANT: Final = (PolicyName.EXPECTED_WAIT, PolicyName.LEAST_ITL, PolicyName.LEAST_REQUESTS)
"""Policies that decide for every request, whatever it has."""
_AGGREGATED: Final = Role.AGGREGATED
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE
_KEPT: Final = Affinity.KEPT.value
_MOVED: Final = Affinity.MOVED.value

PolicyFor = Callable[[Request], Policy]
"""Returns the policy for a request."""


_NO_SLO: Final = SLO()


class Chooser:
    """One worker's choice of engines."""

    def __init__(
        self,
        choosing: Choosing,
        load: Load,
        counters: Counters,
        log: SharedLog | None = None,
        slo: SLO = _NO_SLO,
    ) -> None:
        self._choosing = choosing
        self._load_of, self._share_of = load.of, load.share
        self._counters = counters
        self._prefill_choices, self._decode_choices = counters.choices["prefill"], counters.choices["decode"]
        self._least_load: dict[Role, Policy] = {Role.PREFILL: least, Role.DECODE: least}
        self.prefills = PrefillBalancer(load, log)
        """What the engines have to prefill."""
        targets = Targets(slo.ttft_milliseconds / 1000, slo.tpot_milliseconds / 1000)
        self.decodes = DecodeBalancer(load, self.prefills, targets, 1 if log is None else log.workers)
        """What the engines that answer decode."""
        self.places = targets.places
        """Whether `place` may find a D that prefills a request which could be split."""
        self.expects_prefill = self.places or choosing.prefill_policy is PolicyName.EXPECTED_WAIT
        """Whether what P's have to prefill is tracked."""
        self._keeps = False
        """Whether the prompts that D's keep are tracked."""
        self._expects_decode = False
        """Whether the engines that answer clients prefill too, and are selected by their expected wait."""
        self._handoffs = HandoffSeconds()
        self._aggregated = False
        name = choosing.prefill_policy
        if name is PolicyName.LEAST_ITL:  # a P answers with one token
            name = PolicyName.LEAST_REQUESTS
        self._prefill_name, self._decode_name = name.value, _LEAST
        self._prefill_varies, self._decode_varies = name not in _CONSTANT, False
        """Whether it depends on the request, or on reports, which policy decides."""
        self._prefill_policy = self._policy_for(name, Role.PREFILL)
        self._decode_policy = self._policy_for(PolicyName.LEAST_REQUESTS, Role.DECODE)
        self.prompt_reader: PromptReader | None = None
        """Reads the features of every prompt; None if no setting needs them."""
        self._set_decode_policy(aggregated=False)

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Put a snapshot in force."""
        aggregated = bool(snapshot.decode) and all(e.role is _AGGREGATED for e in snapshot.decode)
        if aggregated is not self._aggregated:
            self._set_decode_policy(aggregated=aggregated)
        self.prefills.apply(snapshot, reports)
        self.decodes.apply(snapshot, reports)

    def apply_load(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Compare the engines' load reports with the load that is counted at this moment."""
        for role, endpoints in ((Role.PREFILL, snapshot.prefill), (Role.DECODE, snapshot.decode)):
            self._least_load[role] = least_load(pressures(endpoints, reports.engines, self._load_of))
        self.prefills.apply(snapshot, reports)
        self.decodes.apply_load(snapshot, reports, self._counters.relays)
        if self.places:
            phases = self._counters.phases
            overlap = any(isinstance(d.family, Push) for d in snapshot.decode)
            self._handoffs.update(phases[Phase.HANDOFF], phases[Phase.PREFILL], overlap=overlap)
            self.decodes.handoff = self._handoffs.seconds

    def may_split(self, kind: Kind, body: Body) -> bool:
        """Whether prefill and decode of a request may run on different engines. Counts the requests that may not."""
        if kind is not _GENERATE:
            why = NotSplitReason.PATH
        elif not body.decisions.splits:
            why = NotSplitReason.PARAMETERS
        elif body.features.short:
            why = NotSplitReason.SHORT
        else:
            return True
        self._counters.not_split[why] += 1
        return False

    def choose(
        self, snapshot: Snapshot, request: Request, *, split: bool, avoid: Collection[str], cursor: int
    ) -> Choice | None:
        """Select the engines of one attempt: see `pick`. Call `count` for a choice that is used."""
        prefill = self._prefill_policy(request) if split else least
        decode = self._decode_policy(request)
        return pick(snapshot, self._load_of, split=split, avoid=avoid, cursor=cursor, prefill=prefill, decode=decode)

    def choose_least_full(
        self, snapshot: Snapshot, *, split: bool, avoid: Collection[str], cursor: int
    ) -> Choice | None:
        """Select the engines of an attempt that does not wait for room: by the share of their limits.

        By their load alone, all such attempts would go to the smallest engine.
        """
        return pick(snapshot, self._share_of, split=split, avoid=avoid, cursor=cursor)

    def place(self, snapshot: Snapshot, request: Request, waited: float, avoid: Collection[str]) -> Choice | None:
        """Select a D that prefills a request which could be split, by the objectives; None if a P prefills it.

        `waited`: seconds since the request was read.
        """
        found = self.decodes.place(snapshot, request, waited, avoid)
        return None if found is None else Choice(found[0], None, found[1])

    def count(self, choice: Choice, request: Request, *, split: bool, first: bool) -> None:
        """Count a choice that is used. `first`: for the first attempt of a request."""
        same = not self._decode_varies or self._decode_policy(request) is not least
        self._decode_choices[self._decode_name if same else _LEAST] += 1
        if choice.prefill is not None:
            same = not self._prefill_varies or self._prefill_policy(request) is not least
            self._prefill_choices[self._prefill_name if same else _LEAST] += 1
            if self._keeps and (self.places or request.body.features.blocks.tokens >= FEW):
                self.decodes.sent_split(choice.decode, request)
        elif split and first and choice.decode.role is _DECODE:
            self._counters.not_split[_why_not_split(choice)] += 1

    def sent(self, endpoint: Endpoint, request: Request) -> PrefillLeg | None:
        """Add a request's prompt to the backlog of an engine that prefills it; None if no policy needs that."""
        if endpoint.role is _PREFILL:
            return self.prefills.sent(endpoint, request, True) if self.expects_prefill else None
        if self._expects_decode:
            return self.prefills.sent(endpoint, request, request.stream)
        if not self.places:
            return None
        leg = self.prefills.sent(endpoint, request, request.stream)
        self.decodes.sent_whole(endpoint, leg)
        return leg

    def _set_decode_policy(self, *, aggregated: bool) -> None:
        """Select by role: an aggregated engine prefills, a D mostly does not, so that it has no expected wait."""
        self._aggregated = aggregated
        choosing = self._choosing
        name = choosing.decode_policy or PolicyName.EXPECTED_WAIT
        self._expects_decode = aggregated and name is PolicyName.EXPECTED_WAIT
        if name is PolicyName.EXPECTED_WAIT and not aggregated:
            name = PolicyName.LEAST_ITL
        self._decode_name, self._decode_varies = name.value, name not in _CONSTANT
        self._decode_policy = self._policy_for(name, Role.DECODE)
        key = PolicyName.PREFIX_AFFINITY in (choosing.prefill_policy, name)
        blocks = self.expects_prefill or self._expects_decode
        self._keeps = self.places or (self.expects_prefill and name is PolicyName.LEAST_ITL)
        limit = 0 if self.places else choosing.disaggregate_above_tokens
        self.prompt_reader = PromptReader(key, limit, blocks) if key or limit or blocks else None

    def _policy_for(self, name: PolicyName, role: Role) -> PolicyFor:
        """Return the policy factory of a role. For a request without a key it returns `least`."""
        policies, counts = self._least_load, self._counters.affinity[role]

        def least_for(_: Request) -> Policy:
            return least

        def least_load_for(_: Request) -> Policy:
            return policies[role]

        def prefix_affinity_for(request: Request) -> Policy:
            key = request.body.features.key
            return least if key is None else _affine(key, counts)

        def session_affinity_for(request: Request) -> Policy:
            return _affine(zlib.crc32(request.session.encode("utf-8", "replace")), counts) if request.session else least

        factories: dict[PolicyName, PolicyFor] = {
            PolicyName.EXPECTED_WAIT: self.prefills.policy_for,
            PolicyName.LEAST_ITL: self.decodes.policy_for,
            PolicyName.LEAST_REQUESTS: least_for,
            PolicyName.LEAST_LOAD: least_load_for,
            PolicyName.PREFIX_AFFINITY: prefix_affinity_for,
            PolicyName.SESSION_AFFINITY: session_affinity_for,
        }
        return factories[name]


def _why_not_split(choice: Choice) -> NotSplitReason:
    """Why a request that could have been split goes to a D alone."""
    if choice.place is not None:
        return NotSplitReason.BURST if choice.place is Place.BURST else NotSplitReason.SOONER
    return NotSplitReason.LONG_QUEUE if choice.decode.long_queue else NotSplitReason.NO_PREFILL


def _affine(key: int, counts: dict[str, int]) -> Policy:
    """Return the policy for a request with this key."""

    def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        endpoint, kept = affine(endpoints, load_of, key)
        counts[_KEPT if kept else _MOVED] += 1
        return endpoint

    return choose
