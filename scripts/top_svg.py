"""`python -m scripts.top_svg` writes docs/top.svg: `pdx top` at 80x24, on simulated engines under load.

The engines have the step times of a published measurement (`pdx sim --profile`).
"""

import asyncio
import fcntl
import html
import os
import pty
import random
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Final

import aiohttp
import pyte

from pdx_cli.local.ports import allocate

FIGURE: Final = Path(__file__).parents[1] / "docs" / "top.svg"
COLUMNS: Final = 80
LINES: Final = 24
_ENGINES: Final = (("prefill", 2), ("decode", 2))
_SECONDS: Final = 45.0
"""How long the load runs before the picture is taken."""
_REQUESTS_PER_SECOND: Final = 2.5
_CHARACTER: Final = (8.4, 18.0)
"""Width and height of a character in the picture."""
_STYLE: Final = """:root { color-scheme: light dark; --page: #ffffff; --default: #1d1d1b; --red: #b3372f;
  --green: #0a7d4d; --brown: #8a6200; --blue: #2a6fdb; --magenta: #8a52c7; --cyan: #0b7285; --black: #62625c;
  --white: #62625c; --rule: #8a8a82; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --default: #ececE6; --red: #ff8a80; --green: #4cc38a;
  --brown: #e0b34a; --blue: #6ea8ff; --magenta: #c49bff; --cyan: #66d9e8; --black: #a3a39b; --white: #a3a39b; } }
rect { fill: var(--page); stroke: var(--rule); } text { font-family: monospace; font-size: 14px; white-space: pre; }"""
_COLOURS: Final = frozenset({"default", "red", "green", "brown", "blue", "magenta", "cyan", "black", "white"})


TITLE: Final = "pdx top on simulated engines, 80 columns and 24 lines"


def svg(rows: list[list[pyte.screens.Char]], title: str = TITLE) -> str:
    """A picture of a terminal's rows that follows the reader's light or dark scheme."""
    width, height = _CHARACTER
    size = (round(len(rows[0]) * width + 24), round(len(rows) * height + 20))
    texts = []
    for number, row in enumerate(rows):
        column = 0
        for style, group in groupby(row, key=lambda char: (char.fg, char.bold)):
            part = "".join(char.data for char in group)
            if part.strip():
                texts.append(_text(part, style, 12 + column * width, 24 + number * height))
            column += len(part)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">'
    frame = f'<rect x="0.5" y="0.5" width="{size[0] - 1}" height="{size[1] - 1}" rx="6"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>\n{_STYLE}\n</style>", frame, *texts, "</svg>", ""])


def _text(part: str, style: tuple[str, bool], x: float, y: float) -> str:
    colour, bold = style
    fill = colour if colour in _COLOURS else "default"
    length = len(part) * _CHARACTER[0]
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.0f}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
    return f'<text {place} style="fill: var(--{fill})"{weight}>{html.escape(part)}</text>'


@asynccontextmanager
async def _program(
    *argv: str, env: Mapping[str, str] | None = None, terminal: int | None = None
) -> AsyncIterator[None]:
    """A command of `pdx` that ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pdx_cli", *argv),
        stdin=terminal if terminal is not None else asyncio.subprocess.DEVNULL,
        stdout=terminal if terminal is not None else asyncio.subprocess.DEVNULL,
        stderr=terminal,
        env=env,
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _load(session: aiohttp.ClientSession, url: str) -> None:
    """Send requests at random times (Poisson) until cancelled."""
    dice = random.Random(1)  # noqa: S311 (a repeatable load)
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(dice.expovariate(_REQUESTS_PER_SECOND))
            prompt = " ".join(f"{dice.randrange(10**6)}" for _ in range(dice.randrange(300, 600)))
            group.create_task(
                _send(session, url, {"model": "sim", "prompt": prompt, "max_tokens": 200, "stream": True})
            )


async def _send(session: aiohttp.ClientSession, url: str, body: Mapping[str, object]) -> None:
    async with session.post(f"{url}/v1/completions", json=body) as response:
        await response.read()


async def _ready(session: aiohttp.ClientSession, admin: str) -> None:
    async with asyncio.timeout(120):
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{admin}/pdx/state") as response:
                    state = await response.json()
                    if all(each["state"] == "Warm" for each in state["endpoints"]):
                        return
            await asyncio.sleep(0.2)


def _read(descriptor: int, stream: pyte.ByteStream) -> None:
    with suppress(BlockingIOError):
        while data := os.read(descriptor, 65536):
            stream.feed(data)


async def _capture(admin: str) -> list[list[pyte.screens.Char]]:
    """The screen of `pdx top` after the load has run for its time."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    controller, terminal = pty.openpty()
    os.set_blocking(controller, False)
    fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    async with _program("top", "--admin", admin, "--interval", "5", env=env, terminal=terminal):
        end = asyncio.get_running_loop().time() + _SECONDS
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
            _read(controller, stream)
        return [[screen.buffer[line][column] for column in range(COLUMNS)] for line in range(LINES)]


async def figure() -> str:
    """Start engines, gateway and load; return the picture."""
    async with aiohttp.ClientSession() as session, _gateway() as (url, admin):
        await _ready(session, admin)
        load = asyncio.create_task(_load(session, url))
        try:
            return svg(await _capture(admin))
        finally:
            load.cancel()
            with suppress(asyncio.CancelledError):
                await load


@asynccontextmanager
async def _gateway() -> AsyncIterator[tuple[str, str]]:
    """The gateway's two URLs, before two engines of each role."""
    ports = iter(allocate(2 + 2 * sum(number for _, number in _ENGINES)))
    listen, admin = (f"127.0.0.1:{next(ports)}" for _ in range(2))
    argv = ["gateway", "--listen", listen, "--admin", admin, "--verification-period-seconds", "10"]
    async with AsyncExitStack() as programs:
        for role, number in _ENGINES:
            argv.append(f"--{role}")
            for _ in range(number):
                address, channel = (f"127.0.0.1:{next(ports)}" for _ in range(2))
                engine = ("sim", "--role", role, "--listen", address, "--side-channel", channel, "--model", "sim")
                await programs.enter_async_context(_program(*engine, "--profile", "llama-3.3-70b-4xh100"))
                argv.append(f"http://{address}")
        await programs.enter_async_context(_program(*argv))
        yield f"http://{listen}", f"http://{admin}"


if __name__ == "__main__":
    FIGURE.write_text(asyncio.run(figure()), encoding="utf-8")
