"""Voters whose disks are lost, damaged or replaced: what a majority acknowledged stays.

At most one voter's disk is damaged at a time. Until the group has taken it back, it is as if it
were not there: what the others may do without it they may, and nothing else.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft.messages import REGULAR
from jetstream_server.metadata.raft.standing import VoterState

from .raft_disks import Disks, walk
from .raft_fabric import Fabric, SimulatedNode

Patch = pytest.MonkeyPatch


def committed(fabric: Fabric, node_id: NodeId) -> str:
    """A command that the node has proposed and seen applied."""
    text = fabric.submit(node_id)
    for _ in range(200):
        if text in fabric.nodes[node_id].machine.applied:
            return text
        fabric.step()
    raise AssertionError("not applied within four seconds")


def settled(fabric: Fabric) -> NodeId:
    """A group that is at rest, its runs registered; its leader."""
    fabric.registers = True
    leader = fabric.run_until_led()
    for _ in range(500):
        fabric.step()
        if fabric.is_at_rest():
            return leader
    raise AssertionError("the group does not come to rest")


def only_two_hold(fabric: Fabric) -> tuple[NodeId, NodeId, NodeId, str]:
    """A node that holds an acknowledged command, one that held it, one that never had it, and the
    command. All nodes are down."""
    leader = settled(fabric)
    amnesic, late = (node_id for node_id in fabric.ids if node_id != leader)
    fabric.crash(late)
    text = committed(fabric, leader)
    fabric.crash(leader)
    fabric.crash(amnesic)
    return leader, amnesic, late, text


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("seed", range(25))
def test_nothing_acknowledged_is_lost_while_one_disk_at_a_time_is_damaged(
    seed: int, count: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    """More seeds: python -m tests.unit.metadata.raft_disks."""
    monkeypatch.setattr("jetstream_server.metadata.raft.snapshot_transfer.PIECE_BYTES", 200)
    with Fabric.running(monkeypatch, tmp_path / "nodes", seed, count) as fabric:
        disks = Disks(fabric, tmp_path / "copies")
        disks.live_through(400)
        disks.recover()


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_while_the_voters_change_and_disks_are_damaged(seed: int) -> None:
    walk(seed, 3, spare=2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "how", ["lost", "lost under its old id", "copied while it ran", "replaced"]
)
def test_who_lost_its_journal_elects_nobody_with_one_who_never_had_it(
    how: str, seed: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed) as fabric:
        settled(fabric)
        disks = Disks(fabric, tmp_path / "copies")
        for node_id in fabric.ids:
            disks.copy(node_id)
        holder, amnesic, late, text = only_two_hold(fabric)
        directory = fabric.directory(amnesic)
        shutil.rmtree(directory)
        if how == "copied while it ran":
            disks.bring_back(amnesic)
        elif how == "replaced":
            shutil.copytree(tmp_path / "copies" / str(late), directory)
        fabric.disks[amnesic] = 1
        fabric.start(amnesic, expected="it was here" if how == "lost under its old id" else "")
        fabric.start(late)
        fabric.run(5)
        assert fabric.leader() is None
        assert not fabric.nodes[amnesic].core.votes()
        fabric.start(holder)
        fabric.recover()
        assert text in fabric.nodes[amnesic].machine.applied
        assert fabric.nodes[amnesic].journal.standing.state == VoterState.VOTER


def test_a_learner_s_acknowledgement_makes_no_majority(tmp_path: Path, monkeypatch: Patch) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
        leader = settled(fabric)
        amnesic, other = (node_id for node_id in fabric.ids if node_id != leader)
        fabric.crash(amnesic)
        shutil.rmtree(fabric.directory(amnesic))
        fabric.disks[amnesic] = 1
        fabric.crash(other)
        text = fabric.submit(leader)
        fabric.step()
        fabric.start(amnesic)
        fabric.run(0.4)  # Less than the leader takes to notice that it has no majority.
        held = [entry.data for entry in fabric.nodes[amnesic].journal.held]
        assert bytes([REGULAR]) + text.encode() in held
        assert text not in fabric.committed
        fabric.run(1)
        assert fabric.leader() is None


def test_an_older_copy_of_a_stopped_voter_s_folder_is_told_by_the_log(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Nothing in the folder says that it is one: the run that the log names does."""
    with Fabric.running(monkeypatch, tmp_path / "nodes", seed=1) as fabric:
        leader = settled(fabric)
        old, _ = (node_id for node_id in fabric.ids if node_id != leader)
        fabric.stop(old)
        shutil.copytree(fabric.directory(old), tmp_path / "old")
        fabric.start(old)
        assert settled(fabric) == leader
        fabric.stop(old)
        shutil.rmtree(fabric.directory(old))
        shutil.copytree(tmp_path / "old", fabric.directory(old))
        fabric.disks[old] = 1
        fabric.crash(leader)
        fabric.start(old)
        assert fabric.nodes[old].journal.standing.state == VoterState.VOTER, (
            "it does not know better"
        )
        fabric.run(5)
        assert fabric.leader() is None, "its vote counted"
        fabric.start(leader)
        fabric.run_until_led()
        states = set()
        for _ in range(300):
            fabric.step()
            states.add(fabric.nodes[old].journal.standing.state)
        assert states == {VoterState.VOTER, VoterState.LEARNER}
        fabric.recover()


