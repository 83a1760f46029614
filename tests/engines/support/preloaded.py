"""Engines forked from a process that has imported vLLM once.

The start of an engine takes 30 s of a core, and 24 s of them are imports: of the server, and again of its EngineCore.
With data parallelism, each further server and the coordinator import it too. A fork needs none of these. What runs
after it is `vllm serve`, but NIXL's progress thread sleeps between events. The pods of tests/cluster and the engines
of `pdx up` in test_up.py start the program itself.

All processes of an engine are forked from Python's fork server, which has no threads and no connectors. A fork of the
server itself would not do: NIXL's transfers stall in a process that has loaded UCX before it was forked.
"""

import contextlib
import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Final

import prometheus_client.values

from tests.engines.support.mooncake import libraries

NICENESS: Final = 5
"""Engines keep the cores busy for a long time, and the tests of other workers wait in real time."""
AT_START: Final = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TORCH_COMPILE_DISABLE": "1"}
"""What examples/tiny-cpu.yaml and connectors set, and what only the start or an import reads."""
PRELOAD: Final = "tests.engines.support.vllm_imports"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process inherits from the one that starts it, and a fork of the fork server does not."""

    environment: dict[str, str]
    log: str
    group: int
    """0 for a group of its own."""
    fork_server: str
    """Address of the fork server: processes that this one starts are forked from it, too."""

    def enter(self) -> None:
        """Apply all of it to this process."""
        os.setpgid(0, self.group)
        os.nice(NICENESS)
        output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(self.environment)
        metrics: Any = prometheus_client.values
        metrics.ValueClass = metrics.get_value_class()  # PROMETHEUS_MULTIPROC_DIR is read at the import
        server: Any = multiprocessing.forkserver._forkserver
        server._forkserver_address = self.fork_server
        server.ensure_running = lambda: None  # it would start another


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkServerProcess:
    """Start `vllm` with arguments in a process group of its own."""
    context = _fork_server()
    server: Any = multiprocessing.forkserver._forkserver
    surroundings = Surroundings(dict(environment), str(log), 0, server._forkserver_address)
    process = context.Process(target=_serve, args=(surroundings, ["vllm", *arguments]))
    process.start()
    return process


@functools.cache
def _fork_server() -> ForkServerContext:
    """Start the fork server, with the variables that a program reads when it starts."""
    variables = dict(AT_START)
    with contextlib.suppress(ImportError):  # tests that need Mooncake's libraries are skipped
        variables |= libraries()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    own = dict(os.environ)
    os.environ.update(variables)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(own)
    return context


def _serve(surroundings: Surroundings, arguments: list[str]) -> None:
    """Be the server."""
    surroundings.enter()
    sys.path[:0] = [path for path in surroundings.environment.get("PYTHONPATH", "").split(":") if path]
    sys.argv = arguments
    vllm: Any = importlib.import_module(PRELOAD)
    context = Context(surroundings, os.getpid())
    vllm.start_processes_in(context)
    vllm.main()


class _Entering:
    """A process's target. Its process enters the surroundings while it receives the target, before its arguments."""

    def __init__(self, surroundings: Surroundings, target: Callable[..., object]) -> None:
        self._parts = surroundings, target

    def __reduce__(self) -> tuple[Any, ...]:
        return _enter, self._parts


def _enter(surroundings: Surroundings, target: Callable[..., object]) -> Callable[..., object]:
    surroundings.enter()
    return target


class Context(ForkServerContext):
    """Starts the server's processes: in the server's group, with its log and the environment of that moment."""

    def __init__(self, surroundings: Surroundings, group: int) -> None:
        self._log, self._group, self._fork_server = surroundings.log, group, surroundings.fork_server

    def Process(self, *, target: Callable[..., object], **rest: Any) -> ForkServerProcess:  # type: ignore[override]  # noqa: N802
        """Return a process that is not started yet."""
        surroundings = Surroundings(dict(os.environ), self._log, self._group, self._fork_server)
        entering: Any = _Entering(surroundings, target)
        return ForkServerProcess(target=entering, **rest)
