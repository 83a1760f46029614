"""What the chart's tests share. The control plane is their own: releases own the CRD, which is one for a cluster."""

import pytest

from tests.charts.chart import Chart
from tests.cluster.conftest import control_plane, helm_program, namespace, pytest_collection_finish

__all__ = ["chart", "control_plane", "helm_program", "namespace", "pytest_collection_finish"]


@pytest.fixture
def chart(request: pytest.FixtureRequest) -> Chart:
    """The chart, rendered by helm without a cluster."""
    return Chart(request.getfixturevalue("helm_program"))
