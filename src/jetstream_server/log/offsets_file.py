"""Keeps the offsets file of one log (jetstream_protocol.logfiles.offsets_file).

Threads. `write_bounds` is called under the log's mutex, `write_end` by the thread that owns the
log: each slot has one writer at a time. All methods raise OSError.
"""

from __future__ import annotations

from jetstream_protocol.logfiles.names import OFFSETS_SUFFIX
from jetstream_protocol.logfiles.offsets_file import (
    BOUNDS_AT,
    BOUNDS_END,
    END_AT,
    FILE_BYTES,
    Bounds,
    Offsets,
    decode,
    encode_bounds,
    encode_end,
)
from jetstream_server.log.disk import Disk
from jetstream_server.log.state_files import is_refused, owner_of


def read_offsets(disk: Disk, directory: str) -> Offsets | None:
    """Read the offsets file; None when there is none. Raises OSError."""
    try:
        data = disk.read_file(directory + OFFSETS_SUFFIX)
    except FileNotFoundError:
        return None
    return decode(data, owner_of(directory).encode())


class OffsetsFile:
    """boot_id: of the machine's current boot; "" when unknown: no log end is recorded then."""

    __slots__ = (
        "_boot_id", "_disk", "_in_doubt", "_owner", "_written", "bounds", "end_offset", "path",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, boot_id: str) -> None:
        self._disk = disk
        self._boot_id = boot_id.encode()
        self._owner = owner_of(directory).encode()
        self._written: dict[int, bytes] = {}
        self._in_doubt: set[int] = set()
        """The slots that may not hold what was last written, because that has failed."""
        self.path = directory + OFFSETS_SUFFIX
        self.bounds: Bounds | None = None
        """The last bounds written, if known."""
        self.end_offset: int | None = None
        """The last log end recorded in this boot of the machine."""

    def adopt(self, found: Offsets | None, *, is_in_doubt: bool) -> None:
        """Take over the content of the file. is_in_doubt: it may be in memory only, whatever an
        fsync says now."""
        if found is None:
            return
        if found.damage:
            self._tidy()
        if found.bounds is not None:
            self._written[BOUNDS_AT] = encode_bounds(self._owner, found.bounds)
            self.bounds = found.bounds
        if found.end is not None and found.end.boot_id.encode() == self._boot_id != b"":
            end_offset, is_cut = found.end.log_end_offset, found.end.is_cut
            slot = encode_end(self._owner, end_offset, self._boot_id, is_cut=is_cut)
            self._written[END_AT] = slot
            self.end_offset = end_offset
        if is_in_doubt:
            self._in_doubt.update(self._written)

    def _tidy(self) -> None:
        """Zero whatever is outside the slots."""
        if self._disk.size(self.path) > FILE_BYTES:
            self._disk.truncate(self.path, FILE_BYTES)
        self._disk.write(self.path, BOUNDS_END, (bytes(END_AT - BOUNDS_END),))

    def write_bounds(self, bounds: Bounds, *, durable: bool = False) -> None:
        """Write the bounds. durable: everything written to this file so far is synced on return."""
        if bounds != self.bounds or BOUNDS_AT in self._in_doubt:
            self._write(BOUNDS_AT, encode_bounds(self._owner, bounds))
            self.bounds = bounds
        if durable:
            self._sync()

    def write_end(self, log_end_offset: int, *, is_cut: bool = False) -> None:
        """is_cut: the log is about to be cut there."""
        if not self._boot_id:
            return
        slot = encode_end(self._owner, log_end_offset, self._boot_id, is_cut=is_cut)
        if slot != self._written.get(END_AT) or END_AT in self._in_doubt:
            self._write(END_AT, slot)
            self.end_offset = log_end_offset

    def replace_refused(self, bounds: Bounds) -> None:
        """If the device refuses to read the file, begin another one, durably: with these bounds,
        and an empty log. Nor could slots of the old one be written."""
        try:
            self._disk.read_file(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            if not is_refused(error):
                raise
        else:
            return
        self._written = {BOUNDS_AT: encode_bounds(self._owner, bounds)}
        if self._boot_id:
            self._written[END_AT] = encode_end(self._owner, 0, self._boot_id, is_cut=False)
        self._in_doubt = set(self._written)
        content = bytearray(FILE_BYTES)
        for at, slot in self._written.items():
            content[at : at + len(slot)] = slot
        self._disk.write_atomic(self.path, bytes(content))
        self._in_doubt.clear()
        self.bounds, self.end_offset = bounds, 0 if self._boot_id else None

    def create(self) -> None:
        """Make the file if there is none. Its name is not synced."""
        if not self._disk.exists(self.path):
            self._disk.create(self.path)

    def delete(self) -> None:
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    def _write(self, position: int, slot: bytes) -> None:
        self._written[position] = slot
        self._in_doubt.add(position)
        try:
            self._disk.write(self.path, position, (slot,))
        except FileNotFoundError:
            self._restore()
        self._in_doubt.discard(position)

    def _sync(self) -> None:
        try:
            self._disk.fsync(self.path)
        except FileNotFoundError:
            self._restore()
            self._disk.fsync(self.path)
        except OSError:
            self._in_doubt.update(self._written)  # Another fsync would not write them.
            raise

    def _restore(self) -> None:
        """Make the file again after it was removed."""
        self.create()
        for at, known in list(self._written.items()):
            self._disk.write(self.path, at, (known,))
