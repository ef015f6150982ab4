from pathlib import Path
from typing import Any

import pysyncobj
import pysyncobj.serializer
import pysyncobj.syncobj
import pytest
from pysyncobj.config import FAIL_REASON

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft.corrections import CorrectedSyncObj
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import NO_OP, REGULAR

from .raft_fabric import Fabric


def applied_everywhere(fabric: Fabric, text: str) -> bool:
    return all(text in node.machine.applied for node in fabric.nodes.values())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_applied_is_ever_lost_or_replaced(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed) as fabric:
        fabric.live_through(600)
        fabric.recover()


def test_all_members_crashing_at_once_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
        leader = fabric.run_until_led()
        for _ in range(5):
            text = fabric.submit(leader)
            while text not in fabric.nodes[leader].machine.applied:
                fabric.step()
            for node_id in fabric.ids:
                fabric.crash(node_id)
            for node_id in fabric.ids:
                fabric.start(node_id)
            leader = fabric.run_until_led()
            fabric.run(0.5)
            assert applied_everywhere(fabric, text)


def test_a_group_of_one_leads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=1, count=1) as fabric:
        fabric.step()
        assert fabric.leader() == 0
        text = fabric.submit(NodeId(0))
        fabric.run(0.1)
        assert applied_everywhere(fabric, text)


def test_a_follower_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=2) as fabric:
        leader = fabric.run_until_led()
        follower = next(node_id for node_id in fabric.ids if node_id != leader)
        text = fabric.submit(follower)
        fabric.run(0.5)
        assert applied_everywhere(fabric, text)
        assert fabric.nodes[follower].failures == []


def test_a_command_that_cannot_reach_the_leader_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=2) as fabric:
        leader = fabric.run_until_led()
        follower = next(node_id for node_id in fabric.ids if node_id != leader)
        fabric.part(leader, follower)
        assert fabric.nodes[follower].core.leader_id() == NO_NODE
        fabric.submit(follower)
        fabric.step()
        assert fabric.nodes[follower].failures == [2]


