"""Runs a PDDeployment as local processes until a signal, or until the proof that KV moves."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from pdx_api.spec.types import PDDeployment, Spec
from pdx_cli import interrupts, streams
from pdx_cli.local import ports
from pdx_cli.local.engines import EngineKind
from pdx_cli.local.layout import lay_out
from pdx_cli.local.processes import Processes
from pdx_cli.local.requirements import check_count, check_vllm, machine_devices, missing_devices, missing_variables
from pdx_cli.local.session import Session
from pdx_cli.runs.run_record import RunDirectory, default_root

Result = TypeVar("Result")


def run(deployment: PDDeployment, args: argparse.Namespace) -> int:
    """Check everything that can be checked before the start, then run until the end. `args` are those of `pdx up`."""
    kind = EngineKind(args.engine)
    check_count(deployment.spec, args.max_engines)
    if kind is EngineKind.VLLM:
        streams.report(*missing_devices(deployment.spec, machine_devices()))
        check_vllm(deployment.spec)
    streams.report(*_key_secrets(deployment.spec), *missing_variables(deployment.spec, os.environ))
    name = deployment.metadata.name
    directory = RunDirectory(args.run_dir.absolute() if args.run_dir else default_root() / name)
    stop = StopRequest()
    with interrupts.handled(stop.on_signal):
        return _run_in(directory, deployment, kind, args, stop)


def _run_in(
    directory: RunDirectory, deployment: PDDeployment, kind: EngineKind, args: argparse.Namespace, stop: "StopRequest"
) -> int:
    """Acquire the directories and processes of the run, and release them."""
    with directory.held(deployment.metadata.name):
        ports.check_free(args.port)
        directory.remove_engine_logs()  # not earlier: a refused start keeps them
        admin = ports.adjacent(args.port)
        taken = frozenset({args.port, admin})
        with directory.scratch() as scratch, contextlib.closing(Processes(directory.reaper_log)) as processes:
            layout = lay_out(
                deployment,
                kind,
                port=args.port,
                admin=admin,
                storage=str(scratch.storage),
                allocate=lambda count: ports.allocate(count, taken=taken),
            )
            session = Session(deployment, kind, layout, directory, processes, scratch.sockets, args.start_timeout)
            return _run(session, stop, once=args.once)


def _key_secrets(spec: Spec) -> Iterator[str]:
    """Yield a warning about the fields that name Secrets with API keys, if there are any."""
    fields = {"spec.gateway.auth": spec.gateway.auth, "spec.engine.apiKeySecretRef": spec.engine.api_key_secret_ref}
    named = [field for field, value in fields.items() if value is not None]
    if named:
        verb = "names" if len(named) == 1 else "each name"
        yield f"{' and '.join(named)} {verb} a Secret of a cluster: this run checks no API keys."


class StopRequest:
    """The signals that have arrived. The first one stops the run wherever it is; a later one kills the processes."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[Any] | None = None
        self._processes: Processes | None = None

    def on_signal(self, number: signal.Signals) -> None:
        """Handle a signal in the main thread, between two instructions."""
        first = self.received is None
        self.received = self.received or number
        if self._loop is None:
            return
        if first and self._work is not None:
            self._loop.call_soon_threadsafe(self._work.cancel)
        elif self._processes is not None:
            self._processes.kill()

    def attach(self, work: "asyncio.Task[Any]", processes: Processes) -> None:
        """Cancel the work at the first signal, which may have arrived before."""
        self._loop, self._work, self._processes = asyncio.get_running_loop(), work, processes
        if self.received is not None:
            work.cancel()

    def finish(self) -> None:
        """From here on a signal kills the processes, which are being stopped."""
        self._work = None

    def detach(self) -> None:
        """The processes have ended and the loop is about to close."""
        self._loop = None


def _run(session: Session, stop: StopRequest, *, once: bool) -> int:
    work = session.prove() if once else session.serve()
    try:
        proof = asyncio.run(_supervised(work, session.processes, stop))
    except asyncio.CancelledError:
        assert stop.received is not None, "nothing else cancels the run"
        return 0 if session.serving else 128 + stop.received
    print(f"\n{proof}", flush=True)
    return 0 if proof.proven else 1


async def _supervised(work: Coroutine[Any, Any, Result], processes: Processes, stop: StopRequest) -> Result:
    """Do the work, and stop all processes when it ends or a signal arrives."""
    task = asyncio.create_task(work)
    stop.attach(task, processes)
    try:
        return await task
    except asyncio.CancelledError:
        print("Stopping", file=sys.stderr, flush=True)
        raise
    finally:
        stop.finish()
        await processes.stop()
        stop.detach()
