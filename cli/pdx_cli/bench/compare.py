"""`pdx bench --compare`: one arm after the other on the same devices, on this machine or in a cluster."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.arms.cluster import ClusterArms, stale
from pdx_cli.bench.arms.comparable import State, differences, unequal_states
from pdx_cli.bench.arms.layouts import Wish, arms_of, devices_in_use, object_of
from pdx_cli.bench.arms.local import LocalArms, clean, leftovers
from pdx_cli.bench.session import Session, report
from pdx_cli.bench.targets import Target
from pdx_cli.errors import CommandError, InputError
from pdx_cli.local.startup import WARM_SECONDS

_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Choices:
    """The flags of a comparison."""

    devices: int | None
    chunks: tuple[int, ...]
    intervals: tuple[int, ...]
    ratios: tuple[tuple[int, int], ...]
    above: int


def planned_arms(deployment: PDDeployment, choices: Choices, free: int | None) -> tuple[list[Arm], int]:
    """Return the arms, and the devices of each; raises InputError if arms would differ, or devices do not suffice.

    `free`: devices that no pod has; None: unlimited, as on this machine. Pure.
    """
    spec = deployment.spec
    if found := differences(spec):
        lines = tuple(found) if len(found) > 1 else ()
        raise InputError("The arms would differ in more than what is compared:" if lines else found[0], lines)
    needed = choices.devices or devices_in_use(spec)
    if free is not None and needed > free:
        some = "1 device is free" if free == 1 else f"{free} devices are free"
        instead = f", or set --devices {free}" if free > 1 else ""
        raise InputError(f"Each arm needs {needed} devices and {some}; free some{instead}.")
    wish = Wish(needed, choices.chunks, choices.intervals, choices.ratios, choices.above)
    return arms_of(spec, wish), needed


def check_count(arms: Sequence[Arm], devices: int | None, limit: int) -> None:
    """Refuse more engines than `pdx up` starts on this machine; raises InputError. `devices`: the flag. Pure."""
    most = max(arms, key=lambda arm: arm.engines)
    if most.engines <= limit:
        return
    if devices is not None:
        raise InputError(
            f"--devices {devices} needs {most.engines} engines, and this machine starts at most {limit}; "
            f"write {limit} or less."
        )
    raise InputError(
        f"{most.name} needs {most.engines} engines, and this machine starts at most {limit}; lower the replicas in "
        "FILE."
    )


Running = Callable[[Arm], AbstractAsyncContextManager[Target]]


async def measure_all(session: Session, arms: list[Arm], running: Running) -> None:
    """Measure every arm. One that does not start is reported in the result, and the others go on."""
    states: list[State] = []
    for arm in arms:
        report(f"\n{arm.name}: starting")
        try:
            async with running(arm) as target:
                state = await state_of(arm, target)
                check_warm(state)
                states.append(state)
                if unequal := unequal_states(states):
                    raise InputError(unequal[0], tuple(unequal[1:]))
                await session.measure(target, arm)
        except InputError:
            raise
        except CommandError as error:
            report("\n    ".join((f"  {error}", *error.details)))
            session.failed(arm, _clause(error))


def check_warm(state: State) -> None:
    """Refuse to measure an arm that is not warm; raises CommandError, so that the other arms are measured."""
    if state.cold:
        engines = f"{', '.join(state.cold)} {'is' if len(state.cold) == 1 else 'are'}"
        raise CommandError(f"{state.name} would begin while {engines} not warm; run the comparison again.")


def _clause(error: CommandError) -> str:
    """What failed, without the details that were reported."""
    text = str(error)
    return (text.partition("; ")[0] if error.details else text).rstrip(".")


async def state_of(arm: Arm, target: Target, seconds: float = WARM_SECONDS) -> State:
    """The state of an arm once all of its engines are warm, or after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    snapshot = await target.meters.read()
    while snapshot is not None and snapshot.cold and loop.time() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        snapshot = await target.meters.read()
    if snapshot is None:
        return State(arm.name, images=target.images)
    return State(arm.name, snapshot.cold, snapshot.prefix_caching, target.images)


def local_running(arms: LocalArms, body: Mapping[str, Any]) -> Running:
    """How arms run on this machine."""
    return lambda arm: arms.running(parse(object_of(body, arm, {}, {})), arm)


def clean_local(arms: LocalArms, name: str) -> list[str]:
    """Remove what killed runs left on this machine."""
    return clean(leftovers(arms.root, name))


async def clean_cluster(arms: ClusterArms, *, everything: bool) -> list[str]:
    """Remove the arms of killed runs, or all; raises CommandError if another run goes on."""
    ended, live = stale(await arms.left(), arms.clock())
    if live and not everything:
        raise CommandError(
            f"Another `pdx bench` of {arms.access.name} runs ({', '.join(live)}), or was killed a minute ago "
            "or less; remove its arms with --clean."
        )
    names = [*ended, *(live if everything else [])]
    if names:
        report(f"Removing what an earlier run left: {', '.join(names)}")
        await arms.remove(names)
    return names
