"""Compaction between all other faults, on every replica: a few dozen seeds on every change."""

from __future__ import annotations

import pytest

from jetstream_server.replication.replica import Replica
from tests.simulation.compacting import CompactedCluster
from tests.simulation.world import Violation

SEEDS = 40
MUTANT_SEEDS_MAX = 300


def test_no_seed_violates_an_invariant_while_logs_are_compacted() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        cluster = CompactedCluster(seed)
        try:
            cluster.run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        for what, times in cluster.world.counts.items():
            counts[what] = counts.get(what, 0) + times
    assert counts["log compacted"] > 10 * SEEDS
    assert counts["segment compacted"] > 10 * SEEDS
    assert counts["compaction of a log that was cut"] > 0
    assert counts["lossy election"] > 0


def test_a_log_that_is_compacted_beyond_the_high_watermark_loses_committed_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant: what supersedes a record is not committed itself, and is truncated later."""

    def flushed_only(_: CompactedCluster, replica: Replica) -> int:
        return replica.log.flushed_offset

    monkeypatch.setattr(CompactedCluster, "bound_of", flushed_only)
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            CompactedCluster(seed).run()
        except Violation:
            return
    raise AssertionError(f"it survived {MUTANT_SEEDS_MAX} seeds")
