"""The metadata's snapshot: `<directory>/snapshot`, replaced as a whole.

jetstream_protocol.logfiles.metadata_records defines the format. The file is replaced atomically;
damage is an error, never a torn tail.
"""

from __future__ import annotations

import os

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import (
    ENTRY,
    HEADER_BYTES,
    SNAPSHOT_HEADER,
    STATE,
    VOTERS,
    WHAT_TO_DO,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
    scan,
)
from jetstream_server.metadata.raft.files import is_there, read_file, replace_file, sync_path
from jetstream_server.metadata.raft.voters import Voters


def write_snapshot(directory: str, snapshot: Snapshot) -> None:
    """Replace the snapshot, durably."""
    head = [SNAPSHOT_HEADER, encode_record(STATE, snapshot.index, snapshot.term, snapshot.data)]
    if snapshot.voters:
        head.append(encode_record(VOTERS, snapshot.index, 0, snapshot.voters))
    replace_file(os.path.join(directory, "snapshot"), [*head, *map(encode_entry, snapshot.base)])


def read_snapshot(directory: str) -> Snapshot | None:
    """Read the snapshot in a journal's directory. Raises StorageError if it is damaged, or cannot
    be read."""
    path = os.path.join(directory, "snapshot")
    try:
        data = read_file(path) if is_there(path) else None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    return None if data is None else decode_snapshot(data, path)


def remove_snapshot(directory: str) -> None:
    """Remove the snapshot, durably."""
    os.remove(os.path.join(directory, "snapshot"))
    sync_path(directory)


def snapshot_file(directory: str) -> bytes:
    """The bytes of the snapshot file, for another node; empty if there is none. Raises
    StorageError."""
    path = os.path.join(directory, "snapshot")
    try:
        return read_file(path) if is_there(path) else b""
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def decode_snapshot(data: bytes, path: str) -> Snapshot:
    """Decode a snapshot file. Raises StorageError, naming `path`, if it is damaged."""
    if data[:HEADER_BYTES] != SNAPSHOT_HEADER:
        raise StorageError(
            f"{path} at byte 0: not a metadata snapshot this software can read; {WHAT_TO_DO}"
        )
    records = list(scan(path, data, tolerate_torn_tail=False))
    kinds = [record.kind for record in records]
    has_voters = kinds[1:2] == [VOTERS]
    head = [STATE, VOTERS] if has_voters else [STATE]
    if not records or kinds != head + [ENTRY] * (len(records) - len(head)):
        raise StorageError(
            f"{path} at byte {HEADER_BYTES}: records of a snapshot are missing; {WHAT_TO_DO}"
        )
    voters = records[1].payload if has_voters else b""
    try:
        if has_voters:
            Voters.decode(voters)
    except ValueError as error:
        raise StorageError(f"{path}: {error}; {WHAT_TO_DO}") from error
    state, *entries = records[0], *records[len(head) :]
    base = tuple(Entry(entry.payload, entry.index, entry.term) for entry in entries)
    return Snapshot(state.index, state.term, state.payload, base, voters)
