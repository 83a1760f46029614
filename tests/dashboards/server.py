"""A separate Prometheus process with a configuration, queried over its HTTP API."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

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
    folder: Path, targets: Sequence[Target], rules: Mapping[str, str] | None = None, every: float = SCRAPE_SECONDS
) -> AsyncIterator[PrometheusServer]:
    """A Prometheus that scrapes these targets, for the length of a block; `rules` are files of rules by name.

    It scrapes the targets and evaluates the rules once in `every` seconds.
    """
    program = prometheus_programs(print)["prometheus"]
    for name, text in (rules or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    configuration = folder / "prometheus.yml"
    configuration.write_text(json.dumps(_configuration(targets, list(rules or {}), every)), encoding="utf-8")
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


async def _address(lines: asyncio.StreamReader) -> str:
    """Where it listens, once it is ready to answer."""
    text, address = b"", ""
    async with asyncio.timeout(20):
        while line := await lines.readline():
            text += line
            if match := _LISTENING.search(line):
                address = match[1].decode()
            if b"Server is ready" in line:
                return address
    raise AssertionError(f"Prometheus ended: {text.decode()}")


def _configuration(targets: Sequence[Target], rules: list[str], seconds: float) -> Mapping[str, Any]:
    every = f"{seconds * 1000:.0f}ms"
    jobs = {target.job: target.honor_labels for target in targets}
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": rules,
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
