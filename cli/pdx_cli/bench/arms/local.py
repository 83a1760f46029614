"""Runs one arm as local processes, as `pdx up` does, in a directory of its own; removes what a killed run left."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pdx_api.names import Role
from pdx_api.spec.types import PDDeployment
from pdx_api.vllm.versions import NEWEST, abilities, stated
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.arms.layouts import INFIX
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.meters import LocalMeters
from pdx_cli.bench.targets import Target, shares_cores
from pdx_cli.errors import CommandError
from pdx_cli.local import ports
from pdx_cli.local.engines import EngineKind
from pdx_cli.local.layout import EngineProgram, Layout, lay_out
from pdx_cli.local.processes import Processes
from pdx_cli.local.session import Session
from pdx_cli.runs.run_record import RunDirectory
from pdx_cli.sources.client import Client

_START_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class LocalArms:
    """Where and how arms run on this machine."""

    root: Path
    """Parent of the run directories."""
    kind: EngineKind
    sim_flags: tuple[str, ...] = ()
    """Further flags of simulated engines."""

    @asynccontextmanager
    async def running(self, deployment: PDDeployment, arm: Arm) -> AsyncIterator[Target]:
        """Start the arm, prove that KV moves, and stop it; raises CommandError, which may name a log that stays."""
        directory = RunDirectory(self.root / deployment.metadata.name)
        try:
            async with self._started(deployment, arm, directory) as target:
                yield target
        except CommandError:
            raise
        except BaseException:
            shutil.rmtree(directory.path, ignore_errors=True)
            raise
        shutil.rmtree(directory.path, ignore_errors=True)

    @asynccontextmanager
    async def _started(self, deployment: PDDeployment, arm: Arm, directory: RunDirectory) -> AsyncIterator[Target]:
        name = deployment.metadata.name
        with (
            directory.held(name),
            directory.scratch() as scratch,
            contextlib.closing(Processes(directory.reaper_log)) as processes,
        ):
            layout = self._layout(deployment, arm, str(scratch.storage))
            session = Session(deployment, self.kind, layout, directory, processes, scratch.sockets, _START_SECONDS)
            try:
                proof = await session.prove()
                if not proof.proven:
                    raise CommandError(f"{arm.name} does not do what it must: {proof.lines[-1].strip()}", proof.lines)
                async with Client() as client:
                    yield self._target(deployment, arm, layout, client)
            finally:
                await processes.stop()

    def _layout(self, deployment: PDDeployment, arm: Arm, storage: str) -> Layout:
        port, admin = ports.allocate(2)
        taken = frozenset({port, admin})
        layout = lay_out(
            deployment,
            self.kind,
            port=port,
            admin=admin,
            storage=storage,
            allocate=lambda count: ports.allocate(count, taken=taken),
        )
        if self.kind is EngineKind.VLLM:
            return layout
        return replace(layout, engines=tuple(self._sim(deployment, arm, each) for each in layout.engines))

    def _sim(self, deployment: PDDeployment, arm: Arm, engine: EngineProgram) -> EngineProgram:
        """A simulated engine with the chunks and the interval of the arm, and a version that has the interval."""
        chunk = deployment.spec.pools()[engine.role].chunked_prefill.max_batched_tokens
        sized = ("--max-num-batched-tokens", str(chunk)) if chunk is not None else ()
        of = deployment.spec.engine
        spaces = abilities(stated(of.version, of.image)).spaces_prompts
        able = ("--vllm-version", f"{NEWEST.version}.0") if arm.interval and not spaces else ()
        spaced = ("--prefill-schedule-interval", str(arm.interval)) if arm.interval else ()
        return replace(engine, argv=(*engine.argv, *self.sim_flags, *sized, *able, *spaced))

    def _target(self, deployment: PDDeployment, arm: Arm, layout: Layout, client: Client) -> Target:
        spec = deployment.spec
        names = {engine.address: engine.name for engine in layout.engines}
        return Target(
            deployment.metadata.name,
            Server.of(layout.gateway.url),
            LocalMeters(layout.admin.url, client, names),
            arm,
            spec.model.served_name or spec.model.name,
            shares_cores=shares_cores(str(self.kind)) if len(layout.engines) > 1 or layout.of(Role.AGGREGATED) else "",
        )


def leftovers(root: Path, name: str) -> list[RunDirectory]:
    """The run directories of arms of this name whose run has ended."""
    if not root.is_dir():
        return []
    found = [RunDirectory(path) for path in sorted(root.glob(f"{name}{INFIX}*")) if path.is_dir()]
    return [each for each in found if not each.is_held]


def clean(found: Sequence[RunDirectory]) -> list[str]:
    """Remove them; return their names. Their processes ended with the run that was killed (`runs.reaper`)."""
    for each in found:
        each.remove_scratch()
        shutil.rmtree(each.path, ignore_errors=True)
    return [each.path.name for each in found if not os.path.lexists(each.path)]
