"""One run of `pdx up`: starts engines and gateway, proves that KV moves, serves."""

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pdx_api.names import Mode
from pdx_api.spec.types import PDDeployment
from pdx_cli.local import startup
from pdx_cli.local.engines import EngineKind
from pdx_cli.local.evidence import gather
from pdx_cli.local.layout import EngineProgram, Layout, Program, environment
from pdx_cli.local.processes import Child, Processes
from pdx_cli.local.proof import Proof, judge
from pdx_cli.runs.run_record import Process, Run, RunDirectory
from pdx_cli.sources.client import Client


@dataclass(slots=True)
class Session:
    """One run. Its processes belong to `processes`, its files to `directory`."""

    deployment: PDDeployment
    kind: EngineKind
    layout: Layout
    directory: RunDirectory
    processes: Processes
    sockets: Path
    """Directory for vLLM's sockets. vLLM does not remove them; the directory is removed after the run."""
    start_timeout: float
    """Limit in seconds for the engines to become healthy."""
    started: float = field(default_factory=time.time)
    """Unix time, seconds."""
    serving: bool = False
    """Whether the endpoint has been printed for clients."""

    async def prove(self) -> Proof:
        """Start everything and prove that KV moves."""
        async with Client() as client:
            if self.layout.services:
                _report(f"Starting {_names(self.layout.services)}, which the engines need")
                await self._bring_up(client, self.layout.services)
                # Without a side service, engines go on and compute every prompt themselves.
                self.processes.restarts = {
                    program.name: partial(self._start, program) for program in self.layout.services
                }
            _report(f"Starting {_names(self.layout.engines)} ({self.kind}); logs in {self.directory.logs}")
            await self._bring_up(client, self.layout.engines)
            _report("Starting the gateway, which warms the engines up")
            await self._start(self.layout.gateway)
            await self.processes.guard(startup.warm(client, self.layout))
            _report("Proving with one request that KV moves")
            return judge(await self.processes.guard(gather(client, self.layout, self.deployment.spec)))

    async def serve(self) -> Proof:
        """Start everything, print how to use it, and stay until cancelled or until an engine or the gateway ends."""
        proof = await self.prove()
        self.serving = True
        self.directory.write(self._record())
        print(f"\nEndpoint\n  {self.layout.gateway.url}/v1\n\nTry\n  {self._curl()}\n\n{proof}\n", flush=True)
        print(f"Logs are in {self.directory.logs}. Ctrl-C stops everything.", flush=True)
        await self.processes.guard(asyncio.Event().wait())
        return proof

    async def _bring_up(self, client: Client, programs: Sequence[Program]) -> None:
        """Start the programs and wait until they are healthy."""
        for program in programs:
            await self._start(program)
        with startup.display() as show:
            await self.processes.guard(startup.healthy(client, programs, self.directory, self.start_timeout, show))

    async def _start(self, program: Program) -> Child:
        if isinstance(program, EngineProgram):
            _write(program.files)
        env = environment(os.environ, {"VLLM_RPC_BASE_PATH": str(self.sockets), **program.env})
        child = await self.processes.start(program.name, program.argv, env, self.directory.log(program.name))
        self.directory.write(self._record())
        return child

    def _curl(self) -> str:
        spec = self.deployment.spec
        model = spec.model.served_name or spec.model.name
        body = {"model": model, "prompt": "Hello, my name is", "max_tokens": 32, "temperature": 0}
        url = f"{self.layout.gateway.url}/v1/completions"
        return shlex.join(["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)])

    def _record(self) -> Run:
        spec = self.deployment.spec
        wired = spec.mode is Mode.DISAGGREGATED
        programs = (*self.layout.services, *self.layout.engines, self.layout.gateway)
        urls: Mapping[str, str] = {program.name: program.url for program in programs}
        return Run(
            name=self.deployment.metadata.name,
            pid=os.getpid(),
            started=self.started,
            mode=spec.mode,
            connector=spec.connector.name if wired else None,
            order=spec.order if wired else None,
            engine=self.kind,
            model=spec.model.served_name or spec.model.name,
            endpoint=self.layout.gateway.url,
            admin=self.layout.admin.url,
            processes=tuple(Process(c.name, c.pid, urls[c.name], str(c.log)) for c in self.processes.children),
            serving=self.serving,
            engines=len(self.layout.engines),
        )


def _write(files: Mapping[str, str]) -> None:
    for path, content in files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(content, encoding="utf-8")


def _names(programs: Sequence[Program]) -> str:
    return ", ".join(program.name for program in programs)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
