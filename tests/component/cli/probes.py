"""Runs `pdx probe` against simulated engines."""

import asyncio
import contextlib
import re

import pytest

from pdx_cli import interrupts
from pdx_cli.main import main
from pdx_cli.probing import session
from tests.component.harness import World

Captured = pytest.CaptureFixture[str]


def run_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in threads, which receive no signals. What cannot be freed is not awaited for long."""
    monkeypatch.setattr(interrupts, "handled", contextlib.nullcontext)
    monkeypatch.setattr(session, "_FREE_SECONDS", 0.5)


def command(world: World, *argv: str) -> list[str]:
    """The command line for the pair of a world."""
    asked = ("--connector", world.connector, "--order", world.order)
    bootstrap = ("--identity-port", str(world.p.side_channel_port)) if world.connector == "Mooncake" else ()
    return ["probe", "--prefill", world.p.url, "--decode", world.d.url, *asked, *bootstrap, *argv]


async def probe(capsys: Captured, argv: list[str]) -> tuple[int, dict[str, str], str]:
    """The exit code, and what is printed by the name of the line."""
    code = await asyncio.to_thread(main, argv)
    out, err = capsys.readouterr()
    assert not err
    lines = out.splitlines()
    found = {line[:9].strip(): line[10:] for line in lines}
    assert len(lines) == 5
    assert list(found) == ["asked", "prefill", "decode", "KV", "text"], out
    return code, found, out


async def check_engines(world: World) -> None:
    """The engines hold nothing, and have received nothing that they should not."""
    for engine in world.engines:
        await world._check_engine(engine)


async def passed_on(head: bytes, body: bytes, port: int, writer: asyncio.StreamWriter) -> None:
    """Pass a request on to an engine, and its answer back."""
    there, back = await asyncio.open_connection("127.0.0.1", port)
    back.write(head + body)
    writer.write(await there.read())
    back.close()
    await writer.drain()


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head, await reader.readexactly(int(length[1])) if length else b""
