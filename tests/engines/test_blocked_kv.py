"""Real vLLM engines whose side channel is blocked: requests are served whole, and split again after the repair.

NIXL uses the side channel for a handshake, once for each pair. So it is blocked before the gateway starts.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from pdx_api.names import Order, Role
from tests.engines.conftest import running_pair
from tests.engines.support import campaign
from tests.engines.support.harness import complete, eventually, gateway, make_prompt
from tests.engines.support.probing import probe

SECONDS: Final = 25.0
"""How long the side channel stays blocked."""
RETURNS: Final = 90.0
LEASE: Final = 40.0
"""More than P's lease of 30 s."""
_RULE: Final = ("OUTPUT", "-o", "lo", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset", "--dport")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("iptables") is None, reason="blocks ports with iptables"),
]


@contextlib.contextmanager
def blocked(ports: range) -> Iterator[None]:
    """Let nobody connect to these ports of this machine."""
    rules = [[*_RULE, str(port)] for port in ports]
    for rule in rules:
        subprocess.run(["iptables", "-I", *rule], check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "-D", *rule], check=True)


@pytest.mark.parametrize("order", Order)
async def test_requests_are_served_whole_until_kv_moves(
    order: Order,
    session: aiohttp.ClientSession,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_pair(tiny_model, tmp_path, order) as pair, contextlib.ExitStack() as block:
        block.enter_context(blocked(range(pair.prefill.side_port, pair.prefill.side_port + 4)))
        code, found = await probe(pair.prefill, pair.decode, order, "", "--timeout", "10")
        assert (code, found["reason"]) == (1, "PortsBlocked"), found
        campaign.print_lines([f"{order}: pdx probe: {found['seen']}; {found['prefill']['held']}"], capsys)
        assert "it may hold the blocks of this prompt until about" in found["prefill"]["held"]
        await eventually(lambda: pair.prefill.kv_usage == pair.decode.kv_usage == 0, LEASE, "an engine holds blocks")
        ends = [pair.prefill], [pair.decode], tmp_path
        with gateway(order, *ends, verification_period_seconds=10, roles=(Role.DECODE,)) as front:
            number = 0

            async def serve() -> dict[str, Any]:
                nonlocal number
                number += 1
                body = {"prompt": make_prompt(7_000_000 + number, 100), "max_tokens": 8, "stream": number % 2 == 0}
                began = time.monotonic()
                answer = await complete(session, front.url, body)
                assert answer.status == 200
                assert answer.complete
                return {"seconds": time.monotonic() - began, "outcomes": front.state()["outcomes"]}

            began = time.monotonic()
            while time.monotonic() < began + SECONDS:
                served = await serve()
                assert served["seconds"] < 10.0
            assert served["outcomes"]["split"] == 0
            block.close()
            repaired = time.monotonic()
            while not (await serve())["outcomes"]["split"]:
                assert time.monotonic() < repaired + RETURNS
                await asyncio.sleep(0.5)
            code, found = await probe(pair.prefill, pair.decode, order)
            assert (code, found["result"]) == (0, "moved"), found
            campaign.print_lines([f"{order}: split {time.monotonic() - repaired:.1f} s after the repair"], capsys)
