"""One worker's choice of engines: applies the policies of the settings and counts choices."""

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import LoadOf, Policy, affine, least, least_load, pressures
from pdx_proxy.config.settings import Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.prompt import PromptReader
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Affinity, Counters, NotSplitReason

SESSION_HEADER: Final = "x-session-id"


_GENERATE: Final = Kind.GENERATE
_LEAST: Final = PolicyName.LEAST_REQUESTS.value
_KEPT: Final = Affinity.KEPT.value
_MOVED: Final = Affinity.MOVED.value

PolicyFor = Callable[[Request], Policy]
"""Returns the policy for a request."""


class Chooser:
    """One worker's choice of engines."""

    def __init__(self, choosing: Choosing, load_of: LoadOf, counters: Counters) -> None:
        names = {choosing.prefill_policy, choosing.decode_policy}
        self._prefill_name, self._decode_name = choosing.prefill_policy.value, choosing.decode_policy.value
        self._prefill_choices, self._decode_choices = counters.choices["prefill"], counters.choices["decode"]
        self._plain = names == {PolicyName.LEAST_REQUESTS}
        self._load_of = load_of
        self._counters = counters
        self._least_load: dict[Role, Policy] = {Role.PREFILL: least, Role.DECODE: least}
        self._prefill_policy = self._policy_for(choosing.prefill_policy, Role.PREFILL)
        self._decode_policy = self._policy_for(choosing.decode_policy, Role.DECODE)
        needs_key = PolicyName.PREFIX_AFFINITY in names
        limit = choosing.disaggregate_above_tokens
        self.prompt_reader = PromptReader(needs_key, limit) if needs_key or limit else None
        """Reads the features of every prompt; None if no setting needs them."""

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Compare the engines' load reports with the load that is counted at this moment."""
        for role, endpoints in ((Role.PREFILL, snapshot.prefill), (Role.DECODE, snapshot.decode)):
            self._least_load[role] = least_load(pressures(endpoints, reports.engines, self._load_of))

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
        if self._plain:
            return pick(snapshot, self._load_of, split=split, avoid=avoid, cursor=cursor)
        prefill, decode = self._prefill_policy(request) if split else least, self._decode_policy(request)
        return pick(snapshot, self._load_of, split=split, avoid=avoid, cursor=cursor, prefill=prefill, decode=decode)

    def count(self, choice: Choice, request: Request, *, split: bool, first: bool) -> None:
        """Count a choice that is used. `first`: for the first attempt of a request."""
        by_key = not self._plain
        decode = self._decode_name if by_key and self._decode_policy(request) is not least else _LEAST
        self._decode_choices[decode] += 1
        if choice.prefill is not None:
            prefill = self._prefill_name if by_key and self._prefill_policy(request) is not least else _LEAST
            self._prefill_choices[prefill] += 1
        elif split and first and choice.decode.role is Role.DECODE:
            reason = NotSplitReason.LONG_QUEUE if choice.decode.long_queue else NotSplitReason.NO_PREFILL
            self._counters.not_split[reason] += 1

    def _policy_for(self, name: PolicyName, role: Role) -> PolicyFor:
        """Return the policy factory of a role. For a request without a key it returns `least`."""
        policies, counts = self._least_load, self._counters.affinity[role]

        def least_load_for(_: Request) -> Policy:
            return policies[role]

        def prefix_affinity_for(request: Request) -> Policy:
            key = request.body.features.key
            return least if key is None else _affine(key, counts)

        def session_affinity_for(request: Request) -> Policy:
            return _affine(zlib.crc32(request.session.encode("utf-8", "replace")), counts) if request.session else least

        factories: dict[PolicyName, PolicyFor] = {
            PolicyName.LEAST_REQUESTS: lambda _: least,
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
