"""The file `<stream id>.offsets` beside a stream's folder: where the log begins and ends.

    at 0    bounds   log start and flushed offset, and a leader epoch that began below that
    at 64   end      log end, and the boot of the machine in which that was written

It is a second record of what the checkpoint says, outside of the folder: so the loss of any one of
segment, checkpoint, folder and this file can be detected by the others. It is written in place,
without its own fsync, so that it costs one system call: after each fsync of the log
(`bounds`), and after each append (`end`). What was written survives the process; it survives a
power failure as far as the kernel had written it back. Before records are removed, `bounds` is
written and synced.

Crash policy: each slot has a CRC. A slot that fails it counts as absent, like a missing file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from jetstream_protocol.batch import crc32c

BOUNDS_AT: Final = 0
END_AT: Final = 64
FILE_BYTES: Final = 128

_HEAD = struct.Struct("<4sHHI")  # magic, version, flags, CRC of all else in the slot and the owner
_BOUNDS = struct.Struct("<Iqq")  # leader epoch, log start, flushed
_END = struct.Struct("<4xq40s")  # log end, boot id
BOUNDS_END: Final = BOUNDS_AT + _HEAD.size + _BOUNDS.size
_BOUNDS_MAGIC = b"JSLO"
_END_MAGIC = b"JSLE"
_VERSION = 1


class Mark(IntFlag):
    """What else must be known of a log."""

    NONE = 0
    EMPTYING = 1
    """Its records are being removed, to begin anew: the rest is not a valid log."""
    INCOMPLETE = 2
    """It may lack acknowledged records, although what is there is valid; the metadata does not
    know it yet."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """leader_epoch: one that this node began to lead at or below `flushed_offset`, noted because it
    may have no records of its own; 0: none, or the first one."""

    log_start_offset: int
    flushed_offset: int
    mark: Mark = Mark.NONE
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class End:
    log_end_offset: int
    boot_id: str
    is_cut: bool = False
    """The log was being cut there. No fsync may have covered the cut."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The content of the file; None: not written, or not trusted. damage: what is damaged, in
    words; "": nothing is."""

    bounds: Bounds | None = None
    end: End | None = None
    damage: str = ""

    @property
    def end_offset(self) -> int:
        """The offset that the log had reached at least, if only in memory."""
        flushed = self.bounds.flushed_offset if self.bounds else 0
        return max(flushed, self.end.log_end_offset if self.end else 0)


def encode_bounds(owner: bytes, bounds: Bounds) -> bytes:
    """The slot with the bounds. owner: the stream id; a file of another owner is not trusted."""
    rest = _BOUNDS.pack(bounds.leader_epoch, bounds.log_start_offset, bounds.flushed_offset)
    return _slot(_BOUNDS_MAGIC, bounds.mark, owner, rest)


def encode_end(owner: bytes, log_end_offset: int, boot_id: bytes, *, is_cut: bool = False) -> bytes:
    return _slot(_END_MAGIC, int(is_cut), owner, _END.pack(log_end_offset, boot_id))


def decode(data: bytes, owner: bytes) -> Offsets:
    """Decode what can be trusted of the file, which may be damaged or another stream's."""
    bounds = end = None
    found = _read(data[BOUNDS_AT:BOUNDS_END], _BOUNDS_MAGIC, owner)
    if found is not None:
        flags, rest = found
        leader_epoch, start, flushed = _BOUNDS.unpack(rest)
        if 0 <= start <= flushed and flags in (0, 1, 2, 3):
            bounds = Bounds(start, flushed, Mark(flags), leader_epoch)
    found = _read(data[END_AT:FILE_BYTES], _END_MAGIC, owner)
    if found is not None:
        flags, rest = found
        log_end_offset, boot_id = _END.unpack(rest)
        end = End(log_end_offset, boot_id.rstrip(b"\0").decode("ascii", "replace"), flags == 1)
    return Offsets(bounds, end, _damage(data, bounds, end))


def _damage(data: bytes, bounds: Bounds | None, end: End | None) -> str:
    """What is damaged, in words; "": nothing is. A first slot of zeros was not written yet, and an
    empty file was just made."""
    if bounds is None and any(data[BOUNDS_AT:BOUNDS_END]):
        return "the slot with log start and flushed offset fails its CRC"
    if end is None and len(data) > END_AT:
        return "the slot with the log end fails its CRC"
    if len(data) not in (0, BOUNDS_END, FILE_BYTES):
        return f"the file has {len(data)} bytes and not {FILE_BYTES}"
    return "bytes between the slots are not zero" if any(data[BOUNDS_END:END_AT]) else ""


def _slot(magic: bytes, flags: int, owner: bytes, rest: bytes) -> bytes:
    crc = crc32c(b"%b %d %b" % (owner, flags, rest))
    return _HEAD.pack(magic, _VERSION, flags, crc) + rest


def _read(slot: bytes, magic: bytes, owner: bytes) -> tuple[int, bytes] | None:
    if len(slot) < _HEAD.size + min(_BOUNDS.size, _END.size):
        return None
    found, version, flags, _ = _HEAD.unpack_from(slot)
    rest = slot[_HEAD.size :]
    if found != magic or version != _VERSION or _slot(magic, flags, owner, rest) != slot:
        return None
    return flags, rest
