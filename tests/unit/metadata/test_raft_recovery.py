"""Raft in a group that was recovered without lost voters, with a node that knows more."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft.voters import TERMS_PER_RECOVERY, Voters

from .raft_fabric import Fabric

LEFT, FOLLOWER = NodeId(2), NodeId(3)
SEEDS = 5


def lose_the_others(fabric: Fabric, *, compacts: bool) -> list[str]:
    """LEFT misses an election and what was decided after it; FOLLOWER does not. All nodes end.
    compacts: the snapshot of FOLLOWER has some of that, too. Returns what FOLLOWER has applied."""
    while fabric.run_until_led() == LEFT:
        fabric.stop(LEFT)
        fabric.run_until_led()
        fabric.start(LEFT)
    for node_id in fabric.ids:
        fabric.submit(node_id)
    fabric.run(2.0)
    fabric.crash(LEFT)
    leader = fabric.run_until_led()
    fabric.crash(leader)
    fabric.run(2.0)
    fabric.start(leader)
    leader = fabric.run_until_led()
    for _ in range(5):
        fabric.submit(leader)
        fabric.run(0.2)
    fabric.run(2.0)
    known = list(fabric.nodes[FOLLOWER].machine.applied)
    assert known == fabric.committed
    if compacts:
        fabric.compact(FOLLOWER)
        fabric.run(0.2)
    for node_id in tuple(fabric.nodes):
        fabric.crash(node_id)
    fabric.committed.clear()  # What the lost voters knew counts no more.
    fabric.initial = Voters.of({LEFT: "node-2:1"}, recoveries=1)
    return known


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_term_of_the_lost_voters_is_used_again(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed, spare=1) as fabric:
        lose_the_others(fabric, compacts=False)
        left, follower = fabric.start(LEFT), fabric.start(FOLLOWER)
        for _ in range(20):
            fabric.submit(LEFT)
            fabric.run(0.2)
        fabric.run(2.0)
        assert left.core.raftCurrentTerm > TERMS_PER_RECOVERY
        assert len(left.machine.applied) == 20 + 4
        assert follower.machine.applied == left.machine.applied
        assert follower.journal.entries(1) == left.journal.entries(1)


@pytest.mark.parametrize("later", [0, 1, 2, 3, 4, 30])
def test_who_has_applied_what_the_leader_lacks_says_so_and_changes_nothing(
    later: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The leader's log is shorter than the other node's snapshot, or has other entries there."""
    with Fabric.running(monkeypatch, tmp_path, 1, spare=1) as fabric:
        known = lose_the_others(fabric, compacts=True)
        left = fabric.start(LEFT)
        fabric.run(1.0)
        for _ in range(later):
            fabric.submit(LEFT)
            fabric.run(0.2)
        before = list(left.machine.applied)
        fabric.committed.clear()
        follower = fabric.start(FOLLOWER)
        monkeypatch.setattr(fabric, "check", lambda: None)
        assert follower.machine.applied == known != before
        with pytest.raises(StorageError, match="which was applied here already"):
            fabric.run(2.0)
        assert follower.machine.applied == known
        assert left.machine.applied == before


@pytest.mark.parametrize("seed", range(SEEDS))
def test_of_two_voters_that_are_left_the_one_that_knows_more_leads_first(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other one is not elected without it."""
    with Fabric.running(monkeypatch, tmp_path, seed, count=5) as fabric:
        known = lose_the_others(fabric, compacts=seed % 2 == 0)
        both = (LEFT, FOLLOWER)
        fabric.initial = Voters.of({node_id: f"node-{node_id}:1" for node_id in both}, 1)
        first = fabric.start(both[seed % 2])
        fabric.run(2.0)
        assert first.core.leader_id() == NO_NODE
        fabric.start(both[1 - seed % 2])
        assert fabric.run_until_led() == FOLLOWER
        new = fabric.submit(LEFT)
        fabric.run(2.0)
        for node in fabric.nodes.values():
            assert node.machine.applied == [*known, new]
