"""A separate Prometheus process with a configuration, queried over its HTTP API."""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from pdx_cluster.programs.prometheus import prometheus_programs

SCRAPE_SECONDS: Final = 0.5
_LISTENING: Final = re.compile(rb'msg="Listening on" address=(\S+)')


@dataclass(frozen=True)
class Target:
    """A scrape target, with the labels that the chart's monitors would add."""

    address: str
    job: str
    labels: Mapping[str, str]
    honor_labels: bool = False


@dataclass(frozen=True)
class Series:
    """One answer of a range query."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """Unix seconds and value, without NaN."""


class QueryError(Exception):
    """Prometheus refuses an expression."""


class PrometheusServer:
    """A running server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; raises QueryError."""
        async with self._session.get(f"{self.url}/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        if answer["status"] != "success":
            raise QueryError(answer["error"])
        return answer["data"]

    async def scraping(self, targets: int) -> None:
        """Wait until so many targets answer; it takes Prometheus 5 s to begin."""
        while True:
            up = await self.get("query", query="sum(up)")
            if up["result"] and float(up["result"][0]["value"][1]) == targets:
                return
            await asyncio.sleep(0.1)

    async def over(self, expr: str, begin: float, end: float, step: float = 1.0) -> list[Series]:
        """An expression's series between two times (Unix seconds)."""
        data = await self.get("query_range", query=expr, start=str(begin), end=str(end), step=str(step))
        series = []
        for each in data["result"]:
            points = [(float(when), float(value)) for when, value in each["values"] if value != "NaN"]
            if points:
                series.append(Series(each["metric"], points))
        return series


@asynccontextmanager
async def prometheus(
    folder: Path,
    targets: Sequence[Target],
    rules: Mapping[str, str] | None = None,
    every: float = SCRAPE_SECONDS,
    receiver: str = "",
) -> AsyncIterator[PrometheusServer]:
    """A Prometheus that scrapes these targets, for the length of a block; `rules` are files of rules by name.

    It scrapes the targets and evaluates the rules once in `every` seconds. `receiver` is the address of an
    Alertmanager.
    """
    program = prometheus_programs(print)["prometheus"]
    for name, text in (rules or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    configuration = folder / "prometheus.yml"
    configuration.write_text(json.dumps(_configuration(targets, list(rules or {}), every, receiver)), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        address = await _address(process.stderr)
        rest = asyncio.create_task(process.stderr.read())  # so that it never waits to write
        async with aiohttp.ClientSession() as session:
            server = PrometheusServer(f"http://{address}", session)
            async with asyncio.timeout(30):
                await server.scraping(len(targets))
            yield server
    finally:
        process.terminate()
        await process.wait()
    await rest


class Alertmanager:
    """A running Alertmanager, and what it has sent to a webhook."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.fired: dict[tuple[str, str], float] = {}
        """Deployment (or the operator's namespace) and alert, with the time of the first message (Unix seconds)."""

    async def receive(self, request: web.Request) -> web.Response:
        """Take one message of the webhook."""
        for alert in (await request.json())["alerts"]:
            labels = alert["labels"]
            assert "<error" not in str(alert["annotations"]), "a template does not work"
            key = labels.get("pdx_dev_deployment") or labels["namespace"], labels["alertname"]
            self.fired.setdefault(key, time.time())
        return web.Response()

    async def wait(self, seconds: float) -> None:
        """Receive messages for so long."""
        await asyncio.sleep(seconds)


@asynccontextmanager
async def alertmanager(folder: Path) -> AsyncIterator[Alertmanager]:
    """An Alertmanager that sends every alert at once to a webhook, for the length of a block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    found = Alertmanager(address)
    app = web.Application()
    app.router.add_post("/", found.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hook = {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/", "send_resolved": False}
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    configuration = {"route": route, "receivers": [{"name": "hook", "webhook_configs": [hook]}]}
    (folder / "alertmanager.yml").write_text(json.dumps(configuration), encoding="utf-8")
    program = prometheus_programs(print)["prometheus-alertmanager"]
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
        cwd=program.parent,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            while not await _ready(session, f"http://{address}/-/ready"):
                assert process.returncode is None, "Alertmanager has ended"
                await asyncio.sleep(0.1)
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await runner.cleanup()


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def backfill(folder: Path, past: Mapping[tuple[str, str], float], seconds: float) -> None:
    """Write the values of series, by metric and deployment, for so many seconds until now into Prometheus' storage."""
    now, lines = time.time() - 2, []
    for (metric, deployment), value in past.items():
        labels = f'namespace="default",pdx_dev_deployment="{deployment}"'
        times = (now - seconds + number * seconds / 300 for number in range(301))
        lines += [f"# TYPE {metric} gauge", *(f"{metric}{{{labels}}} {value} {when:.3f}" for when in times)]
    text = folder / "past.txt"
    text.write_text("\n".join([*lines, "# EOF", ""]), encoding="utf-8")
    command = (prometheus_programs(print)["promtool"], "tsdb", "create-blocks-from", "openmetrics", text)
    process = await asyncio.create_subprocess_exec(
        *command, folder / "data", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def _address(lines: asyncio.StreamReader) -> str:
    """Where it listens, once it is ready to answer. Two of its threads write the two lines, in any order."""
    text, address, ready = b"", "", False
    async with asyncio.timeout(20):
        while line := await lines.readline():
            text += line
            if match := _LISTENING.search(line):
                address = match[1].decode()
            ready = ready or b"Server is ready" in line
            if ready and address:
                return address
    raise AssertionError(f"Prometheus ended: {text.decode()}")


def _configuration(targets: Sequence[Target], rules: list[str], seconds: float, receiver: str) -> Mapping[str, Any]:
    every = f"{seconds * 1000:.0f}ms"
    jobs = {target.job: target.honor_labels for target in targets}
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": rules,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [receiver]}]}] if receiver else []},
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": honor,
                "static_configs": [
                    {"targets": [target.address], "labels": dict(target.labels)}
                    for target in targets
                    if target.job == job
                ],
            }
            for job, honor in jobs.items()
        ],
    }
