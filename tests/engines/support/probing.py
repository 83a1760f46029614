"""`pdx probe` as a process, against real engines."""

import asyncio
import json
import sys
from typing import Any

from pdx_api.names import Order
from tests.engines.support.harness import Engine, eventually


async def probe(
    prefill: Engine, decode: Engine, order: Order = Order.PREFILL_FIRST, connector: str = "", *argv: str
) -> tuple[int, dict[str, Any]]:
    """Probe a pair; return the exit code and the JSON."""
    real = prefill.spec.connector
    asked = ("--connector", connector or real.name, "--order", order)
    bootstrap = ("--identity-port", str(prefill.side_port)) if "bootstrap" in real.port_names else ()
    protocol = ("--protocol", prefill.spec.protocol) if prefill.spec.protocol and not connector else ()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdx_cli", "probe", "--prefill", prefill.url, "--decode", decode.url),
        *(*asked, *bootstrap, *protocol, *argv, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out)


async def check_probe(prefill: Engine, decode: Engine, order: Order = Order.PREFILL_FIRST) -> None:
    """The probe sees KV move, in the order itself, and leaves nothing behind."""
    code, found = await probe(prefill, decode, order)
    assert code == 0, found
    assert found["text"]["equal"] is True, found
    kv = found["kv"]
    assert kv["othersRan"] is False, found
    assert kv["answerTokens"] == kv["metricsTokens"] == kv["loadedTokens"] >= kv["promptTokens"] / 2 >= 128, found
    await check_free(prefill, decode)


async def check_another(prefill: Engine, decode: Engine, connector: str, order: Order, reason: str) -> None:
    """The probe for another connector or order names the mistake, and leaves nothing behind."""
    code, found = await probe(prefill, decode, order, connector)
    assert (code, found["result"], found["reason"]) == (1, "notMoved", reason), found
    await check_free(prefill, decode)


async def check_free(prefill: Engine, decode: Engine) -> None:
    """No engine holds a block."""
    await eventually(lambda: prefill.kv_usage == decode.kv_usage == 0, 10.0, "an engine holds blocks")
