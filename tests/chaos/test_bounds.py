"""The bounds with small loads; `python -m tests.chaos.bounds` has the large ones."""

from __future__ import annotations

import argparse
import resource

import pytest

from tests.chaos import bounds

SMALL = argparse.Namespace(
    cases=[*bounds.CASES],
    minutes=0.04,
    readers=5,
    megabytes_per_second=1.0,
    connections=50,
    streams=10,
    rate=10,
)


@pytest.mark.parametrize("case", bounds.CASES)
def test_a_small_load_is_borne_and_measured(case: str) -> None:
    result = bounds.run(case, SMALL)
    assert result.failures == []
    assert 0 < result.resident_before <= result.resident_most
    assert {*result.loop_lag_ms} == {"p50", "p99", "max"}
    assert 0 < result.ack_us["p50_us"] <= result.ack_us["p99_us"]


def test_connections_that_the_node_closes_fail_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    few = argparse.Namespace(**{**vars(SMALL), "connections": 60})
    monkeypatch.setattr(bounds, "LIMIT_FACTOR", 0.5)
    result = bounds.run("connections", few)
    assert any("closed" in failure for failure in result.failures)


def test_too_few_open_files_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert "ulimit -n" in bounds.check_descriptors(
        argparse.Namespace(**{**vars(SMALL), "connections": 10_000})
    )
    streams = argparse.Namespace(**{**vars(SMALL), "cases": ["streams"]})
    assert bounds.check_descriptors(streams) == ""
