"""The journal with pysyncobj's interface, and one correction of pysyncobj.

On every append pysyncobj removes all entries after the one that the leader names, even those that
the leader repeats or does not mention: an acknowledged entry would be missing until it arrives
again. Raft removes only conflicting entries. So a removal is held back until the message is
processed (`settle`): equal entries stay, a different one ends the old suffix, and entries that were
not touched become visible again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetstream_protocol.logfiles.metadata_records import FIRST_INDEX, Entry
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import NO_OP, VOTERS
from jetstream_server.metadata.raft.voters import VoterLog, Voters
from jetstream_server.metadata.raft.voting import Registrations


class RaftLog:
    """pysyncobj's journal interface. Positions count from the first entry held.

    Never empty: a new log begins with the same no-op on every node, as pysyncobj's own logs do.
    check_removal: called with the first index of entries that will be removed; may raise.
    registrations, voters: notified of every added and removed entry.
    """

    def __init__(
        self,
        journal: Journal,
        check_removal: Callable[[int], None],
        registrations: Registrations,
        voters: VoterLog,
    ) -> None:
        self._journal = journal
        self._check_removal = check_removal
        self._registrations = registrations
        self._voters = voters
        # How many entries pysyncobj sees while a removal is held back; None: all.
        self._visible: int | None = None
        if not len(journal):
            journal.append(Entry(bytes([NO_OP]), FIRST_INDEX, 0))
        voters.restart(journal.snapshot_index, journal.snapshot_voters)
        for entry in journal.entries(journal.snapshot_index + 1):
            self._added(entry)

    def settle(self) -> None:
        """Finish processing a message: entries without a conflict stay."""
        self._visible = None

    def add(self, command: bytes, index: int, term: int) -> None:
        if self._visible is not None:
            if self._visible < len(self._journal) and self._is_held(index, term):
                self._visible += 1
                return
            self._check_removal(index)
            self._journal.truncate(index)
            self._registrations.truncated(index)
            self._voters.truncated(index)
            self._visible = None
        entry = Entry(command, index, term)
        self._journal.append(entry)
        self._added(entry)

    def deleteEntriesFrom(self, position: int) -> None:  # pysyncobj's name
        self._visible = position

    def __len__(self) -> int:
        return len(self._journal) if self._visible is None else self._visible

    def __getitem__(self, item: Any) -> Any:
        if self._visible is None:
            return self._journal.held[item]
        return self._journal.held[: self._visible][item]

    def getCurrentTerm(self) -> int:
        return self._journal.term

    def getVotedForNodeId(self) -> str | None:
        return self._journal.voted_for or None

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._journal.save_vote(term, voted_for or "")

    def getRaftCommitIndex(self) -> int:
        """The index that is certainly committed. The leader sends the rest."""
        return max(FIRST_INDEX, self._journal.snapshot_index)

    def setRaftCommitIndex(self, commit_index: int) -> None:
        """Store nothing: see `getRaftCommitIndex`."""

    def onOneSecondTimer(self) -> None:
        """Do nothing: nothing waits for a timer."""

    def _destroy(self) -> None:
        """Do nothing: the owner closes the journal."""

    def _added(self, entry: Entry) -> None:
        if entry.data[:1] == bytes([VOTERS]):
            self._voters.added(entry.index, Voters.decode(entry.data[1:]))
        else:
            self._registrations.added(entry)

    def _is_held(self, index: int, term: int) -> bool:
        entry = self._journal.entry(index)
        return entry.index == index and entry.term == term
