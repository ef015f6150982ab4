"""Small state files that are written atomically, checked by a CRC and readable by people.

    JSLC 1 <crc32c of the rest, 8 hex digits>\\n
    {"kind":"log","owner":"17",...}\\n

`kind` and `owner` say whose state it is: a file copied from elsewhere is refused. Crash policy: the
file is written to a temporary file, synced and renamed. An unreadable file counts as absent, and
the state is rebuilt.

The checkpoint of a log (kind "log", owner: the folder's name) holds

    log_start_offset        first offset kept
    recovery_point          everything below was synced to disk: recovery scans from there, and
                            bytes missing below it are a loss, not a torn tail
    last_append_timestamp   µs, at least that of the last batch below the recovery point
    epochs                  [[leader epoch, start offset], …], those below the recovery point
    clean_size              after a clean close, bytes of the last segment; else -1. The recovery
                            point is then the log end
    producers               whether the file `producers` was written with it; may be left out: no
    compaction              whether the file `compaction` was written; may be left out: no
    segments                [[base offset, next offset, bytes], …] of the sealed segments below the
                            recovery point; bytes -1: it is being compacted. Left out by releases
                            that had no offsets file, whose log start is not always recorded
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import crc32c
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import WallUs

_PREFIX = b"JSLC 1 "
_HEAD_BYTES = len(_PREFIX) + 9
_NUMBERS = ("log_start_offset", "recovery_point", "last_append_timestamp", "clean_size")


def encode(kind: str, owner: str, state: dict[str, Any]) -> bytes:
    """The bytes of a state file."""
    text = json.dumps({"kind": kind, "owner": owner, **state}, separators=(",", ":"))
    body = text.encode() + b"\n"
    return b"%s%08x\n%s" % (_PREFIX, crc32c(body), body)


def decode(data: bytes, kind: str, owner: str) -> dict[str, Any]:
    """Decode the state in a file. Raises CorruptBatchError unless it is intact and `owner`'s."""
    body = data[_HEAD_BYTES:]
    if not data.startswith(_PREFIX):
        raise CorruptBatchError("not a checkpoint of a version this software reads")
    if data[len(_PREFIX) : _HEAD_BYTES] != b"%08x\n" % crc32c(body):
        raise CorruptBatchError("checkpoint fails its CRC", position=len(_PREFIX))
    try:
        state = bounded_json.loads(body)
    except ValueError as error:
        raise CorruptBatchError("checkpoint is not JSON", position=_HEAD_BYTES) from error
    if not isinstance(state, dict) or state.pop("kind", None) != kind:
        raise CorruptBatchError(f"not a checkpoint of kind {kind!r}", position=_HEAD_BYTES)
    found = state.pop("owner", None)
    if found != owner:
        raise CorruptBatchError(
            f"checkpoint of {found!r}, not of {owner!r}: copied?", position=_HEAD_BYTES
        )
    return state


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """The checkpoint of one log; the fields are described above."""

    log_start_offset: int = 0
    recovery_point: int = 0
    last_append_timestamp: WallUs = WallUs(0)
    epochs: tuple[tuple[int, int], ...] = ()
    clean_size: int = -1
    producers: bool = False
    compaction: bool = False
    segments: tuple[tuple[int, int, int], ...] | None = None

    def cut_to(self, log_end_offset: int) -> LogCheckpoint:
        """The checkpoint to write before the log is truncated to that offset."""
        return LogCheckpoint(
            log_start_offset=min(self.log_start_offset, log_end_offset),
            recovery_point=min(self.recovery_point, log_end_offset),
            last_append_timestamp=self.last_append_timestamp,
            epochs=tuple(entry for entry in self.epochs if entry[1] < log_end_offset),
            producers=self.producers,
            compaction=self.compaction,
            segments=tuple(entry for entry in self.segments or () if entry[1] <= log_end_offset),
        )

    def to_bytes(self, owner: str) -> bytes:
        state = {name: getattr(self, name) for name in self.__slots__}
        if self.segments is None:
            del state["segments"]
        return encode("log", owner, state)

    @classmethod
    def from_bytes(cls, data: bytes, owner: str) -> LogCheckpoint:
        """Decode. Raises CorruptBatchError if the file is damaged, another log's, or impossible."""
        state = decode(data, "log", owner)
        try:
            numbers = [int(state[name]) for name in _NUMBERS]
            epochs = tuple((int(epoch), int(start)) for epoch, start in state["epochs"])
            segments = _segments(state.get("segments"))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptBatchError(f"checkpoint lacks or garbles {error}") from error
        log_start_offset, recovery_point, last_append_timestamp, clean_size = numbers
        checkpoint = cls(
            log_start_offset, recovery_point, WallUs(last_append_timestamp), epochs, clean_size,
            bool(state.get("producers", False)), bool(state.get("compaction", False)), segments,
        )  # fmt: skip
        growing = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))
        if not 0 <= log_start_offset <= recovery_point or not growing:
            raise CorruptBatchError("checkpoint contradicts itself")
        return checkpoint


def _segments(value: Any) -> tuple[tuple[int, int, int], ...] | None:
    if value is None:
        return None
    return tuple((int(base), int(next_offset), int(size)) for base, next_offset, size in value)
