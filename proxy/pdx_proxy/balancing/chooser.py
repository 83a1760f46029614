"""Which engines a request goes to, by the policies of the settings: what is asked of a prompt, and what is counted."""

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import Load, Policy, affine, least, least_load, pressures
from pdx_proxy.config.settings import Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.prompt import Look
from pdx_proxy.payload.request import Body, Request, can_split
from pdx_proxy.telemetry.counters import Affinity, Counters, Whole

SESSION_HEADER: Final = "x-session-id"


_GENERATE: Final = Kind.GENERATE
_LEAST: Final = PolicyName.LEAST_REQUESTS.value
_KEPT: Final = Affinity.KEPT.value
_MOVED: Final = Affinity.MOVED.value

Ask = Callable[[Request], Policy]
"""The policy that a request is chosen by."""


class Chooser:
    """One worker's choice of engines."""

    def __init__(self, choosing: Choosing, load: Load, counters: Counters) -> None:
        names = {choosing.prefill_policy, choosing.decode_policy}
        self._prefill_name, self._decode_name = choosing.prefill_policy.value, choosing.decode_policy.value
        self._prefill_choices, self._decode_choices = counters.choices["prefill"], counters.choices["decode"]
        self._plain = names == {PolicyName.LEAST_REQUESTS}
        self._load = load
        self._counters = counters
        self._least_load: dict[Role, Policy] = {Role.PREFILL: least, Role.DECODE: least}
        self._prefill = self._ask(choosing.prefill_policy, Role.PREFILL)
        self._decode = self._ask(choosing.decode_policy, Role.DECODE)
        wants_key = PolicyName.PREFIX_AFFINITY in names
        limit = choosing.disaggregate_above_tokens
        self.look = Look(wants_key, limit) if wants_key or limit else None
        """What is to be asked of every prompt."""

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Compare the engines' load reports with the load that is counted at this moment."""
        for role, endpoints in ((Role.PREFILL, snapshot.prefill), (Role.DECODE, snapshot.decode)):
            self._least_load[role] = least_load(pressures(endpoints, reports.engines, self._load))

    def may_split(self, kind: Kind, path: str, body: Body) -> bool:
        """Whether prefill and decode of a request may run on different engines; counted when they may not."""
        if kind is not _GENERATE:
            why = Whole.PATH
        elif not can_split(path, body.fields):
            why = Whole.PARAMETERS
        elif body.features.short:
            why = Whole.SHORT
        else:
            return True
        self._counters.not_split[why] += 1
        return False

    def choose(
        self, snapshot: Snapshot, request: Request, *, split: bool, avoid: Collection[str], turn: int
    ) -> Choice | None:
        """The engines of one attempt: see `pick`."""
        prefill: Policy = least
        decode: Policy = least
        if self._plain:
            choice = pick(snapshot, self._load, split=split, avoid=avoid, turn=turn)
        else:
            prefill, decode = self._prefill(request) if split else least, self._decode(request)
            choice = pick(snapshot, self._load, split=split, avoid=avoid, turn=turn, prefill=prefill, decode=decode)
        if choice is not None:
            self._decode_choices[_LEAST if decode is least else self._decode_name] += 1
            if choice.prefill is not None:
                self._prefill_choices[_LEAST if prefill is least else self._prefill_name] += 1
        if split and choice is not None and choice.prefill is None and choice.decode.role is Role.DECODE and not avoid:
            self._counters.not_split[Whole.NO_PREFILL] += 1
        return choice

    def _ask(self, name: PolicyName, role: Role) -> Ask:
        """The policy of a role. A request without a key goes where there are the least requests."""
        policies, counts = self._least_load, self._counters.affinity[role]

        def by_load(_: Request) -> Policy:
            return policies[role]

        def by_prefix(request: Request) -> Policy:
            key = request.body.features.key
            return least if key is None else _affine(key, counts)

        def by_session(request: Request) -> Policy:
            return _affine(zlib.crc32(request.session.encode("utf-8", "replace")), counts) if request.session else least

        asks: dict[PolicyName, Ask] = {
            PolicyName.LEAST_REQUESTS: lambda _: least,
            PolicyName.LEAST_LOAD: by_load,
            PolicyName.PREFIX_AFFINITY: by_prefix,
            PolicyName.SESSION_AFFINITY: by_session,
        }
        return asks[name]


def _affine(key: int, counts: dict[str, int]) -> Policy:
    """The policy of one request that has a key."""

    def choose(endpoints: Sequence[Endpoint], load: Load, turn: int) -> Endpoint:
        endpoint, kept = affine(endpoints, load, key)
        counts[_KEPT if kept else _MOVED] += 1
        return endpoint

    return choose
