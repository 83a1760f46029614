"""Prometheus' programs, unpacked before the first test begins."""

import contextlib
from pathlib import Path

import pytest

from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.prometheus import prometheus_programs


def pytest_collection_finish(session: pytest.Session) -> None:
    """A test's time limit is for the test."""
    wanted = any("programs" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with contextlib.suppress(ClusterError):  # the fixture skips or fails with the reason
            prometheus_programs()


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """prometheus and promtool by name."""
    try:
        return prometheus_programs()
    except MissingError as error:
        pytest.skip(f"no Prometheus: {error}")
