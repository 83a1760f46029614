"""`pdx up`: runs a PDDeployment as local processes, in the foreground."""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from pdx_api.names import GATEWAY_PORT
from pdx_api.spec.types import Spec
from pdx_cli.inputs import document
from pdx_cli.local import ports
from pdx_cli.local.layout import EngineKind, lay_out
from pdx_cli.local.processes import Processes
from pdx_cli.local.requirements import check_vllm
from pdx_cli.local.session import Session
from pdx_cli.runs.run_record import RunDirectory, default_root

Result = TypeVar("Result")

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_SECONDS: Final = 600.0
MAX_START_SECONDS: Final = 24 * 3600.0

EPILOG: Final = """\
examples:
  pdx up examples/tiny-cpu.yaml
  pdx up examples/tiny-cpu.yaml --once                          prove that KV moves, then stop
  pdx up examples/tiny-cpu.yaml --set spec.kvTransfer.order=DecodeFirst
  pdx up examples/tiny-cpu.yaml --set spec.mode=Aggregated      one pool, for comparison
  pdx up examples/tiny-cpu.yaml --engine sim                    no vLLM, no model

Ctrl-C stops every process; a second Ctrl-C kills those that still run.
Exit code: 0 if --once proved that KV moves, or after Ctrl-C while serving; 1 if something failed."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal stops the run."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx up`."""
    document.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print the proof and stop")
    parser.add_argument(
        "--port", type=int, default=GATEWAY_PORT, help="the gateway's port on 127.0.0.1 (default: %(default)s)"
    )
    parser.add_argument(
        "--engine",
        choices=[str(kind) for kind in EngineKind],
        default=str(EngineKind.VLLM),
        help="real vLLM, or simulated engines (default: %(default)s)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help=f"directory for logs and state (default: {default_root()}/<name of the object>)",
    )
    parser.add_argument(
        "--start-timeout",
        type=_start_seconds,
        default=START_SECONDS,
        metavar="SECONDS",
        help="time for the engines to load (default: %(default)g)",
    )
    parser.epilog = EPILOG


def _start_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_START_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write seconds from 0 to {MAX_START_SECONDS:g}")
    return value


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked before the start, then run until the end."""
    deployment = document.load(args.file, args.assignments)
    kind = EngineKind(args.engine)
    ports.check_number(args.port)
    if kind is EngineKind.VLLM:
        check_vllm(deployment.spec)
    if fields := _key_secrets(deployment.spec):
        print(f"{fields} a Secret of a cluster: this run checks no API keys.", file=sys.stderr, flush=True)
    name = deployment.metadata.name
    directory = RunDirectory(args.run_dir.absolute() if args.run_dir else default_root() / name)
    with directory.held(name):
        ports.check_free(args.port)
        admin = ports.adjacent(args.port)
        taken = frozenset({args.port, admin})
        # Sockets are in the temporary directory, because a socket's path has at most 107 characters.
        with (
            tempfile.TemporaryDirectory(prefix="pdx-") as sockets,
            tempfile.TemporaryDirectory(prefix="kv-", dir=directory.path) as storage,
            contextlib.closing(Processes()) as processes,
        ):
            layout = lay_out(
                deployment,
                kind,
                port=args.port,
                admin=admin,
                storage=storage,
                allocate=lambda count: ports.allocate(count, taken=taken),
            )
            session = Session(deployment, kind, layout, directory, processes, Path(sockets), args.start_timeout)
            return _run(session, once=args.once)


def _key_secrets(spec: Spec) -> str:
    """Return the fields that name Secrets with API keys, and a verb; empty if there are none."""
    fields = {"spec.gateway.auth": spec.gateway.auth, "spec.engine.apiKeySecretRef": spec.engine.api_key_secret_ref}
    named = [field for field, value in fields.items() if value is not None]
    return f"{' and '.join(named)} {'names' if len(named) == 1 else 'each name'}" if named else ""


def _run(session: Session, *, once: bool) -> int:
    try:
        proof = asyncio.run(_supervised(session.prove() if once else session.serve(), session.processes))
    except Interrupted as interrupted:
        return 0 if session.serving else 128 + interrupted.number
    print(f"\n{proof}", flush=True)
    return 0 if proof.proven else 1


async def _supervised(work: Coroutine[Any, Any, Result], processes: Processes) -> Result:
    """Do the work, and stop all processes when it ends or a signal arrives. A signal during the stop kills them."""
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []
    stopping = False

    def on_signal(number: signal.Signals) -> None:
        if stopping or received:
            processes.kill()
            return
        received.append(number)
        task.cancel()

    _handle_signals(on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        print("Stopping", file=sys.stderr, flush=True)
        raise Interrupted(received[0]) from None
    finally:
        stopping = True
        await processes.stop()


def _handle_signals(handler: Callable[[signal.Signals], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, handler, number)
