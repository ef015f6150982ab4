"""How much of the metadata journal is synced: `<data>/metadata/synced`, two slots.

    at 0 and at 4096, each:
    magic      4s   "JSSL"
    crc        u32  CRC32C of the rest
    sequence   u64  number of this write; the slot with the higher number counts
    generation u64  of the journal file that the slot describes
    identity   u64  of that file on its file system; 0: not known yet
    length     u64  its bytes up to here were synced before this was written
    clean      u64  1: the journal was closed after that, and nothing was written since

Little-endian. The slots are written in turn. A slot is written and synced after the journal, before
anything that the journal holds is promised: bytes after `length` were never promised, and bytes
before it must be readable. A torn write leaves the other slot intact. A file of another size is
damaged. Identity: the inode and, if the file system has it, the inode's generation; by it a copy of
the journal is recognised.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c

SYNCED_NAME = "synced"
SLOT_OFFSETS = (0, 4096)
"""Each slot has its own disk block: a disk that tears one write does not harm the other."""
FILE_BYTES = SLOT_OFFSETS[-1] + 4096

_MAGIC = b"JSSL"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<QQQQQ")
SLOT_BYTES = _HEAD.size + _BODY.size


@dataclass(frozen=True, slots=True)
class SyncedLength:
    """See the module."""

    sequence: int
    generation: int
    identity: int
    length: int
    clean: bool

    def encode(self) -> bytes:
        body = _BODY.pack(self.sequence, self.generation, self.identity, self.length, self.clean)
        return _HEAD.pack(_MAGIC, google_crc32c.value(body)) + body

    @property
    def offset(self) -> int:
        """The position of its slot in the file."""
        return SLOT_OFFSETS[self.sequence % len(SLOT_OFFSETS)]


def decode(data: bytes) -> SyncedLength | None:
    """The newest slot of a whole file; None when neither can be read."""
    if len(data) != FILE_BYTES:
        return None
    slots = [slot for at in SLOT_OFFSETS if (slot := _decode_slot(data[at : at + SLOT_BYTES]))]
    return max(slots, key=lambda slot: slot.sequence, default=None)


def damage(data: bytes) -> str:
    """What is wrong with a file; "": nothing is. Its newest slot may be readable all the same."""
    if len(data) != FILE_BYTES:
        return f"it has {len(data)} bytes and not {FILE_BYTES}"
    newest = decode(data)
    for at, end in zip(SLOT_OFFSETS, (*SLOT_OFFSETS[1:], FILE_BYTES), strict=True):
        slot = data[at : at + SLOT_BYTES]
        if any(slot) and _decode_slot(slot) is None:
            return f"the slot at byte {at} fails its CRC"
        if not any(slot) and (newest is None or newest.sequence > 0):
            return f"the slot at byte {at} is empty"
        if any(data[at + SLOT_BYTES : end]):
            return f"bytes after the slot at byte {at} are not zero"
    return ""


def _decode_slot(data: bytes) -> SyncedLength | None:
    if len(data) < SLOT_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size : SLOT_BYTES]
    if magic != _MAGIC or google_crc32c.value(body) != crc:
        return None
    sequence, generation, identity, length, clean = _BODY.unpack(body)
    return SyncedLength(sequence, generation, identity, length, clean == 1)
