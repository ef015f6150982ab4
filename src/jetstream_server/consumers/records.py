"""Picks single records out of batches, by offset and subject. Pure; runs in worker threads."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import add, itemgetter
from typing import Final, NamedTuple

from jetstream_protocol import batch as batches
from jetstream_protocol.batch import Batch
from jetstream_protocol.subjects import is_pattern, to_regex
from jetstream_protocol.types import WallUs

STEP_BYTES: Final = 256 * 1024
LOOKED_AT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Uncompressed bytes: some tens of milliseconds of a worker thread. Batches are looked at whole."""


class Record(NamedTuple):
    """value: b"" for a tombstone, too. headers: the whole block; b"": none. key: None: none."""

    offset: int
    appended_us: WallUs
    subject: bytes
    value: bytes
    headers: bytes
    key: bytes | None = None
    is_tombstone: bool = False

    @property
    def sequence(self) -> int:
        return self.offset + 1

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.value) + len(self.headers)


_record = partial(tuple.__new__, Record)
_subject, _value, _headers = itemgetter(2), itemgetter(3), itemgetter(4)


def payload_lengths(records: Sequence[Record]) -> list[int]:
    """Of header block and value."""
    values, blocks = map(_value, records), map(_headers, records)
    return list(map(add, map(len, values), map(len, blocks)))


def sizes(records: Sequence[Record], payloads: Sequence[int]) -> list[int]:
    """Record.size of each. payloads: their `payload_lengths`."""
    return list(map(add, map(len, map(_subject, records)), payloads))


class Wanted:
    """The records on subjects of any of these patterns; of all subjects without patterns."""

    __slots__ = ("_literals", "_patterns", "_regex", "is_everything")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = list(patterns)
        self.is_everything = not given
        self._literals = {each.encode() for each in given if not is_pattern(each)}
        self._patterns = [each for each in given if is_pattern(each)]
        self._regex: re.Pattern[bytes] | None = None

    def _matches(self, subject: bytes) -> bool:
        if subject in self._literals:
            return True
        if self._regex is None:  # Made here, in the worker thread: there may be many patterns.
            parts = b"|".join(b"(?:%b)" % to_regex(each) for each in self._patterns)
            self._regex = re.compile(parts or rb"(?!)", re.DOTALL)
        return self._regex.fullmatch(subject) is not None

    def rows(self, batch: Batch) -> Sequence[int]:
        """The wanted rows of a batch, ascending. Raises CorruptBatchError."""
        everything = range(len(batch))
        if self.is_everything:
            return everything
        if batch.layout.subjects is None:
            return everything if self._matches(batch.layout.subject) else ()
        given = batch.subjects()
        wanted = set(filter(self._matches, set(given)))
        return [row for row in everything if given[row] in wanted] if wanted else ()


class Piece(NamedTuple):
    """What a run of batches has brought. next_offset: after the last one that was looked at.
    looked_at: uncompressed bytes."""

    records: list[Record]
    next_offset: int
    looked_at: int


def look_through(data: bytes, wanted: Wanted, start: int, stop: int, looked_at_max: int) -> Piece:
    """The wanted records of [start, stop) in `data`, whole batches back to back. Ends after the
    batch that reaches `looked_at_max`. Raises CorruptBatchError."""
    records: list[Record] = []
    next_offset, looked_at = start, 0
    for batch in batches.iterate(data):
        if batch.header.base_offset >= stop or looked_at >= looked_at_max:
            break
        records += _of_batch(batch, wanted, start, stop)
        next_offset = batch.header.next_offset
        looked_at += len(batch.body)
    return Piece(records, min(next_offset, stop), looked_at)


def _of_batch(batch: Batch, wanted: Wanted, start: int, stop: int) -> list[Record]:
    rows = wanted.rows(batch)
    if not rows:
        return []
    offsets, values = batch.offsets(), batch.values()
    tombstones: Iterable[bool] = repeat(False)
    if batch.layout.values.validity >= 0:
        tombstones = [value is None for value in values]
        values = [value or b"" for value in values]
    found = list(
        map(
            _record,
            zip(
                offsets,
                repeat(batch.header.append_timestamp),
                batch.subjects(),
                values,
                batch.header_blocks(),
                batch.keys(),
                tombstones,
                strict=False,
            ),
        )
    )
    if len(rows) < len(found):
        found = [found[row] for row in rows]
        offsets = [each.offset for each in found]
    return found[bisect_left(offsets, start) : bisect_left(offsets, stop)]
