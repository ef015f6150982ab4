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
    WHAT_TO_DO,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
    scan,
)
from jetstream_server.metadata.raft.files import read_file, replace_file


def write_snapshot(directory: str, snapshot: Snapshot) -> None:
    """Replace the snapshot, durably."""
    state = encode_record(STATE, snapshot.index, snapshot.term, snapshot.data)
    replace_file(
        os.path.join(directory, "snapshot"),
        [SNAPSHOT_HEADER, state, *map(encode_entry, snapshot.base)],
    )


def read_snapshot(directory: str) -> Snapshot | None:
    """Read the snapshot in a journal's directory. Raises StorageError if it is damaged."""
    path = os.path.join(directory, "snapshot")
    return decode_snapshot(read_file(path), path) if os.path.exists(path) else None


def snapshot_file(directory: str) -> bytes:
    """The bytes of the snapshot file, for another node; empty if there is none."""
    path = os.path.join(directory, "snapshot")
    return read_file(path) if os.path.exists(path) else b""


def decode_snapshot(data: bytes, path: str) -> Snapshot:
    """Decode a snapshot file. Raises StorageError, naming `path`, if it is damaged."""
    if data[:HEADER_BYTES] != SNAPSHOT_HEADER:
        raise StorageError(
            f"{path} at byte 0: not a metadata snapshot this software can read; {WHAT_TO_DO}"
        )
    records = list(scan(path, data, tolerate_torn_tail=False))
    kinds = [record[0] for record in records]
    if not records or kinds != [STATE] + [ENTRY] * (len(records) - 1):
        raise StorageError(
            f"{path} at byte {HEADER_BYTES}: records of a snapshot are missing; {WHAT_TO_DO}"
        )
    _, index, term, state, _ = records[0]
    base = tuple(Entry(payload, index, term) for _, index, term, payload, _ in records[1:])
    return Snapshot(index, term, state, base)
