"""The records of the metadata journal and its snapshot: their layout, and how damage is recognised.

    <data>/metadata/journal    file header, then records; append-only
    <data>/metadata/snapshot   file header, then records; replaced as a whole

File header: 8 bytes, "JSMETAJ" (journal) or "JSMETAS" (snapshot) and the format version. A record:

    0   4s  magic "JSMR"       12  u64  index
    4   u32 kind               20  u64  term
    8   u32 length             28  u32  CRC32C of bytes 0..28 and the payload
                               32  payload, `length` bytes

Little-endian, back to back after a file header of HEADER_BYTES. Kinds: ENTRY (index, term,
payload); TRUNCATE (entries from index on are gone); VOTE (term; payload: the node voted for, empty:
none); BEGINNING (index: the generation of this journal file, one more than that of the file it
replaced); STANDING (index: the last entry that was considered; JSON payload: whether the node
votes, and its runs: metadata/raft/standing.py of the server). A snapshot has STATE (index and term
of the last entry it includes; payload: the state), then VOTERS if the log has ever named a set of
voters (index; JSON payload: the set as of that entry), then the ENTRY records from which a log can
continue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from jetstream_protocol.errors import StorageError

JOURNAL_HEADER = b"JSMETAJ\x01"
SNAPSHOT_HEADER = b"JSMETAS\x01"
HEADER_BYTES = 8
FIRST_INDEX = 1
"""Index of a log's first entry."""
_RECORD = struct.Struct("<4sIIQQ")  # magic, kind, length, index, term
_CRC = struct.Struct("<I")
MAGIC = b"JSMR"
_RECORD_BYTES = _RECORD.size + _CRC.size
PAYLOAD_BYTES_MAX = 1 << 30
"""A greater length is damage: ten million streams fit."""

ENTRY, TRUNCATE, VOTE, STATE, BEGINNING, STANDING, VOTERS = 1, 2, 3, 4, 5, 6, 7

WHAT_TO_DO = (
    "restore this node's metadata folder; or, where the group has other voters, move the metadata "
    "folder away and start again: this node then follows without a vote until the others have "
    'taken it back (docs/operations/lost_node.md, "A lost or damaged metadata folder")'
)
"""What the operator can do, for errors that stop the start."""


class Entry(NamedTuple):
    """One command of the replicated log. The order of the fields is that of pysyncobj's entries."""

    data: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    term: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the entry (`index`, `term`), and entries from which a log can continue.

    base: consecutive entries up to and including `index`; may be empty. voters: the set of voters
    as of that entry, as JSON; empty if no entry has named one.
    """

    index: int
    term: int
    data: bytes
    base: tuple[Entry, ...] = ()
    voters: bytes = b""


def encode_record(kind: int, index: int, term: int, payload: bytes) -> bytes:
    head = _RECORD.pack(MAGIC, kind, len(payload), index, term)
    return head + _CRC.pack(google_crc32c.value(head + payload)) + payload


def encode_entry(entry: Entry) -> bytes:
    return encode_record(ENTRY, entry.index, entry.term, entry.data)


class Record(NamedTuple):
    """One record; `end` is the position after it."""

    kind: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    term: int
    payload: bytes
    end: int


def _decode(data: bytes, position: int) -> Record | None:
    """The record at `position`; None unless a whole valid record is there."""
    start = position + _RECORD_BYTES
    if start > len(data):
        return None
    magic, kind, length, index, term = _RECORD.unpack_from(data, position)
    end = start + length
    if magic != MAGIC or length > PAYLOAD_BYTES_MAX or end > len(data):
        return None
    (crc,) = _CRC.unpack_from(data, position + _RECORD.size)
    head = data[position : position + _RECORD.size]
    if google_crc32c.value(head + data[start:end]) != crc:
        return None
    return Record(kind, index, term, data[start:end], end)


class Damage(NamedTuple):
    """A stretch without a valid record. `resumes_at`: where the next one begins; None: nowhere."""

    position: int
    resumes_at: int | None


def walk(data: bytes) -> Iterator[Record | Damage]:
    """Every valid record of a whole file, and the damage between records."""
    position: int | None = HEADER_BYTES
    while position is not None and position < len(data):
        record = _decode(data, position)
        if record is None:
            damage = Damage(position, _next_valid(data, position))
            yield damage
            position = damage.resumes_at
        else:
            yield record
            position = record.end


def scan(path: str, data: bytes, *, tolerate_torn_tail: bool) -> Iterator[Record]:
    """The records of a whole file. tolerate_torn_tail: stop at a torn tail without an error.

    Raises StorageError, naming `path` and position, for damage anywhere else.
    """
    for found in walk(data):
        if isinstance(found, Record):
            yield found
        elif not tolerate_torn_tail or found.resumes_at is not None:
            raise StorageError(
                f"{path} at byte {found.position}: corrupt record with valid ones around it; "
                f"{WHAT_TO_DO}"
            )


def _next_valid(data: bytes, position: int) -> int | None:
    candidate = data.find(MAGIC, position + 1)
    while candidate >= 0 and _decode(data, candidate) is None:
        candidate = data.find(MAGIC, candidate + 1)
    return candidate if candidate >= 0 else None
