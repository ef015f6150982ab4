"""A short run under fire with a fixed seed; `python -m tests.chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.mixed.nemesis import possible
from tests.chaos.mixed.run import run

SECONDS = 11.0
NODES = 4


@pytest.mark.timeout(600)  # Each of its waits ends before.
@pytest.mark.usefixtures("temporary_on_disk")
def test_a_cluster_and_its_clients_under_every_fault_show_no_anomaly() -> None:
    verdict = run("short", SECONDS, NODES, possible(), print, secured=False)
    assert verdict.steps
    assert [str(anomaly) for anomaly in verdict.anomalies] == []
