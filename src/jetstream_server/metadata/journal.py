"""The metadata group's durable log: entries, term and vote in one journal, and one snapshot.

    <directory>/journal    append-only
    <directory>/snapshot   replaced as a whole

Their format: jetstream_protocol.logfiles.metadata_records.

Crash policy. Nothing is promised before `sync` has returned. On open, a bad record with no valid
record anywhere behind it is a torn tail: it was never promised, and is cut off. A bad record with
a valid one behind it is corruption: opening is refused with file and position, nothing is
changed. `install` replaces the snapshot first and the journal second, each by temporary file,
fsync, rename and fsync of the directory; between the two, the old journal still fits the new
snapshot. After a failed write or sync the journal takes nothing more: what the disk holds then is
unknown until it is opened again.

Used from one thread at a time; it does no locking of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import (
    ENTRY,
    FIRST_INDEX,
    HEADER_BYTES,
    JOURNAL_HEADER,
    SNAPSHOT_HEADER,
    STATE,
    TRUNCATE,
    VOTE,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
    scan,
)
from jetstream_server.metadata.files import read_file, replace_file, sync_path


class Journal:
    """An open journal.

    held: the entries, consecutive from first_index to last_index; for reading only.
    term, voted_for: Raft's current term and this node's vote in it, "" for none.
    """

    def __init__(self, directory: str, snapshot: Snapshot | None) -> None:
        self.directory = directory
        self.snapshot_index = snapshot.index if snapshot else 0
        self.snapshot_term = snapshot.term if snapshot else 0
        self.term = 0
        self.voted_for = ""
        self.size_bytes = 0
        self.failure = ""
        self.held: list[Entry] = []
        self._unwritten: list[bytes] = []
        self._descriptor = -1

    @classmethod
    def open(cls, directory: str) -> Journal:
        """The journal in `directory`, created if nothing is there.

        Raises StorageError, naming file and position, for anything but a torn tail.
        """
        try:
            os.makedirs(directory, exist_ok=True)
            return cls._open(directory)
        except OSError as error:
            raise StorageError(f"metadata journal in {directory}: {error}") from error

    @classmethod
    def _open(cls, directory: str) -> Journal:
        path = os.path.join(directory, "journal")
        snapshot = read_snapshot(directory)
        journal = cls(directory, snapshot)
        if os.path.exists(path):
            journal._recover(path)
        elif snapshot is not None:
            raise StorageError(
                f"{path} is missing beside a snapshot: this node's vote is lost, and it must not "
                "take part again with this folder"
            )
        else:
            replace_file(path, [JOURNAL_HEADER])
        journal._fit_to(snapshot, path)
        journal._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        journal.size_bytes = os.fstat(journal._descriptor).st_size
        return journal

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
        """Remember the current term and whom this node voted for. Not durable before `sync`."""
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, voted_for
            self._unwritten.append(encode_record(VOTE, 0, term, voted_for.encode()))

    @property
    def is_synced(self) -> bool:
        return not self._unwritten

    def sync(self) -> None:
        """Make everything before this call durable. Raises StorageError, then and ever after."""
        if not self._unwritten:
            return
        data = b"".join(self._unwritten)
        self._guarded(lambda: self._write_and_sync(data))
        self._unwritten.clear()
        self.size_bytes += len(data)

    def install(self, snapshot: Snapshot, *, keep_from: int | None = None) -> None:
        """Make the snapshot the start of the log, durably; entries before `keep_from` go.

        keep_from: normally an index at or below snapshot.index, whose entries are held. None drops
        every entry and goes on from `snapshot.base`: for a snapshot received from a leader.
        """
        kept = list(snapshot.base) if keep_from is None else self.entries(keep_from)
        self._guarded(lambda: self._install(snapshot, kept))
        self.snapshot_index, self.snapshot_term = snapshot.index, snapshot.term
        self.held = kept
        self._unwritten.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
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
            view = view[os.write(self._descriptor, view) :]
        os.fdatasync(self._descriptor)

    def _install(self, snapshot: Snapshot, kept: Sequence[Entry]) -> None:
        state = encode_record(STATE, snapshot.index, snapshot.term, snapshot.data)
        replace_file(
            os.path.join(self.directory, "snapshot"),
            [SNAPSHOT_HEADER, state, *map(encode_entry, snapshot.base)],
        )
        path = os.path.join(self.directory, "journal")
        self._rewrite(path, kept)
        os.close(self._descriptor)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def _recover(self, path: str) -> None:
        """Replay the journal's records; cut off a torn tail."""
        data = read_file(path)
        if len(data) < HEADER_BYTES or data[:HEADER_BYTES] != JOURNAL_HEADER:
            raise StorageError(f"{path} at byte 0: not a metadata journal this software can read")
        end = HEADER_BYTES
        for kind, index, term, payload, end in scan(path, data, tolerate_torn_tail=True):
            if kind == ENTRY:
                self._replay_entry(path, end, Entry(payload, index, term))
            elif kind == TRUNCATE:
                del self.held[max(0, index - self.first_index) :]
            elif kind == VOTE:
                self.term, self.voted_for = term, payload.decode()
            else:
                raise StorageError(f"{path} before byte {end}: unknown record kind {kind}")
        if end < len(data):
            os.truncate(path, end)
            sync_path(path)

    def _replay_entry(self, path: str, end: int, entry: Entry) -> None:
        if self.held and entry.index != self.held[-1].index + 1:
            raise StorageError(
                f"{path} before byte {end}: entry {entry.index} follows {self.held[-1].index}"
            )
        self.held.append(entry)

    def _fit_to(self, snapshot: Snapshot | None, path: str) -> None:
        """Finish an `install` that was interrupted between its two files.

        Raises StorageError when entries between the two are missing: the snapshot is gone, or an
        older one was put in its place.
        """
        if self.held and self.held[0].index > max(FIRST_INDEX, self.snapshot_index + 1):
            raise StorageError(
                f"{path} begins with entry {self.held[0].index}, but the snapshot beside it ends "
                f"with {self.snapshot_index}: restore this node's metadata folder or let it join "
                "anew with an empty data folder"
            )
        if snapshot is None:
            return
        following = [entry for entry in self.held if entry.index > snapshot.index]
        held = [entry for entry in self.held if entry.index == snapshot.index]
        if held:
            continues = held[0].term == snapshot.term
        else:
            continues = bool(following) and following[0].index == snapshot.index + 1
        fitting = [*snapshot.base, *(following if continues else ())]
        if fitting != self.held:
            self.held = fitting
            self._rewrite(path, fitting)

    def _rewrite(self, path: str, entries: Sequence[Entry]) -> None:
        vote = encode_record(VOTE, 0, self.term, self.voted_for.encode())
        replace_file(path, [JOURNAL_HEADER, vote, *map(encode_entry, entries)])


def read_snapshot(directory: str) -> Snapshot | None:
    """The snapshot in a journal's directory. Raises StorageError if it is damaged."""
    path = os.path.join(directory, "snapshot")
    return decode_snapshot(read_file(path), path) if os.path.exists(path) else None


def snapshot_file(directory: str) -> bytes:
    """The snapshot's file as it is, for another node; empty without one."""
    path = os.path.join(directory, "snapshot")
    return read_file(path) if os.path.exists(path) else b""


def decode_snapshot(data: bytes, path: str) -> Snapshot:
    """A snapshot file's content. Raises StorageError, naming `path`, if it is damaged."""
    if data[:HEADER_BYTES] != SNAPSHOT_HEADER:
        raise StorageError(f"{path} at byte 0: not a metadata snapshot this software can read")
    records = list(scan(path, data, tolerate_torn_tail=False))
    kinds = [record[0] for record in records]
    if not records or kinds != [STATE] + [ENTRY] * (len(records) - 1):
        raise StorageError(f"{path} at byte {HEADER_BYTES}: records of a snapshot are missing")
    _, index, term, state, _ = records[0]
    base = tuple(Entry(payload, index, term) for _, index, term, payload, _ in records[1:])
    return Snapshot(index, term, state, base)
