"""A receiver of traces."""

from collections.abc import AsyncIterator

import pytest

from pdx_proxy.telemetry import span_exporter
from tests.component.otlp_receiver import OTLPReceiver


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OTLPReceiver]:
    monkeypatch.setattr(span_exporter, "DELAY_SECONDS", 0.02)
    running = await OTLPReceiver().start()
    yield running
    await running.stop()
