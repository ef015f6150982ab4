"""Which set of voters is in force, whether it may change now, and who has caught up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetstream_protocol.errors import InvalidRequestError, StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.catching_up import CatchingUp
from jetstream_server.metadata.raft.messages import VOTERS, decode, encode
from jetstream_server.metadata.raft.snapshot_file import read_snapshot, write_snapshot
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.raft.voter_change import Situation, Verdict, judge
from jetstream_server.metadata.raft.voters import VoterLog, Voters


def voters(*ids: int, recoveries: int = 0) -> Voters:
    return Voters.of({NodeId(node_id): f"host-{node_id}:1" for node_id in ids}, recoveries)


class TestASet:
    def test_it_is_read_as_it_was_written(self) -> None:
        written = voters(2, 0, 10, recoveries=3)
        assert Voters.decode(written.encode([NodeId(10)])) == written
        assert written.ids == (0, 2, 10)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[]",
            b"{}",
            b'{"voters": {}}',
            b'{"voters": [0, 1]}',
            b'{"voters": {"x": "a:1"}}',
            b'{"voters": {"-1": "a:1"}}',
            b'{"voters": {"0": 7}}',
            b'{"voters": {"0": "a:1"}, "recoveries": -1}',
            b'{"voters": {"0": "%s"}}' % (b"a" * 400),
            b'{"voters": {%s}}' % b", ".join(b'"%d": "a:1"' % number for number in range(65)),
        ],
    )
    def test_anything_else_is_none_and_no_peer_s_either(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="not a set of voters"):
            Voters.decode(data)
        message = {
            "type": "append_entries",
            "term": 1,
            "commit_index": 0,
            "prevLogIdx": 1,
            "prevLogTerm": 0,
            "entries": [Entry(bytes([VOTERS]) + data, 2, 1)],
        }
        with pytest.raises(InvalidRequestError, match="malformed change of the voters"):
            decode(encode(message))

    def test_a_snapshot_keeps_it_and_one_without_is_as_before(self, tmp_path: object) -> None:
        base = (Entry(b"\x01", 1, 0), Entry(b"\x00x", 2, 1))
        for named in (b"", voters(0, 1).encode()):
            snapshot = Snapshot(2, 1, b"state", base, named)
            write_snapshot(str(tmp_path), snapshot)
            assert read_snapshot(str(tmp_path)) == snapshot
        write_snapshot(str(tmp_path), replace(snapshot, voters=b"{}"))
        with pytest.raises(StorageError, match="not a set of voters"):
            read_snapshot(str(tmp_path))


class TestInForce:
    def test_the_last_one_named_is_and_the_one_before_it_when_its_entry_is_removed(self) -> None:
        log = VoterLog(voters(0))
        assert (log.in_force, log.named_at(99), log.last_change) == (voters(0), None, 0)
        log.added(5, voters(0, 1))
        log.added(8, voters(1))
        assert log.in_force == voters(1)
        assert [log.at(index) for index in (4, 5, 7, 8)] == [
            voters(0), voters(0, 1), voters(0, 1), voters(1),
        ]  # fmt: skip
        log.truncated(8)
        assert (log.in_force, log.last_change) == (voters(0, 1), 5)
        log.truncated(3)
        assert log.in_force == voters(0)

    def test_a_snapshot_s_set_stands_for_all_entries_before_it(self) -> None:
        log = VoterLog(voters(0))
        log.added(5, voters(0, 1))
        log.added(8, voters(1))
        log.restart(6, voters(0, 1))
        assert (log.at(6), log.in_force) == (voters(0, 1), voters(1))
        log.truncated(7)
        assert log.in_force == voters(0, 1)
        log.restart(9, None)
        assert log.in_force == voters(0)

    def test_a_recovery_overrules_what_was_named_before_it(self) -> None:
        log = VoterLog(voters(0, recoveries=1))
        assert not log.is_overruled
        log.added(5, voters(0, 1, 2))
        assert log.in_force == voters(0, recoveries=1)
        assert log.named_at(5) is None
        assert log.is_overruled
        log.added(6, voters(0, recoveries=1))
        assert not log.is_overruled
        log.added(7, voters(0, 1, recoveries=1))
        assert log.in_force == voters(0, 1, recoveries=1)


SITUATION = Situation(
    leader=NodeId(0),
    in_force=voters(0, 1, 2),
    is_committed=True,
    has_committed_own=True,
    is_certain=True,
    heard=frozenset(map(NodeId, (0, 1, 2))),
    caught_up=frozenset([NodeId(3)]),
)


@pytest.mark.parametrize(
    ("situation", "wanted", "verdict"),
    [
        (SITUATION, (0, 1, 2, 3), Verdict.APPEND),
        (SITUATION, (0, 2), Verdict.APPEND),
        (SITUATION, (0, 1, 2), Verdict.REFUSE),
        (SITUATION, (), Verdict.REFUSE),
        (SITUATION, (0, 1, 3), Verdict.REFUSE),
        (SITUATION, (0, 1, 2, 4), Verdict.WAIT),
        (SITUATION, (1, 2), Verdict.HAND_OVER),
        (replace(SITUATION, is_committed=False), (0, 2), Verdict.WAIT),
        (replace(SITUATION, is_committed=False), (1, 2), Verdict.WAIT),
        (replace(SITUATION, has_committed_own=False), (0, 2), Verdict.WAIT),
        (replace(SITUATION, is_certain=False), (0, 2), Verdict.WAIT),
        (replace(SITUATION, heard=frozenset([NodeId(0), NodeId(1)])), (0, 2), Verdict.WAIT),
        (replace(SITUATION, heard=frozenset([NodeId(0), NodeId(1)])), (0, 1), Verdict.APPEND),
        # The new one makes the majority.
        (replace(SITUATION, heard=frozenset([NodeId(0), NodeId(1)])), (0, 1, 2, 3), Verdict.APPEND),
        (replace(SITUATION, in_force=voters(0)), (), Verdict.REFUSE),
        (replace(SITUATION, in_force=voters(0)), (0, 3), Verdict.APPEND),
    ],
)
def test_a_change_is_judged(
    situation: Situation, wanted: tuple[int, ...], verdict: Verdict
) -> None:
    ids = {NodeId(node_id): "" for node_id in wanted}
    decided, reason = judge(situation, Voters.of(ids))
    assert decided == verdict
    assert bool(reason) is (verdict != Verdict.APPEND)


class TestCatchingUp:
    PEER = NodeId(3)

    def after(self, catching_up: CatchingUp, times: list[float], **values: float) -> bool:
        for now in times:
            matched = int(values.get("matched", 100)), values.get("answered_at", now)
            catching_up.look(now, int(values.get("term", 1)), 100, {self.PEER: matched})
        return catching_up.is_done(self.PEER, int(values.get("term", 1)))

    def test_it_takes_two_heartbeats_that_are_answered(self) -> None:
        catching_up = CatchingUp(RaftTimings())
        assert not self.after(catching_up, [0.0, 0.05, 0.11, 0.16])
        assert self.after(catching_up, [0.22])
        assert not self.after(CatchingUp(RaftTimings()), [0.0, 0.11, 0.22], matched=99)
        assert not self.after(CatchingUp(RaftTimings()), [0.0, 0.11, 0.22], answered_at=0.05)

    def test_a_round_that_is_too_long_begins_them_anew(self) -> None:
        catching_up = CatchingUp(RaftTimings())
        assert self.after(catching_up, [0.0, 0.11, 0.22])
        assert not self.after(catching_up, [1.0])
        assert self.after(catching_up, [1.11, 1.22])

    def test_another_term_or_connection_begins_them_anew(self) -> None:
        catching_up = CatchingUp(RaftTimings())
        assert self.after(catching_up, [0.0, 0.11, 0.22])
        assert not catching_up.is_done(self.PEER, 2)
        assert not self.after(catching_up, [0.3], term=2)
        assert not self.after(catching_up, [0.31], term=1)
        assert self.after(catching_up, [0.42, 0.53], term=1)
        catching_up.gone(self.PEER)
        assert not self.after(catching_up, [0.6])
        catching_up.look(0.7, 1, 100, {})
        assert not catching_up.is_done(self.PEER, 1)
