"""Requests to an API server that a kubeconfig names go through the proxy of the environment, as kubectl's do."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdx_api.kube.client import Cluster
from pdx_api.kube.kinds import POD
from pdx_cli.sources.kube import Kube


@dataclass
class _Proxy:
    """Answers each request for a tunnel with 502, and keeps its first line."""

    url: str = ""
    lines: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.lines.append(head.split(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[_Proxy]:
    found = _Proxy()
    async with await asyncio.start_server(found.serve, "127.0.0.1", 0) as server:
        found.url = "http://{}:{}".format(*server.sockets[0].getsockname())
        yield found


def _kubeconfig(path: Path, cluster: dict[str, str]) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(body))
    return str(path)


@pytest.mark.parametrize("source", ["HTTPS_PROXY", "proxy-url", "loopback"])
@pytest.mark.parametrize("program", ["gateway", "cli"])
async def test_the_api_server_is_asked_through_the_proxy(
    program: str, source: str, proxy: _Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubeconfig's own proxy precedes that of the environment. A server on this machine is reached directly."""
    for name in ("HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NO_PROXY", "")
    own = {"proxy-url": proxy.url} if source == "proxy-url" else {}
    server = "127.0.0.1:1" if source == "loopback" else "api.invalid:6443"
    kubeconfig = _kubeconfig(tmp_path / "config", {"server": f"https://{server}", **own})
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1" if own else proxy.url)
    cluster: Cluster
    if program == "cli":
        cluster, _ = await Kube.of(kubeconfig, None)
    else:
        cluster = await Cluster.connect("pdx-test", 1, 1)
    try:
        with pytest.raises(Exception, match=r"502|127\.0\.0\.1"):
            await cluster.list(POD, "ns")
    finally:
        await cluster.close()
    assert proxy.lines == ([] if source == "loopback" else [f"CONNECT {server} HTTP/1.1"])
