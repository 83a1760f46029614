"""A probe that a signal ends, after the engines have freed what it holds."""

import random
import signal
from datetime import datetime

from pdx_cli import interrupts
from pdx_cli.probing.engines import inspect_both
from pdx_cli.probing.question import Question
from pdx_cli.probing.report import Report
from pdx_cli.sources.client import Client


def interruptible(question: Question, key: str | None) -> Report:
    """Run the probe. A signal ends it, after the engines have freed what the probe holds."""
    ended = interrupts.run(lambda: _probe(question, key))
    if isinstance(ended, signal.Signals):
        interrupts.end_by(ended)
    return ended


async def _probe(question: Question, key: str | None) -> Report:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with Client(headers, redirects=False) as client:
        usable, unusable = await inspect_both(client, question)
        report = Report(question, engines=usable, unusable=unusable)
        if unusable:
            return report
        from pdx_cli.probing.session import Session  # it imports much of the gateway

        return await Session(client, question, random.SystemRandom(), lambda: datetime.now().astimezone()).run(report)
