"""A short run of programs under fire with a fixed seed; `python -m tests.chaos.consumers` is the
long one."""

from __future__ import annotations

import pytest

from tests.chaos.consumers.faults import OF_PROGRAMS
from tests.chaos.consumers.run import run

SECONDS = 4.0
NODES = 3


@pytest.mark.timeout(600)  # Each of its waits ends before.
def test_programs_that_are_interrupted_killed_and_doubled_show_no_anomaly() -> None:
    verdict = run("short run", SECONDS, NODES, tuple(OF_PROGRAMS), print)
    assert verdict.steps
    assert [str(anomaly) for anomaly in verdict.anomalies] == []
