"""One worker's choice of engines: applies the load-balancing policies of the settings and counts choices."""

from collections.abc import Collection
from typing import Final

from pdx_api.connectors.families import Push
from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role, Split
from pdx_api.settings.gateway import Choosing
from pdx_proxy.balancing.decode.balancer import DecodeBalancer
from pdx_proxy.balancing.decode.handoff_seconds import HandoffSeconds
from pdx_proxy.balancing.decode.kept_prompts import FEW
from pdx_proxy.balancing.decode.placement import Place, Targets
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.pick import Choice, pick, pick_whole
from pdx_proxy.balancing.policies import LEAST, LeastLoad, Policy, PrefixAffinity, SessionAffinity
from pdx_proxy.balancing.prefill.backlog import Reservation
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.config.settings import SLO
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.telemetry.counters import Counters, NotSplitReason, Phase

SESSION_HEADER: Final = "x-session-id"


_GENERATE: Final = Kind.GENERATE
_AGGREGATED: Final = Role.AGGREGATED
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE


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
        self._load_of, self._share_of = load.of, load.share
        self._counters = counters
        self._prefill_choices, self._decode_choices = counters.choices["prefill"], counters.choices["decode"]
        self.prefills = PrefillBalancer(load, log)
        """What the engines have to prefill."""
        targets = Targets(**slo.seconds())
        self.decodes = DecodeBalancer(load, self.prefills, targets, 1 if log is None else log.workers)
        """State of the engines that answer clients."""
        self.splits = choosing.split is Split.AUTO
        """Whether requests are split at all."""
        self.places = targets.places and self.splits
        """Whether `place` may find a D that prefills a request which could be split."""
        self._handoffs = HandoffSeconds()
        self._short_tokens = 0 if self.places else choosing.disaggregate_above_tokens
        self._prefill_policy = self._create_policy(_for_prefill(choosing.prefill_policy), Role.PREFILL)
        self._policy_of_aggregated = self._create_policy(
            choosing.decode_policy or PolicyName.EXPECTED_WAIT, Role.DECODE
        )
        """An aggregated engine prefills. A D mostly does not, so that it has no expected wait."""
        self._policy_of_decode = (
            self.decodes if self._policy_of_aggregated is self.prefills else self._policy_of_aggregated
        )
        self._decode_policy: Policy = self._policy_of_decode
        self.expects_prefill = self.places or self._prefill_policy.needs.backlog
        """Whether the gateway tracks what prefill engines have to prefill."""
        self.prompt_reader = self._prompt_reader()
        """Reads the features of every prompt; None if no setting needs them."""

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Put a snapshot in force."""
        aggregated = bool(snapshot.decode) and all(e.role is _AGGREGATED for e in snapshot.decode)
        policy = self._policy_of_aggregated if aggregated else self._policy_of_decode
        if policy is not self._decode_policy:
            self._decode_policy = policy
            self.prompt_reader = self._prompt_reader()
        self.prefills.apply(snapshot, reports)
        self.decodes.apply(snapshot, reports)

    def apply_load(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Compare the engines' load reports with the load that is counted at this moment."""
        self._prefill_policy.compare(snapshot.prefill, reports.engines, self._load_of)
        self._decode_policy.compare(snapshot.decode, reports.engines, self._load_of)
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
        self, snapshot: Snapshot, body: Body, *, split: bool, avoid: Collection[str], cursor: int
    ) -> Choice | None:
        """Select the engines of one attempt: see `pick`. Call `count` for a choice that is used."""
        prefill = self._prefill_policy.deciding(body) if split else LEAST
        decode = self._decode_policy.deciding(body)
        if split and not self.splits:
            return pick_whole(snapshot, self._load_of, body, avoid=avoid, cursor=cursor, decode=decode)
        return pick(
            snapshot, self._load_of, body, split=split, avoid=avoid, cursor=cursor, prefill=prefill, decode=decode
        )

    def choose_least_full(
        self, snapshot: Snapshot, body: Body, *, split: bool, avoid: Collection[str], cursor: int
    ) -> Choice | None:
        """Select the engines of an attempt that does not wait for room: by the share of their limits.

        By their load alone, all such attempts would go to the smallest engine.
        """
        if split and not self.splits:
            return pick_whole(snapshot, self._share_of, body, avoid=avoid, cursor=cursor)
        return pick(snapshot, self._share_of, body, split=split, avoid=avoid, cursor=cursor)

    def place(self, snapshot: Snapshot, body: Body, waited: float, avoid: Collection[str]) -> Choice | None:
        """Select a D that prefills a request which could be split, by the objectives; None if a P prefills it.

        `waited`: seconds since the request was read.
        """
        placed = self.decodes.place(snapshot, body, waited, avoid)
        return None if placed is None else Choice(placed[0], None, placed[1], self._decode_policy.deciding(body))

    def count(self, choice: Choice, body: Body, *, split: bool, first: bool) -> None:
        """Count a choice that is used. `first`: for the first attempt of a request."""
        self._decode_choices[choice.policy.name] += 1
        if choice.prefill is not None:
            self._prefill_choices[choice.prefill_policy.name] += 1
        elif split and first and (choice.suspended or choice.decode.role is _DECODE):
            self._counters.not_split[_why_not_split(choice) if self.splits else NotSplitReason.NEVER] += 1

    def sent(self, endpoint: Endpoint, body: Body) -> Reservation | None:
        """Add a request's prompt to the backlog of an engine that prefills it; None if no policy needs that."""
        if endpoint.role is _PREFILL:
            return self.prefills.sent(endpoint, body, True) if self.expects_prefill else None
        if self._decode_policy.needs.backlog:
            return self.prefills.sent(endpoint, body, body.decisions.stream)
        if not self.places:
            return None
        return self.decodes.sent_whole(endpoint, self.prefills.sent(endpoint, body, body.decisions.stream))

    def sent_split(self, decode: Endpoint, body: Body) -> Reservation | None:
        """A D will get the KV of a request's prompt; None if no policy needs that."""
        if self._tracks_kept() and (self.places or body.features.blocks.tokens >= FEW):
            return self.decodes.sent_split(decode, body)
        return None

    def _prompt_reader(self) -> PromptReader | None:
        """Return what reads the features of prompts that the policies in force need."""
        prefill, decode = self._prefill_policy.needs, self._decode_policy.needs
        key, blocks = prefill.key or decode.key, self.expects_prefill or decode.backlog
        limit = self._short_tokens
        return PromptReader(key, limit, blocks) if key or limit or blocks else None

    def _tracks_kept(self) -> bool:
        """Whether the gateway tracks the prompts that decode engines keep."""
        return self.places or (self.expects_prefill and self._decode_policy.needs.kept)

    def _create_policy(self, name: PolicyName, role: Role) -> Policy:
        """Return the policy of a role. The two that learn from all engines are the same object for both roles."""
        counts = self._counters.affinity[role]
        policies: dict[PolicyName, Policy] = {
            PolicyName.EXPECTED_WAIT: self.prefills,
            PolicyName.LEAST_ITL: self.decodes,
            PolicyName.LEAST_REQUESTS: LEAST,
            PolicyName.LEAST_LOAD: LeastLoad(),
            PolicyName.PREFIX_AFFINITY: PrefixAffinity(counts),
            PolicyName.SESSION_AFFINITY: SessionAffinity(counts),
        }
        return policies[name]


def _for_prefill(name: PolicyName | None) -> PolicyName:
    """Return the policy that takes effect for prefill engines. They answer with one token, so they have no ITL."""
    if name is PolicyName.LEAST_ITL:
        return PolicyName.LEAST_REQUESTS
    return name or PolicyName.EXPECTED_WAIT


def _why_not_split(choice: Choice) -> NotSplitReason:
    """Why a request that could have been split goes to a D alone."""
    if choice.place is not None:
        return NotSplitReason.BURST if choice.place is Place.BURST else NotSplitReason.SOONER
    if choice.suspended:
        return NotSplitReason.SUSPENDED
    return NotSplitReason.LONG_QUEUE if choice.decode.long_queue else NotSplitReason.NO_PREFILL
