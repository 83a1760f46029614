"""A probe that a signal ends, after the engines have freed what it holds."""

import asyncio
import random
import signal
from datetime import datetime

from pdx_cli import interrupts
from pdx_cli.probing.question import Question
from pdx_cli.probing.report import Report
from pdx_cli.probing.session import Session
from pdx_cli.sources.client import Client


def interruptible(question: Question, key: str | None) -> Report:
    """Run the probe. A signal ends it, after the engines have freed what the probe holds."""
    received: list[signal.Signals] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(_probe(question, key))

        def stop(number: signal.Signals) -> None:
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with interrupts.handled(stop):
            try:
                return runner.run(_result(task))
            except asyncio.CancelledError:
                interrupts.end_by(received[0])


async def _result(task: "asyncio.Task[Report]") -> Report:
    return await task


async def _probe(question: Question, key: str | None) -> Report:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with Client(headers, redirects=False) as client:
        return await Session(client, question, random.SystemRandom(), lambda: datetime.now().astimezone()).run()
