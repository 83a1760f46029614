"""The URL of an OTLP receiver."""

import pytest

from pdx_api.otlp import ENDPOINT_RULES, traces_url


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://otel_collector", "https://otel_collector/v1/traces"),
        ("http://[fd00::1]:4318", "http://[fd00::1]:4318/v1/traces"),
        ("https://ingest.example.com/otlp/v1/traces", "https://ingest.example.com/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_otlps(endpoint: str, url: str) -> None:
    assert all(rule.holds(endpoint) for rule in ENDPOINT_RULES)
    assert traces_url(endpoint) == url
