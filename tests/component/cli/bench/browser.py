"""A real browser: headless Chromium, driven over its DevTools protocol."""

import asyncio
import base64
import io
import itertools
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from PIL import Image

_SECONDS: Final = 60.0
_FLAGS: Final = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-background-networking",
    ),
    *("--remote-debugging-port=0", "--host-resolver-rules=MAP * ~NOTFOUND", "about:blank"),
)


class Page:
    """One page. `requested` are the URLs that it has asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.requested: list[str] = []
        self._loaded = False

    async def call(self, method: str, **params: Any) -> Mapping[str, Any]:
        """Call a method of the protocol; returns its result."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                result: Mapping[str, Any] = message["result"]
                return result

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=_SECONDS)
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        self._loaded = self._loaded or message.get("method") == "Page.loadEventFired"
        return message

    async def open(self, url: str, scheme: str, width: int = 1280) -> None:
        """Load a page without a network, for a reader whose system is `light` or `dark`."""
        for domain in ("Page", "Network", "Runtime"):
            await self.call(f"{domain}.enable")
        offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        await self.call("Network.emulateNetworkConditions", offline=True, **offline)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        self._loaded = False
        await self.call("Page.navigate", url=url)
        while not self._loaded:
            await self._receive()

    async def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def screenshot(self) -> Image.Image:
        """The whole page as pixels."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")


@asynccontextmanager
async def browser(program: str) -> AsyncIterator[Page]:
    """A page in a browser of its own, which ends with the context."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *(program, f"--user-data-dir={folder}", *_FLAGS),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json()
                address = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    """The port that the browser has chosen, once it has written it."""
    async with asyncio.timeout(_SECONDS):
        while not (written := _written(file)):
            assert process.returncode is None, "the browser has ended"
            await asyncio.sleep(0.05)
    return int(written.split()[0])


def _written(file: Path) -> str:
    """The content of a file once it has a whole line."""
    text = file.read_text() if file.is_file() else ""
    return text if "\n" in text else ""
