"""Engines that the tests of a wiring share."""

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from pdx_api.names import Order, Role
from pdx_api.spec.types import Spec
from pdx_api.vllm.versions import minor
from pdx_cli.main import main as pdx
from tests.engines.support import mooncake
from tests.engines.support.harness import Engine, Gateway, gateway, running, tiny_spec

os.environ["UCX_NET_DEVICES"] = "lo"
"""UCX may choose any device of the machine otherwise. That of a test cluster goes with the cluster, and KV then never
moves again between the two engines, without an error."""
LOG_LINES = 40
"""Lines of each log that a failed test shows."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines take their time; without vLLM every test here is skipped by name."""
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if "tests/engines" not in str(item.path):
            continue
        item.add_marker(pytest.mark.timeout(600))
        if missing:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed: run `make install`"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the engines and the gateway below a test that failed."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for server in _servers(item.funcargs):
            report.sections.append((str(server.log), _log_tail(server.log)))
    return report


def _servers(fixtures: dict[str, Any]) -> list[Engine | Gateway]:
    pair, front = fixtures.get("pair"), fixtures.get("front")
    found: list[Engine | Gateway] = [front] if isinstance(front, Gateway) else []
    return found + ([pair.prefill, pair.decode] if isinstance(pair, Pair) else [])


def _log_tail(log: Path) -> str:
    """The end of a log, less the lines of requests that were served."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if " 200 OK" not in line][-LOG_LINES:])


@dataclass(frozen=True)
class Pair:
    """One prefill and one decode engine, wired to each other."""

    prefill: Engine
    decode: Engine
    logs: Path

    async def version(self, session: aiohttp.ClientSession) -> str:
        """Of vLLM, as 0.32: versions of equal length compare as text."""
        async with session.get(f"{self.prefill.url}/version") as response:
            return minor((await response.json())["version"])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    assert pdx(["tiny-model", str(directory)]) == 0
    return directory


@contextlib.contextmanager
def running_pair(
    tiny_model: Path, logs: Path, order: str, connector: str = "NIXL", env: dict[str, str] | None = None
) -> Iterator[Pair]:
    """Engines wired for an order. Two pairs at once are slow: an idle NIXL engine keeps a core busy."""
    with running_engines(tiny_spec(tiny_model, order=order, connector=connector), logs, env=env or {}) as pair:
        yield pair


@contextlib.contextmanager
def running_engines(spec: Spec, logs: Path, **fields: Any) -> Iterator[Pair]:
    """One engine of each role, with these fields."""
    prefill, decode = (Engine(spec, role, logs, **fields) for role in (Role.PREFILL, Role.DECODE))
    with running(prefill, decode):
        yield Pair(prefill, decode, logs)


@pytest.fixture(scope="module")
def front(pair: Pair) -> Iterator[Gateway]:
    """A gateway in front of the module's pair, unless the module has a gateway of its own."""
    with gateway(Order.PREFILL_FIRST, [pair.prefill], [pair.decode], pair.logs) as ready:
        yield ready


def mooncake_environment() -> dict[str, str]:
    """What vLLM's engines get to run Mooncake's transfer engine. Without it, their tests are skipped."""
    try:
        libraries = mooncake.environment()
    except ImportError as error:
        pytest.skip(str(error))
    return {**libraries, "PYTHONPATH": f"{mooncake.PLUGIN}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client. No request of these tests takes a minute; one that hangs must not delay all tests behind it by five."""
    timeout = aiohttp.ClientTimeout(total=100)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as client:
        yield client


@pytest.fixture
async def client(front: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """The `openai` client in front of the gateway."""
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture
async def direct(pair: Pair) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same client at one engine: what vLLM itself gives."""
    async with openai.AsyncOpenAI(base_url=f"{pair.prefill.url}/v1", api_key="none", max_retries=0) as one:
        yield one
