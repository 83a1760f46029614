"""Engines that the tests of a wiring share."""

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest

from pdx_api.names import Role
from pdx_cli.main import main as pdx
from tests.engines.support.harness import Engine, Gateway, running, tiny_spec


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines take their time; without vLLM every test here is skipped by name."""
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if "tests/engines" not in str(item.path):
            continue
        item.add_marker(pytest.mark.timeout(600))
        if missing:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed: run `make install`"))


@dataclass(frozen=True)
class Pair:
    """One prefill and one decode engine, wired to each other."""

    prefill: Engine
    decode: Engine
    logs: Path


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
    spec = tiny_spec(tiny_model, order=order, connector=connector)
    pair = Pair(Engine(spec, Role.PREFILL, logs, env=env or {}), Engine(spec, Role.DECODE, logs, env=env or {}), logs)
    with running(pair.prefill, pair.decode):
        yield pair


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
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
