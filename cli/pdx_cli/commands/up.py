"""`pdx up`: runs a PDDeployment as local processes, in the foreground."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pdx_api.names import GATEWAY_PORT
from pdx_api.spec.types import PDDeployment, Spec
from pdx_cli import interrupts, usage
from pdx_cli.inputs import document
from pdx_cli.local import ports
from pdx_cli.local.layout import EngineKind, lay_out
from pdx_cli.local.processes import Processes
from pdx_cli.local.requirements import (
    LEAST_LIMIT,
    check_count,
    check_vllm,
    default_limit,
    machine_devices,
    missing_devices,
    missing_variables,
)
from pdx_cli.local.session import Session
from pdx_cli.runs.run_record import RunDirectory, default_root

Result = TypeVar("Result")

EXAMPLE: Final = Path(__file__).parents[1] / "local" / "example.yaml"
"""examples/tiny-cpu.yaml: an installation from a wheel has no folder of examples."""
START_SECONDS: Final = 600.0
MAX_START_SECONDS: Final = 24 * 3600.0

EPILOG: Final = """\
examples:
  pdx up examples/tiny-cpu.yaml
  pdx up examples/tiny-cpu.yaml --once                          prove that KV moves, then stop
  pdx up examples/tiny-cpu.yaml --set spec.kvTransfer.order=DecodeFirst
  pdx up examples/tiny-cpu.yaml --set spec.mode=Aggregated      one pool, for comparison
  pdx up examples/tiny-cpu.yaml --engine sim                    no vLLM, no model
  pdx up --engine sim --once                                    the same example, without a clone of PDX
  cat examples/tiny-cpu.yaml | pdx up - --engine sim

Ctrl-C stops every process; a second Ctrl-C kills those that still run. The exit code is 0 if --once proved that KV
moves, and after Ctrl-C while serving. It is 2 if the port or the run directory is in use: nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx up`."""
    document.add_arguments(parser, EXAMPLE)
    parser.add_argument("--once", action="store_true", help="print the proof and stop")
    parser.add_argument(
        "--port",
        type=usage.port,
        default=GATEWAY_PORT,
        metavar="PORT",
        help="the gateway's port on 127.0.0.1 (default: %(default)s)",
    )
    parser.add_argument(
        "--engine",
        choices=[str(kind) for kind in EngineKind],
        default=str(EngineKind.VLLM),
        help="real vLLM, or simulated engines (default: %(default)s)",
    )
    parser.add_argument(
        "--run-dir",
        type=usage.directory,
        metavar="DIR",
        help=f"directory for logs and state (default: {default_root()}/<name of the object>)",
    )
    parser.add_argument(
        "--start-timeout",
        type=usage.seconds(0, MAX_START_SECONDS),
        default=START_SECONDS,
        metavar="SECONDS",
        help="time for the engines to load (default: %(default)g)",
    )
    parser.add_argument(
        "--max-engines",
        type=usage.count,
        default=default_limit(os.cpu_count()),
        metavar="N",
        help="maximum number of engines on this machine "
        f"(default: 4 per core, at least {LEAST_LIMIT}, %(default)s here)",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked before the start, then run until the end."""
    if args.file == EXAMPLE:
        print(f"No FILE is named, so this runs PDX's example: {EXAMPLE}", file=sys.stderr, flush=True)
    deployment = document.load(args.file, args.assignments, args.name)
    kind = EngineKind(args.engine)
    check_count(deployment.spec, args.max_engines)
    if kind is EngineKind.VLLM:
        for warning in missing_devices(deployment.spec, machine_devices()):
            print(warning, file=sys.stderr, flush=True)
        check_vllm(deployment.spec)
    for warning in (*_key_secrets(deployment.spec), *missing_variables(deployment.spec, os.environ)):
        print(warning, file=sys.stderr, flush=True)
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
