"""Key compaction: which records of a log are removed, and what remains of their batches. Pure.

The rules. Of the records of a key the last one stays; records without a key stay. A tombstone (null
value) stays until its grace time is over, and then goes as well. Offsets never change. Rows or
whole batches are removed; batches are never merged. What remains of a batch keeps its base offset,
last delta, epoch, append timestamp and producer fields. These batches stay even without a row:

* the first batch of each leader epoch, from which recovery knows where the epoch begins;
* the batches the caller names: the last five of each producer, by which repeats are recognised;
* the last batch of each segment, so that a segment ends where the next one begins.

A batch after removed ones is marked AFTER_GAP.

A pass first maps the keys of a stretch of the log to their last offsets (`LatestOffsets`), then
rewrites everything before the stretch's end (`Rewriter`). After it, no two records below that end
have the same key: **safety** only below such an end, and only once readers have had the grace time
to get that far, is a tombstone removed. If it were removed earlier, a reader could have read the
record that it deletes and never learn of the deletion.

**safety** Nor is a tombstone removed after a batch that cannot be decrypted: the batch may hold
the record that it deletes, and the key may come back.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from hashlib import blake2b
from itertools import compress, repeat
from typing import Final

from jetstream_protocol.batch import (
    COMPRESSION_MASK,
    Batch,
    BatchHeader,
    decode_header,
    encode,
    with_flags,
)
from jetstream_protocol.columns import Flags

KEY_BYTES_KEPT: Final = 32
"""Longer keys are mapped by a digest of this many bytes, so that the number of keys bounds the
size of a map. The chance that two keys share a digest is negligible for any amount of data."""

_KEYS: Final = int(Flags.KEYS)
_AFTER_GAP: Final = int(Flags.AFTER_GAP)
_NULL_VALUES: Final = int(Flags.VALUE_VALIDITY)


def _map_keys(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """The keys as a map holds them."""
    if max(map(len, filter(None, keys)), default=0) <= KEY_BYTES_KEPT:
        return keys
    return [
        # One byte longer than any key that is kept as it is, so that the two cannot be confused.
        key
        if key is None or len(key) <= KEY_BYTES_KEPT
        else b"#" + blake2b(key, digest_size=KEY_BYTES_KEPT).digest()
        for key in keys
    ]


class LatestOffsets:
    """The last offset of each key in a stretch of the log, of at most `keys_max` keys.

    `end_offset` is where the stretch ends so far: feed it batch after batch until one is refused.
    """

    __slots__ = ("_keys_max", "_latest", "end_offset")

    def __init__(self, start_offset: int, keys_max: int) -> None:
        self._latest: dict[bytes | None, int] = {}
        self._keys_max = keys_max
        self.end_offset = start_offset

    def __len__(self) -> int:
        return len(self._latest)

    def has_room_for(self, header: BatchHeader) -> bool:
        """Whether the batch fits even if all its keys are new. The first batch always fits."""
        if not header.flags & _KEYS or not self._latest:
            return True
        return len(self._latest) + header.record_count <= self._keys_max

    def add(self, batch: Batch) -> None:
        if batch.header.flags & _KEYS:
            self._latest.update(zip(_map_keys(batch.keys()), batch.offsets(), strict=True))
            self._latest.pop(None, None)
        self.end_offset = batch.header.next_offset

    def skip(self, header: BatchHeader) -> None:
        """Pass over a batch without keys, or with keys that this node cannot decrypt."""
        self.end_offset = header.next_offset

    def are_latest(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> list[bool]:
        """For each record, whether no later record in the stretch has its key."""
        latest = map(self._latest.get, _map_keys(keys), repeat(-1))
        return list(map(operator.le, latest, offsets))


class Rewriter:
    """Reads a log from its start, batch by batch, and says what remains of each.

    tombstones_below: tombstones before this offset are removed. kept_base_offsets: batches that
    stay, even if empty. `tombstones` counts the tombstones that stayed below the stretch's end,
    `records_removed` the removed records.
    """

    __slots__ = (
        "_kept_base_offsets", "_latest", "_leader_epoch", "_next_offset", "_tombstones_below",
        "records_removed", "tombstones",
    )  # fmt: skip

    def __init__(
        self, latest: LatestOffsets, tombstones_below: int, kept_base_offsets: Collection[int]
    ) -> None:
        self._latest = latest
        self._tombstones_below = tombstones_below
        self._kept_base_offsets = kept_base_offsets
        self._leader_epoch = -1
        self._next_offset = -1
        self.records_removed = 0
        self.tombstones = 0

    def begin_segment(self, base_offset: int) -> None:
        """Note that the next batches belong to the segment with this base offset."""
        self._next_offset = base_offset

    def rewrite(self, data: bytes, *, ends_segment: bool) -> bytes:
        """What is left of a stamped batch: `data` itself, other bytes, or none.

        Raises CorruptBatchError.
        """
        batch = Batch.decode(data)
        header = batch.header
        begins_epoch = header.leader_epoch != self._leader_epoch
        self._leader_epoch = header.leader_epoch
        keep = self._keep(batch)
        kept = header.record_count if keep is None else sum(keep)
        self.records_removed += header.record_count - kept
        stays = begins_epoch or ends_segment or header.base_offset in self._kept_base_offsets
        if not kept and not stays:
            return b""
        # A batch that was empty already is removed, unless it has to stay.
        after_gap = self._advance(header)
        if keep is not None and kept < header.record_count:
            return _without(batch, keep, after_gap)
        return _mark_gap(data, header, after_gap)

    def leave(self, data: bytes) -> bytes:
        """Keep a stamped batch that cannot be decrypted, whatever it holds, and every tombstone
        after it."""
        header = decode_header(data)
        if header.flags & _KEYS:
            self._tombstones_below = min(self._tombstones_below, header.base_offset)
        self._leader_epoch = header.leader_epoch
        return _mark_gap(data, header, self._advance(header))

    def _advance(self, header: BatchHeader) -> bool:
        """Move past the batch, and return whether there is a gap before it."""
        after_gap = header.base_offset > self._next_offset
        self._next_offset = header.next_offset
        return after_gap

    def _keep(self, batch: Batch) -> list[bool] | None:
        """For each record, whether it stays; None: all of them do."""
        header = batch.header
        if not header.flags & _KEYS or header.base_offset >= self._latest.end_offset:
            return None
        keys, offsets = batch.keys(), batch.offsets()
        keep = self._latest.are_latest(keys, offsets)
        if header.flags & _NULL_VALUES:
            self._drop_tombstones(batch, keys, offsets, keep)
        return keep

    def _drop_tombstones(
        self,
        batch: Batch,
        keys: Sequence[bytes | None],
        offsets: Sequence[int],
        keep: list[bool],
    ) -> None:
        for index, value in enumerate(batch.values()):
            if value is None and keys[index] is not None and keep[index]:
                if offsets[index] < self._tombstones_below:
                    keep[index] = False
                elif offsets[index] < self._latest.end_offset:
                    self.tombstones += 1


def _mark_gap(data: bytes, header: BatchHeader, after_gap: bool) -> bytes:
    if after_gap and not header.flags & _AFTER_GAP:
        return with_flags(data, header.flags | _AFTER_GAP)
    return data


def _without(batch: Batch, keep: list[bool], after_gap: bool) -> bytes:
    """The batch with the rows where `keep` is true."""
    header = batch.header
    flags = header.flags
    subjects: bytes | list[bytes] = batch.layout.subject
    if flags & Flags.SUBJECT_COLUMN:
        subjects = list(compress(batch.subjects(), keep))
    if not any(keep):
        subjects = b""
    deltas = [offset - header.base_offset for offset in compress(batch.offsets(), keep)]
    encoded = encode(
        list(compress(batch.values(), keep)),
        subjects,
        keys=list(compress(batch.keys(), keep)) if flags & Flags.KEYS else None,
        header_blocks=(
            list(compress(batch.header_blocks(), keep)) if flags & Flags.HEADERS else None
        ),
        timestamps=list(compress(batch.timestamps(), keep)) if flags & Flags.TIMESTAMPS else None,
        offset_deltas=deltas,
        last_offset_delta=header.last_offset_delta,
        producer_id=header.producer_id,
        producer_sequence=header.producer_sequence,
        compression=flags & COMPRESSION_MASK,
        after_gap=after_gap or bool(flags & _AFTER_GAP),
    )
    encoded.stamp(header.base_offset, header.leader_epoch, header.append_timestamp)
    return encoded.to_bytes()
