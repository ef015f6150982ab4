"""The metadata group's durable log: entries, term and vote in one journal, and one snapshot.

    <directory>/journal    append-only
    <directory>/synced     how much of the journal had been synced
    <directory>/snapshot   replaced as a whole

Their format: jetstream_protocol.logfiles.metadata_records and synced_length.

Crash policy. Nothing is promised before `sync` has returned: it writes and syncs the journal, then
records its length in `synced`. journal_recovery.py says which part must be readable at the next
start, and what an unreadable tail means. `install` replaces the snapshot first and the journal
second, each by temporary file, fsync, rename and fsync of the directory. Between the two, the old
journal still fits the new snapshot. On a full disk they take from the file `reserve`
(reserve.py). After a failed write or sync the journal accepts nothing more:
the content of the disk is unknown until the journal is opened again.

One thread uses it at a time; it has no locks. `sync` may run on another thread while only reading
methods are called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import (
    BEGINNING,
    ENTRY,
    FIRST_INDEX,
    JOURNAL_HEADER,
    STANDING,
    TRUNCATE,
    VOTE,
    WHAT_TO_DO,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
)
from jetstream_server.metadata.raft.files import identity_of, is_there, read_file, replace_file
from jetstream_server.metadata.raft.journal_recovery import recover
from jetstream_server.metadata.raft.kept_descriptors import opened
from jetstream_server.metadata.raft.reserve import in_room
from jetstream_server.metadata.raft.snapshot_file import (
    read_snapshot,
    remove_snapshot,
    write_snapshot,
)
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus
from jetstream_server.metadata.raft.synced_length_file import SyncedFile
from jetstream_server.metadata.raft.voters import Voters


class Journal:
    """An open journal.

    held: the entries, consecutive from first_index to last_index; read-only. term, voted_for:
    Raft's current term and this node's vote in it, "" for none. standing: whether this node votes.
    snapshot_voters: the set of voters that the snapshot names, if it does.
    lost: why a promise may be missing, as found when it was opened; "" when none is. cut_bytes: how
    many bytes were cut off then.
    """

    def __init__(self, directory: str, snapshot: Snapshot | None) -> None:
        self.directory = directory
        self.snapshot_index = snapshot.index if snapshot else 0
        self.snapshot_voters = _voters_of(snapshot)
        self.term = 0
        self.voted_for = ""
        self.standing = VoterStatus()
        self.lost = ""
        self.cut_bytes = 0
        self.size_bytes = 0
        self.failure = ""
        self.held: list[Entry] = []
        self._unwritten: list[bytes] = []
        self._installing: Snapshot | None = None
        self._generation = 0
        self._identity = 0
        self._synced = SyncedFile(directory)
        self._descriptor = -1

    @classmethod
    def open(cls, directory: str, *, alone: bool = False, expected: str = "") -> Journal:
        """Open the journal in `directory`, and create it if nothing is there.

        alone: as far as is known before it is read, the node is the only voter and cannot learn
        from others; what snapshot and entries say of the voters counts too. expected: why there
        must be a journal: if it is missing, it is lost. Raises StorageError, with file and
        position, when a promised entry is unreadable.
        """
        try:
            os.makedirs(directory, exist_ok=True)
            return cls._open(directory, alone, expected)
        except OSError as error:
            raise StorageError(f"metadata journal in {directory}: {error}") from error

    @classmethod
    def _open(cls, directory: str, alone: bool, expected: str) -> Journal:
        path = os.path.join(directory, "journal")
        snapshot = read_snapshot(directory)
        journal = cls(directory, snapshot)
        named = journal.snapshot_voters
        alone = alone and (named is None or len(named.ids) == 1)
        synced = journal._synced.read()
        is_synced = False
        if is_there(path):
            data = read_file(path)
            found = recover(path, data, synced, identity_of(path), alone=alone)
            alone, is_synced = found.alone, found.is_synced
            journal.held, journal.standing, journal.lost = found.held, found.standing, found.lost
            journal.term, journal.voted_for = found.term, found.voted_for
            journal._generation, journal.cut_bytes = found.generation, len(data) - found.end
        elif snapshot is not None or (synced is not None and synced.generation):
            raise StorageError(f"{path} is missing: this node's vote is lost; {WHAT_TO_DO}")
        else:
            journal.lost = expected
        if journal.lost and not alone:
            # An empty journal counts as new: only a group of new journals accepts it.
            journal.standing = VoterStatus() if not expected else journal.standing.after_loss()
            if not journal.is_pristine:
                journal.standing = journal.standing.after_loss()
        journal._check_beginning(path)
        journal._ready(path, snapshot, is_synced)
        return journal

    def _ready(self, path: str, snapshot: Snapshot | None, is_synced: bool) -> None:
        """Write the files for the current content, and open them. From now on all of it counts.

        **safety** Bytes after the synced length may not be on disk although they are read: a sync
        of them may have failed, and another one proves nothing. So they are written again. If the
        journal lacks something, it says so itself before `synced` fits it: no death in between may
        end the doubt.
        """
        fitting = self._fitting(snapshot)
        if not self._generation:
            self._synced.open()  # First: a journal without it is in doubt.
        if not is_synced or fitting != self.held:
            self.held = fitting
            self._replace_file(path)
        elif self.cut_bytes:
            os.truncate(path, os.path.getsize(path) - self.cut_bytes)
        if self._descriptor < 0:
            self._open_file(path)
        self._synced.open()
        self._guarded(lambda: self._write_and_sync(b""))

    def _open_file(self, path: str) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = opened(lambda: os.open(path, flags))
        self.size_bytes = os.fstat(self._descriptor).st_size
        self._identity = identity_of(path)

    @property
    def synced(self) -> SyncedFile:
        """The file `synced`, which says how much of the journal has been synced."""
        return self._synced

    @property
    def is_pristine(self) -> bool:
        """Whether this journal has promised nothing, so that nothing can be lost."""
        return (
            self.standing.state != VoterState.LEARNER
            and (self.term, self.voted_for, self.snapshot_index) == (0, "", 0)
            and self.last_index <= FIRST_INDEX
        )

    @property
    def first_index(self) -> int:
        """Index of the first entry held; snapshot_index + 1 when none is."""
        return self.held[0].index if self.held else self.snapshot_index + 1

    @property
    def last_index(self) -> int:
        return self.held[-1].index if self.held else self.snapshot_index

    def __len__(self) -> int:
        return len(self.held)

    def entry(self, index: int) -> Entry:
        """The entry of that index, which must be held."""
        entry = self.held[index - self.held[0].index]
        assert entry.index == index, "entries are consecutive"
        return entry

    def entries(self, index: int, count: int | None = None) -> list[Entry]:
        """Entries from `index` on, at most `count`."""
        start = max(0, index - self.first_index)
        return self.held[start : None if count is None else start + count]

    def append(self, entry: Entry) -> None:
        """Add the next entry. Not durable before `sync`."""
        assert not self.held or entry.index == self.last_index + 1, "entries are consecutive"
        self.held.append(entry)
        self._unwritten.append(encode_record(ENTRY, entry.index, entry.term, entry.data))

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on. Not durable before `sync`."""
        kept = max(0, index - self.first_index)
        if kept < len(self.held):
            del self.held[kept:]
            self._unwritten.append(encode_record(TRUNCATE, index, 0, b""))

    def save_vote(self, term: int, voted_for: str) -> None:
        """Store the current term and this node's vote. Not durable before `sync`."""
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, voted_for
            self._unwritten.append(encode_record(VOTE, 0, term, voted_for.encode()))

    def save_standing(self, standing: VoterStatus) -> None:
        """Store whether this node votes, and its runs. Not durable before `sync`."""
        if standing != self.standing:
            self.standing = standing
            self._unwritten.append(self._standing_record())

    @property
    def is_synced(self) -> bool:
        return not self._unwritten and self._installing is None

    def sync(self) -> None:
        """Make everything before this call durable. Raises StorageError; every later call then
        raises it too."""
        if self._installing is not None:
            self._guarded(self._install)
        elif self._unwritten:
            data = b"".join(self._unwritten)
            self._guarded(lambda: self._write_and_sync(data))
        self._unwritten.clear()

    def install(self, snapshot: Snapshot, *, keep_from: int | None = None) -> None:
        """Make the snapshot the start of the log, and drop entries before `keep_from`. Not durable
        before `sync`.

        keep_from: usually an index at or below snapshot.index, whose entries are held. None drops
        every entry and continues from `snapshot.base`: for a snapshot received from a leader.
        """
        self.held = list(snapshot.base) if keep_from is None else self.entries(keep_from)
        self.snapshot_index = snapshot.index
        self.snapshot_voters = _voters_of(snapshot)
        self._installing = snapshot

    def begin_anew(self) -> None:
        """Remove every entry and the snapshot, durably; standing, term and vote stay. After a crash
        in between, the snapshot is still the start of the log. Raises StorageError."""
        self.held = []
        self.snapshot_index = 0
        self.snapshot_voters = None
        self._unwritten.clear()
        self._guarded(self._forget)

    def close(self) -> None:
        """Close the files. Unsynced records are dropped, as in a crash."""
        if self._descriptor < 0:
            return
        try:
            if not self.failure and self.is_synced:
                self._synced.write(self._generation, self._identity, self.size_bytes, clean=True)
        except OSError:
            pass  # Without the mark of a clean close the journal is only trusted less.
        self._synced.close()
        os.close(self._descriptor)
        self._descriptor = -1

    def _guarded(self, action: Callable[[], None]) -> None:
        if self.failure:
            raise StorageError(self.failure)
        try:
            action()
        except OSError as error:
            self.failure = f"metadata journal in {self.directory} is offline: {error}"
            raise StorageError(self.failure) from error

    def _write_and_sync(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            write = partial(os.write, self._descriptor, view)
            view = view[in_room(self.directory, len(view), write) :]
        os.fdatasync(self._descriptor)
        self.size_bytes += len(data)
        self._synced.write(self._generation, self._identity, self.size_bytes)

    def _install(self) -> None:
        snapshot = self._installing
        assert snapshot is not None, "sync has looked"
        write_snapshot(self.directory, snapshot)
        self._rewrite(os.path.join(self.directory, "journal"))
        self._installing = None

    def _forget(self) -> None:
        self._rewrite(os.path.join(self.directory, "journal"))
        remove_snapshot(self.directory)

    def _check_beginning(self, path: str) -> None:
        """Raise StorageError when entries between snapshot and journal are missing: the snapshot is
        missing, or was replaced by an older one."""
        if self.held and self.held[0].index > max(FIRST_INDEX, self.snapshot_index + 1):
            raise StorageError(
                f"{path} begins with entry {self.held[0].index}, but the snapshot beside it ends "
                f"with {self.snapshot_index}; {WHAT_TO_DO}"
            )

    def _fitting(self, snapshot: Snapshot | None) -> list[Entry]:
        """The entries that fit the snapshot. Others are left from before an `install` that was
        interrupted between its two files."""
        if snapshot is None:
            return self.held
        following = [entry for entry in self.held if entry.index > snapshot.index]
        held = [entry for entry in self.held if entry.index == snapshot.index]
        if held:
            continues = held[0].term == snapshot.term
        else:
            continues = bool(following) and following[0].index == snapshot.index + 1
        return [*snapshot.base, *(following if continues else ())]

    def _rewrite(self, path: str) -> None:
        """Write a new journal file with the held entries, and note its length as synced."""
        self._replace_file(path)
        self._synced.write(self._generation, self._identity, self.size_bytes)

    def _replace_file(self, path: str) -> None:
        """Write a new journal file with the held entries; it has the next generation."""
        self._generation = 1 + max(self._generation, self._synced.generation)
        head = [
            JOURNAL_HEADER,
            encode_record(BEGINNING, self._generation, 0, b""),
            self._standing_record(),
            encode_record(VOTE, 0, self.term, self.voted_for.encode()),
        ]
        replace_file(path, [*head, *map(encode_entry, self.held)])
        self._open_file(path)

    def _standing_record(self) -> bytes:
        standing = self.standing
        return encode_record(STANDING, standing.confirmed, 0, standing.encode())


def _voters_of(snapshot: Snapshot | None) -> Voters | None:
    return Voters.decode(snapshot.voters) if snapshot is not None and snapshot.voters else None
