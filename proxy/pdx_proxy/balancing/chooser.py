"""One worker's choice of engines: applies the policies of the settings and counts choices."""

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import LoadOf, Policy, affine, least, least_load, pressures
from pdx_proxy.balancing.prefill.backlog import PrefillLeg
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.config.settings import Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Affinity, Counters, NotSplitReason

SESSION_HEADER: Final = "x-session-id"


_GENERATE: Final = Kind.GENERATE
_LEAST: Final = PolicyName.LEAST_REQUESTS.value
_CONSTANT: Final = (PolicyName.EXPECTED_WAIT, PolicyName.LEAST_REQUESTS)
"""Policies that decide for every request, whatever it has."""
_AGGREGATED: Final = Role.AGGREGATED
_PREFILL: Final = Role.PREFILL
_KEPT: Final = Affinity.KEPT.value
_MOVED: Final = Affinity.MOVED.value

PolicyFor = Callable[[Request], Policy]
"""Returns the policy for a request."""


class Chooser:
    """One worker's choice of engines."""

    def __init__(self, choosing: Choosing, load: Load, counters: Counters, log: SharedLog | None = None) -> None:
        self._choosing = choosing
        self._load_of, self._share_of = load.of, load.share
        self._counters = counters
        self._prefill_choices, self._decode_choices = counters.choices["prefill"], counters.choices["decode"]
        self._least_load: dict[Role, Policy] = {Role.PREFILL: least, Role.DECODE: least}
        self.prefills = PrefillBalancer(load, log)
        """What the engines have to prefill."""
        self.expects_prefill = choosing.prefill_policy is PolicyName.EXPECTED_WAIT
        """Whether P's are selected by their expected wait."""
        self._expects_decode = False
        """Whether the engines that answer clients prefill too, and are selected by their expected wait."""
        self._aggregated = False
        self._prefill_name, self._decode_name = choosing.prefill_policy.value, _LEAST
        self._prefill_varies, self._decode_varies = choosing.prefill_policy not in _CONSTANT, False
        """Whether it depends on the request, or on reports, which policy decides."""
        self._prefill_policy = self._policy_for(choosing.prefill_policy, Role.PREFILL)
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

    def apply_load(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Compare the engines' load reports with the load that is counted at this moment."""
        for role, endpoints in ((Role.PREFILL, snapshot.prefill), (Role.DECODE, snapshot.decode)):
            self._least_load[role] = least_load(pressures(endpoints, reports.engines, self._load_of))
        self.prefills.apply(snapshot, reports)

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

    def count(self, choice: Choice, request: Request, *, split: bool, first: bool) -> None:
        """Count a choice that is used. `first`: for the first attempt of a request."""
        same = not self._decode_varies or self._decode_policy(request) is not least
        self._decode_choices[self._decode_name if same else _LEAST] += 1
        if choice.prefill is not None:
            same = not self._prefill_varies or self._prefill_policy(request) is not least
            self._prefill_choices[self._prefill_name if same else _LEAST] += 1
        elif split and first and choice.decode.role is Role.DECODE:
            reason = NotSplitReason.LONG_QUEUE if choice.decode.long_queue else NotSplitReason.NO_PREFILL
            self._counters.not_split[reason] += 1

    def sent(self, endpoint: Endpoint, request: Request) -> PrefillLeg | None:
        """Add a request's prompt to the backlog of an engine that prefills it; None if no policy needs that."""
        if endpoint.role is _PREFILL:
            return self.prefills.sent(endpoint, request, True) if self.expects_prefill else None
        return self.prefills.sent(endpoint, request, request.stream) if self._expects_decode else None

    def _set_decode_policy(self, *, aggregated: bool) -> None:
        """Select by role: an aggregated engine prefills, a D does not, so that it has no expected wait."""
        self._aggregated = aggregated
        choosing = self._choosing
        name = choosing.decode_policy or PolicyName.EXPECTED_WAIT
        self._expects_decode = aggregated and name is PolicyName.EXPECTED_WAIT
        if name is PolicyName.EXPECTED_WAIT and not aggregated:
            name = PolicyName.LEAST_REQUESTS
        self._decode_name, self._decode_varies = name.value, name not in _CONSTANT
        self._decode_policy = self._policy_for(name, Role.DECODE)
        key = PolicyName.PREFIX_AFFINITY in (choosing.prefill_policy, name)
        blocks = self.expects_prefill or self._expects_decode
        limit = choosing.disaggregate_above_tokens
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
            PolicyName.LEAST_REQUESTS: least_for,
            PolicyName.LEAST_LOAD: least_load_for,
            PolicyName.PREFIX_AFFINITY: prefix_affinity_for,
            PolicyName.SESSION_AFFINITY: session_affinity_for,
        }
        return factories[name]


def _affine(key: int, counts: dict[str, int]) -> Policy:
    """Return the policy for a request with this key."""

    def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        endpoint, kept = affine(endpoints, load_of, key)
        counts[_KEPT if kept else _MOVED] += 1
        return endpoint

    return choose
