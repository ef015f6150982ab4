from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.raft_log import RaftLog
from jetstream_server.metadata.raft.voters import VoterLog, Voters
from jetstream_server.metadata.raft.voting import Registrations


def no_voters() -> VoterLog:
    return VoterLog(Voters.of({NodeId(0): "host:1"}))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    journal = Journal.open(str(tmp_path))
    log = RaftLog(journal, lambda index: None, Registrations(), no_voters())
    for index in (2, 3, 4):
        log.add(b"\x00%d" % index, index, 1)
    yield log
    journal.close()


def held(log: RaftLog) -> list[tuple[int, int]]:
    return [(entry.index, entry.term) for entry in log[:]]


def test_a_new_log_begins_with_the_same_entry_everywhere(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path))
    assert RaftLog(journal, lambda index: None, Registrations(), no_voters())[:] == [
        (b"\x01", 1, 0)
    ]
    journal.close()


def test_entries_removed_and_added_again_are_not_touched(log: RaftLog) -> None:
    log._journal.sync()
    log.deleteEntriesFrom(1)
    assert (len(log), log[-1].index) == (1, 1)
    log.add(b"\x002", 2, 1)
    assert len(log) == 2
    log.settle()
    assert held(log) == [(1, 0), (2, 1), (3, 1), (4, 1)]
    assert log._journal.is_synced


def test_a_different_entry_ends_the_old_suffix(log: RaftLog) -> None:
    log.deleteEntriesFrom(1)
    log.add(b"\x002", 2, 1)
    log.add(b"\x00other", 3, 2)
    log.settle()
    assert held(log) == [(1, 0), (2, 1), (3, 2)]


def test_entries_beyond_the_old_end_follow_the_repeated_ones(log: RaftLog) -> None:
    log.deleteEntriesFrom(3)
    log.add(b"\x004", 4, 1)
    log.add(b"\x005", 5, 1)
    log.settle()
    assert held(log)[-2:] == [(4, 1), (5, 1)]


def test_the_first_index_of_a_removal_is_checked(tmp_path: Path) -> None:
    checked: list[int] = []
    journal = Journal.open(str(tmp_path))
    log = RaftLog(journal, checked.append, Registrations(), no_voters())
    log.add(b"\x00a", 2, 1)
    assert checked == []
    log.deleteEntriesFrom(1)
    log.add(b"\x00b", 2, 2)
    assert checked == [2]
    journal.close()


def test_term_and_vote_are_the_journals(log: RaftLog) -> None:
    log.setCurrentTerm(4, "2")
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (4, "2")
    log.setCurrentTerm(5, None)
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (5, None)
