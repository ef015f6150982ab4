"""The index file: where in its segment to begin looking for an offset or a time.

Little-endian:

    0   4s  magic "JSLI"
    4   u16 version
    6   u16 reserved       0
    8   u32 crc            CRC32C of everything after it
    12  u32 entry_count
    16  i64 base_offset    of the segment
    24  i64 log_length     bytes of the segment when this was written
    32  entries, each i64 offset, i64 position, i64 append timestamp

An entry describes a batch: its base offset, where it begins, its append timestamp. The first batch
has an entry; so has each batch that is the first to begin 4 KiB or more after the last entry.

Crash policy: an index is a cache. It is written as a whole when its segment is sealed or the log is
closed, and never updated in place. It is trusted only if the CRC, the base offset and the segment's
length agree; otherwise it is rebuilt from the segment.
"""

from __future__ import annotations

import struct
from array import array

from jetstream_protocol.batch import crc32c
from jetstream_protocol.errors import CorruptBatchError

MAGIC = b"JSLI"
VERSION = 1
_HEADER = struct.Struct("<4sHHIIqq")
HEADER_BYTES = _HEADER.size
_CRC_ENDS = 12
ENTRY_BYTES = 24
FIELDS = 3
"""Numbers in an entry: offset, position, append timestamp."""


def encode(base_offset: int, log_length: int, entries: array[int]) -> bytes:
    """The index file of flat entries: offset, position, timestamp, offset, …"""
    covered = _HEADER.pack(
        MAGIC, VERSION, 0, 0, len(entries) // FIELDS, base_offset, log_length
    )[_CRC_ENDS:] + entries.tobytes()  # fmt: skip
    return _HEADER.pack(MAGIC, VERSION, 0, crc32c(covered), 0, 0, 0)[:_CRC_ENDS] + covered


def decode(data: bytes, base_offset: int, log_length: int) -> array[int]:
    """The flat entries of an index file. Raises CorruptBatchError unless it is this segment's."""
    if len(data) < HEADER_BYTES:
        raise CorruptBatchError("index cut short")
    magic, version, reserved, crc, entry_count, for_offset, for_length = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or reserved:
        raise CorruptBatchError("not an index of a version this software reads")
    if len(data) != HEADER_BYTES + entry_count * ENTRY_BYTES or crc32c(data[_CRC_ENDS:]) != crc:
        raise CorruptBatchError("index fails its CRC", position=HEADER_BYTES)
    if for_offset != base_offset:
        raise CorruptBatchError(f"index of the segment at offset {for_offset}", position=16)
    if for_length != log_length:
        raise CorruptBatchError(
            f"index of a segment of {for_length} bytes; this one has {log_length}", position=24
        )
    return array("q", data[HEADER_BYTES:])


def log_length_of(data: bytes) -> int:
    """Bytes of the segment when its index was written; -1 if the index cannot be read."""
    return int(_HEADER.unpack_from(data)[-1]) if len(data) >= HEADER_BYTES else -1
