"""What `pdx doctor` and `pdx top` report about gateways of one deployment, read as in a cluster: all at once."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain

from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, examine, is_healthy
from pdx_cli.display.layout import problems
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import Local
from pdx_cli.inputs.times import Objectives
from pdx_cli.sources import local
from pdx_cli.sources.client import Client
from pdx_cli.sources.figures import Sample, figures
from pdx_cli.sources.sampling import LocalSampler


@dataclass(frozen=True, slots=True)
class Inspected:
    """A report of `pdx doctor`."""

    code: int
    """The exit code."""
    findings: Sequence[Finding]

    @property
    def causes(self) -> Sequence[str]:
        """The impacts first."""
        return [finding.cause for finding in self.findings]


async def inspected(admins: Sequence[str]) -> Inspected:
    """Run the doctor's checks on the gateways with these admin ports."""
    async with Client() as client:
        seen = [await local.observe(Local("rig", admin), client, lambda: datetime.now(UTC)) for admin in admins]
    gateways = chain.from_iterable(each.gateways for each in seen)
    named = tuple(replace(gateway, name=f"gateway-{number}") for number, gateway in enumerate(gateways))
    found = examine(replace(seen[0], gateways=named), CHECKS)
    return Inspected(0 if is_healthy(found) else 1, found)


async def topped(admins: Sequence[str], seconds: float) -> Sequence[str]:
    """The problems that `pdx top` shows after an interval of so many seconds."""
    async with Client() as client:
        before = await _sample(client, admins)
        await asyncio.sleep(seconds)
        now = await _sample(client, admins)
    if before is None or now is None:
        return ["no gateway answers"]
    return list(problems(figures(before, now, {}, Objectives())))


async def _sample(client: Client, admins: Sequence[str]) -> Sample | None:
    """One sample of all gateways; None if one does not answer."""
    try:
        found = [await LocalSampler(Local("rig", admin), client, time.monotonic).sample() for admin in admins]
    except CommandError:
        return None
    readings = chain.from_iterable(each.readings for each in found)
    named = tuple(replace(reading, name=f"gateway-{number}") for number, reading in enumerate(readings))
    return replace(found[0], readings=named)