def test_a_command_without_an_answer_fails_when_the_link_to_the_leader_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may stay the same: nothing else would ever end it."""
    with Fabric.running(monkeypatch, tmp_path, seed=2) as fabric:
        leader = fabric.run_until_led()
        follower = next(node_id for node_id in fabric.ids if node_id != leader)
        fabric.mute(leader, follower)
        fabric.submit(follower)
        fabric.run(0.1)
        assert fabric.nodes[follower].failures == []
        fabric.heal()
        assert fabric.nodes[follower].failures == [FAIL_REASON.LEADER_CHANGED]
        assert fabric.run_until_led() == leader


def test_a_snapshot_ends_the_wait_for_commands_that_it_may_contain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=2) as fabric:
        leader = fabric.run_until_led()
        follower = next(node_id for node_id in fabric.ids if node_id != leader)
        core = fabric.nodes[follower].core
        text = fabric.submit(follower)
        while not core._SyncObj__commandsWaitingCommit:
            fabric.step()
        fabric.part(leader, follower)
        for node_id in fabric.ids:
            if node_id != leader:
                fabric.part(node_id, follower)
        for _ in range(5):
            fabric.submit(leader)
            fabric.run(0.1)
        fabric.compact(leader)
        fabric.heal()
        fabric.run(1)
        assert text in fabric.nodes[follower].machine.applied
        assert core.core_journal.snapshot_index > 1
        assert fabric.nodes[follower].failures == [FAIL_REASON.UNKNOWN_OUTCOME]
        assert not core._SyncObj__commandsWaitingCommit


def test_an_isolated_leader_steps_down_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=3) as fabric:
        leader = fabric.run_until_led()
        for node_id in fabric.ids:
            if node_id != leader:
                fabric.part(leader, node_id)
        fabric.run(1.0)
        assert fabric.nodes[leader].core.role() != "leader"
        assert fabric.nodes[leader].core.leader_id() == NO_NODE
        fabric.run(1.0)
        assert fabric.leader() not in (None, leader)


def test_a_broken_connection_to_the_leader_makes_for_a_quick_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=4) as fabric:
        fabric.crash(fabric.run_until_led())
        before = fabric.now
        fabric.run_until_led()
        assert fabric.now - before < 0.5


@pytest.mark.parametrize("seed", range(6))
def test_a_member_that_is_back_waits_for_the_leaders_link_and_deposes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=seed) as fabric:
        leader = fabric.run_until_led()
        fabric.run(0.5)
        back, other = (node_id for node_id in fabric.ids if node_id != leader)
        fabric.crash(back)
        fabric.part(back, leader)
        fabric.part(back, other)
        fabric.start(back)
        fabric.run(1.5)  # Longer than any election timeout.
        term = fabric.nodes[leader].core.raftCurrentTerm
        fabric.parted.discard((min(back, other), max(back, other)))
        fabric.run(0.4)  # LinkTimings.redial_max with its jitter.
        fabric.heal()
        fabric.run(1.0)
        assert fabric.leader() == leader
        assert {node.core.raftCurrentTerm for node in fabric.nodes.values()} == {term}
        assert fabric.nodes[back].core.leader_id() == leader


def test_a_leader_hands_over_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=5) as fabric:
        leader = fabric.run_until_led()
        fabric.run(0.5)
        assert fabric.nodes[leader].core.hand_over()
        fabric.run(0.2)
        assert fabric.leader() not in (None, leader)


def test_a_follower_far_behind_gets_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream_server.metadata.raft.snapshot_transfer.PIECE_BYTES", 50)
    with Fabric.running(monkeypatch, tmp_path, seed=6) as fabric:
        leader = fabric.run_until_led()
        late = next(node_id for node_id in fabric.ids if node_id != leader)
        fabric.crash(late)
        for _ in range(30):
            fabric.submit(leader)
            fabric.step()
        fabric.run(0.5)
        fabric.compact(leader)
        fabric.start(late)
        fabric.run(1)
        assert fabric.nodes[late].machine.applied == fabric.committed
        assert fabric.nodes[late].journal.snapshot_index > 1
        fabric.crash(late)
        fabric.start(late)
        assert len(fabric.nodes[late].machine.applied) == 30


def test_a_follower_with_a_longer_uncommitted_log_is_brought_into_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=7) as fabric:
        old = fabric.run_until_led()
        for node_id in fabric.ids:
            if node_id != old:
                fabric.part(old, node_id)
        for _ in range(20):
            fabric.submit(old)
        fabric.run(3)
        leader = fabric.leader()
        assert leader is not None
        text = fabric.submit(leader)
        fabric.run(0.5)
        fabric.heal()
        fabric.run(3)
        assert applied_everywhere(fabric, text)
        assert fabric.nodes[old].machine.applied == [text]


def test_logs_that_part_are_aligned_in_one_step_and_not_one_for_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric.running(monkeypatch, tmp_path, seed=7) as fabric:
        old = fabric.run_until_led()
        for node_id in fabric.ids:
            if node_id != old:
                fabric.part(old, node_id)
        end = fabric.nodes[old].journal.last_index + 10
        while fabric.nodes[old].journal.last_index < end:
            fabric.submit(old)
            fabric.step()
        fabric.run(3)
        leader = fabric.leader()
        assert leader is not None
        assert leader != old
        for _ in range(20):
            fabric.submit(leader)
            fabric.step()
        fabric.run(0.5)
        assert fabric.nodes[old].journal.last_index == end, "what it never agreed on is still there"
        asked: list[int] = []
        send = CorrectedSyncObj._SyncObj__sendNextNodeIdx  # type: ignore[attr-defined]

        def noting(core: Any, node: Any, reset: bool = False, *rest: Any, **more: Any) -> None:
            if core is fabric.nodes[old].core and reset:
                asked.append(core.raftLastApplied)
            send(core, node, reset, *rest, **more)

        monkeypatch.setattr(CorrectedSyncObj, "_SyncObj__sendNextNodeIdx", noting)
        fabric.crash(leader)  # The next one begins at its own log end.
        fabric.heal()
        fabric.run(3)
        assert fabric.nodes[old].machine.applied == fabric.committed
        assert 1 <= len(asked) <= 2


class TestMessagesAtFaceValue:
    """What pysyncobj would believe, told to a follower or a leader directly."""

    def test_a_stale_append_removes_nothing_that_was_acknowledged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=8) as fabric:
            leader = fabric.run_until_led()
            for _ in range(5):
                fabric.submit(leader)
            fabric.run(0.5)
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            held = list(follower.journal.held)
            for entries in ([], [held[2]]):
                message = {
                    "type": "append_entries",
                    "term": follower.core.raftCurrentTerm,
                    "commit_index": 2,
                    "prevLogIdx": held[1].index,
                    "prevLogTerm": held[1].term,
                    "entries": entries,
                }
                follower.core.receive(leader, message)
                assert follower.journal.held == held
                assert follower.journal.is_synced, "nothing was even written"

    def test_a_commit_index_beside_a_snapshot_piece_commits_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=9) as fabric:
            leader = fabric.run_until_led()
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            term = follower.core.raftCurrentTerm
            last = follower.journal.last_index
            follower.journal.append(Entry(bytes([REGULAR]) + b"not agreed", last + 1, term))
            message = {
                "type": "append_entries",
                "term": term,
                "commit_index": 0,
                "serialized": (b"piece", True, False),
            }
            follower.core.receive(leader, message)
            follower.journal.sync()
            follower.core.tick()
            assert follower.machine.applied == []

    def test_a_leaders_damaged_snapshot_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=9) as fabric:
            leader = fabric.run_until_led()
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            held = list(follower.journal.held)
            message = {
                "type": "append_entries",
                "term": follower.core.raftCurrentTerm,
                "commit_index": 0,
                "serialized": (b"JSMETAS\x01 and then something else", True, True),
            }
            follower.core.receive(leader, message)
            assert follower.journal.held == held

    @pytest.mark.parametrize("is_same", [True, False], ids=["late", "of another history"])
    def test_a_late_snapshot_keeps_what_follows_it_and_one_of_another_history_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
    ) -> None:
        """What follows may have been acknowledged since the snapshot was sent."""
        with Fabric.running(monkeypatch, tmp_path, seed=8) as fabric:
            leader = fabric.run_until_led()
            for _ in range(6):
                fabric.submit(leader)
                fabric.step()
            fabric.run(0.5)
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            held = list(follower.journal.held)
            before, last = held[2], held[3]
            assert len(held) > 5
            term = last.term if is_same else last.term + 1
            base = (before, Entry(last.data, last.index, term))
            snapshot = Snapshot(last.index, term, follower.machine.snapshot(), base)
            core: Any = follower.core
            core._SyncObj__raftLastApplied = before.index
            monkeypatch.setattr(core.core_receiver, "take", lambda: snapshot)
            core._SyncObj__loadDumpFile(True)
            kept = held[2:] if is_same else list(base)
            assert follower.journal.held == kept
            follower.journal.sync()
            follower.journal.close()
            again = Journal.open(str(follower.directory), alone=False)
            assert again.held == kept
            again.close()

    def test_an_acknowledgement_of_an_earlier_term_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=10) as fabric:
            leader = fabric.nodes[fabric.run_until_led()]
            peers = [node_id for node_id in fabric.ids if node_id != leader.node_id]
            for peer in peers:
                fabric.part(leader.node_id, peer)
            fabric.submit(leader.node_id)
            fabric.step()
            for peer in peers:
                message = {
                    "type": "next_node_idx",
                    "term": leader.core.raftCurrentTerm - 1,
                    "next_node_idx": leader.journal.last_index + 1,
                    "reset": False,
                    "success": True,
                }
                leader.core.receive(peer, message)
            fabric.step()
            assert leader.machine.applied == []

    def test_a_next_index_stays_between_what_is_acknowledged_and_what_there_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=11) as fabric:
            leader = fabric.nodes[fabric.run_until_led()]
            peer = next(node_id for node_id in fabric.ids if node_id != leader.node_id)
            fabric.submit(leader.node_id)
            fabric.run(0.5)
            end = leader.journal.last_index + 1
            for claimed in (1, 10_000):
                message = {
                    "type": "next_node_idx",
                    "term": leader.core.raftCurrentTerm,
                    "next_node_idx": claimed,
                    "reset": True,
                    "success": False,
                }
                leader.core.receive(peer, message)
                assert leader.core.getStatus()[f"next_node_idx_server_{peer}"] == end

    def test_a_leader_whose_history_is_another_is_refused_and_nothing_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=12) as fabric:
            leader = fabric.run_until_led()
            fabric.submit(leader)
            fabric.run(1.5)
            follower = next(node for node in fabric.nodes.values() if node.node_id != leader)
            held = list(follower.journal.held)
            message = {
                "type": "append_entries",
                "term": held[-1].term,
                "commit_index": 1,
                "prevLogIdx": held[0].index,
                "prevLogTerm": held[0].term,
                "entries": [Entry(bytes([NO_OP]), held[1].index, held[-1].term + 5)],
            }
            with pytest.raises(StorageError, match="differs from this node's at entry 2"):
                follower.core.receive(leader, message)
            assert follower.journal.held == held
            text = fabric.submit(leader)
            fabric.run(0.5)
            assert applied_everywhere(fabric, text)


class TestPysyncobj:
    def test_it_is_the_version_whose_inside_is_known(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pysyncobj.version, "VERSION", "0.3.18")
        with (
            pytest.raises(AssertionError, match=r"0\.3\.18 is installed"),
            Fabric.running(monkeypatch, tmp_path, seed=1),
        ):
            raise AssertionError("it started")

    def test_it_cannot_pickle_or_unpickle_anything(self) -> None:
        for module in (pysyncobj.syncobj, pysyncobj.serializer):
            for name in ("loads", "dumps", "load", "dump"):
                with pytest.raises(AssertionError, match="may be pickled"):
                    getattr(module.pickle, name)

    def test_it_opens_no_socket_and_no_file_of_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Fabric.running(monkeypatch, tmp_path, seed=1) as fabric:
            fabric.run_until_led()
            fabric.compact(fabric.ids[0])
        names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert names <= {"journal", "snapshot", "synced"}