def test_an_older_journal_beside_a_newer_snapshot_gives_no_vote_back(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The snapshot names the run that wrote the older journal, too."""
    with Fabric.running(monkeypatch, tmp_path / "nodes", seed=1) as fabric:
        leader = settled(fabric)
        old, _ = (node_id for node_id in fabric.ids if node_id != leader)
        shutil.copy(fabric.directory(old) / "journal", tmp_path / "journal")
        text = committed(fabric, leader)
        settled(fabric)
        fabric.compact(old)
        fabric.step()
        fabric.crash(old)
        fabric.crash(leader)
        shutil.copy(tmp_path / "journal", fabric.directory(old))
        fabric.disks[old] = 1
        node = fabric.start(old, expected="it was here")
        fabric.run(5)
        assert node.journal.lost
        assert node.journal.standing.state == VoterState.LEARNER
        assert fabric.leader() is None, "its vote counted"
        fabric.start(leader)
        fabric.recover()
        assert text in fabric.committed


def test_voters_that_lose_power_together_go_on_by_themselves(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=3) as fabric:
        for _ in range(5):
            leader = settled(fabric)
            text = committed(fabric, leader)
            fabric.submit(leader)
            for node_id in fabric.ids:
                fabric.crash(node_id, torn=True)
            for node_id in fabric.ids:
                if node_id != leader:  # One may stay away.
                    fabric.start(node_id)
            fabric.run_until_led()
            fabric.start(leader)
            settled(fabric)
            assert all(text in node.machine.applied for node in fabric.nodes.values())


class TestFounding:
    """All journals of a new group are empty, and so is one that was lost."""

    def test_a_new_group_waits_for_every_voter(self, tmp_path: Path, monkeypatch: Patch) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
            fabric.crash(NodeId(2))
            fabric.run(5)
            assert fabric.leader() is None
            assert "has not heard from every voter" in fabric.nodes[NodeId(0)].core.no_vote_reason()
            fabric.start(NodeId(2))
            fabric.run_until_led()

    @pytest.mark.parametrize("seed", range(10))
    def test_who_loses_its_journal_at_once_founds_nothing_with_who_has_nothing_yet(
        self, seed: int, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed) as fabric:
            while fabric.leader() is None:
                fabric.step()
            leader = fabric.leader()
            assert leader is not None
            amnesic, late = (node_id for node_id in fabric.ids if node_id != leader)
            fabric.crash(late)
            text = committed(fabric, leader)
            fabric.crash(leader)
            fabric.crash(amnesic)
            shutil.rmtree(fabric.directory(amnesic))
            fabric.disks[amnesic] = 1
            fabric.start(amnesic)
            fabric.start(late)
            fabric.run(5)
            assert fabric.leader() is None
            fabric.start(leader)
            fabric.registers = True
            fabric.recover()
            assert text in fabric.committed


class TestSnapshots:
    def after_a_snapshot(self, fabric: Fabric) -> tuple[SimulatedNode, SimulatedNode]:
        """The leader, and a follower that refuses the snapshot which it needs."""
        leader = fabric.run_until_led()
        late = next(node_id for node_id in fabric.ids if node_id != leader)
        fabric.crash(late)
        for _ in range(30):
            fabric.submit(leader)
            fabric.step()
        fabric.run(0.5)
        fabric.compact(leader)
        fabric.start(late)
        fabric.nodes[late].machine.refuses_snapshots = True
        return fabric.nodes[leader], fabric.nodes[late]

    def test_one_that_is_refused_is_not_acknowledged_and_the_leader_goes_on(
        self, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=6) as fabric:
            leader, late = self.after_a_snapshot(fabric)
            fabric.run(2)
            text = committed(fabric, leader.node_id)
            assert late.machine.applied == []
            assert late.journal.snapshot_index == 0
            assert fabric.leader() == leader.node_id
            matched = leader.core.getStatus()[f"match_idx_server_{late.node_id}"]
            assert matched <= 1, "it acknowledged what it had not taken"
            late.machine.refuses_snapshots = False
            fabric.run(12)
            assert late.machine.applied[-1] == text

    def test_one_that_is_refused_is_not_sent_over_and_over(
        self, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=6) as fabric:
            _, late = self.after_a_snapshot(fabric)
            asked = 0

            def refusing(snapshot: bytes) -> bool:
                nonlocal asked
                asked += 1
                return False

            late.machine.restore = refusing  # type: ignore[method-assign]
            fabric.run(35)
            assert 2 <= asked <= 5

    def test_one_that_is_behind_acknowledges_nothing_it_was_not_compared_with(
        self, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=9) as fabric:
            leader = fabric.nodes[fabric.run_until_led()]
            committed(fabric, leader.node_id)
            fabric.run(0.5)
            fabric.compact(leader.node_id)
            follower = next(n for n in fabric.nodes.values() if n.node_id != leader.node_id)
            applied = follower.core.raftLastApplied
            term = follower.core.raftCurrentTerm
            follower.journal.append(
                Entry(bytes([REGULAR]) + b"nobody's", follower.journal.last_index + 1, term)
            )
            leader.journal.sync()
            snapshot = (leader.directory / "snapshot").read_bytes()
            message = {
                "type": "append_entries",
                "term": term,
                "commit_index": 0,
                "serialized": (snapshot, True, True),
            }
            follower.core.receive(leader.node_id, message)
            answers = [m for _, m in follower.core.take_messages() if m["type"] == "next_node_idx"]
            assert [answer["next_node_idx"] for answer in answers] == [applied + 1]


class TestBoundToATerm:
    """A controller's decision enters the log in the term in which it was made, or not at all."""

    def test_led_again_in_a_later_term_a_node_does_not_append_it(
        self, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
            leader = fabric.nodes[fabric.run_until_led()]
            term = leader.core.raftCurrentTerm
            failures: list[int] = []
            leader.core.submit(b"decided", failures.append, term=term - 1)
            leader.core.submit(b"in time", failures.append, term=term)
            fabric.run(0.5)
            assert len(failures) == 1
            assert "decided" not in fabric.committed
            assert "in time" in fabric.committed

    def test_a_node_that_leads_no_more_does_not_forward_it(
        self, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
            leader = fabric.run_until_led()
            fabric.run(0.5)
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            failures: list[int] = []
            term = follower.core.raftCurrentTerm
            follower.core.submit(b"decided", failures.append, term=term)
            fabric.run(0.5)
            assert failures
            assert "decided" not in fabric.committed


def test_a_leader_s_heartbeats_hold_its_followers_while_its_disk_stands_still(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=2) as fabric:
        leader = fabric.run_until_led()
        fabric.run(0.5)
        term = fabric.nodes[leader].core.raftCurrentTerm
        fabric.submit(leader)
        stalled = fabric.nodes[leader]
        turn: Callable[[SimulatedNode], None] = fabric._turn
        arrived: list[tuple[NodeId, dict[str, object]]] = []

        def turn_but_for_the_leader(node: SimulatedNode) -> None:
            if node is not stalled:
                turn(node)
            else:
                fabric.send(node, node.core.heartbeats())

        with monkeypatch.context() as patch:
            patch.setattr(fabric, "_turn", turn_but_for_the_leader)
            patch.setattr(stalled.core, "receive", lambda *message: arrived.append(message))
            fabric.run(1.5)
        for sender, message in arrived:
            stalled.core.receive(sender, message)
        fabric.run(0.5)
        assert {node.core.raftCurrentTerm for node in fabric.nodes.values()} == {term}
        assert fabric.leader() == leader != NO_NODE
