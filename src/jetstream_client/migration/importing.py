"""Importing: records of another system become a new stream, with their offsets and times.

The records are digested while they are read. At the end the new stream is read back, and count and
digest are compared. An import that was interrupted reads the source again from its
beginning, and writes only what the stream lacks.

Meanwhile the source may have removed records that were copied before: a bucket of JetStream keeps
the last value of each key only. The new stream keeps them. **safety** Only such records may be in
it beside those of the source: copied before this run began, from where the source has a hole now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import Advance, Bar, kept
from jetstream_client.migration.records import OffsetRanges, RecordDigest, Records
from jetstream_client.migration.restore import (
    begin_restoring,
    difference_error,
    followed,
    held_between,
    listen,
    listening,
    names_what_is_left,
    records_of,
)
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_client.values.types import Stream


@dataclass(frozen=True, slots=True)
class Imported:
    """What the new stream holds. removed: records of which the source has removed since they were
    copied."""

    stream: Stream
    count: int
    digest: str
    removed: int


class Import:
    """A new stream that is filled from a source: `begin`, `add`, `verify`, `listen`.

    `add` and `verify` may be called again with what has come to the source since.
    may_shrink: the source may remove records at any place while it is copied.
    """

    def __init__(
        self, client: Client, name: str, subject: str, settings: dict[str, Any],
        *, may_shrink: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self.stream, self._limits = begin_restoring(client, name, subject, dict(settings))
        self._writer = RestoreWriter(client, self.stream)
        self._digest = RecordDigest()
        self._copied_before = self._writer.next_offset if may_shrink else 0
        self._source = OffsetRanges()
        self._whole, self._of_source = RecordDigest(), RecordDigest()
        self._start = 0
        self._verified: int | None = None

    @property
    def next_offset(self) -> int:
        """Where the next record is expected: the stream has all records before it already."""
        return self._writer.next_offset

    def begin(self, start_offset: int) -> None:
        """The source has nothing before that offset."""
        self._start = start_offset
        if not self._writer.next_offset and start_offset:
            self._writer.cover(start_offset)
            self._writer.flush()
            self._client.purge_stream(self.stream, start_offset)

    def add(self, source: Iterable[Records], advance: Advance) -> None:
        """Records in the order of their offsets; returns once all of them are committed."""
        with names_what_is_left(self.stream):
            for records in source:
                before = self._writer.next_offset
                self._digest.add(records)
                if records.offsets and records.offsets[0] < self._copied_before:
                    self._source.add(records.offsets)
                self._writer.put(records)
                advance(max(0, self._writer.next_offset - before))
            self._writer.flush()

    def copy(self, source: Iterable[Records], bounds: tuple[int, int], bar: Bar) -> Imported:
        """`add` and `verify` what the source has between two offsets."""
        start_offset, end_offset = bounds
        with bar(end_offset - start_offset, "copying") as advance:
            self.add(source, advance)
        with bar(end_offset - start_offset, "comparing") as advance:
            return self.verify(end_offset, advance)

    def verify(self, end_offset: int, advance: Advance) -> Imported:
        """Compare the records that were read with what the stream holds; its log must end at
        `end_offset`. What was verified before is not read again: no other program writes to the
        stream. Raises CorruptBatchError."""
        self._writer.cover(end_offset)
        self._writer.flush()
        whole, of_source = self._whole, self._of_source
        bounds = (self._verified or self._start, end_offset)
        held = records_of(self._client, self.stream, self._verified)
        for records in followed(held, bounds, advance):
            records = kept(records, self._verified or 0)
            whole.add(records)
            of_source.add(records.where(lambda offset: not self._is_removed(offset, end_offset)))
        self._verified = self._writer.next_offset
        wanted = self._digest
        if (of_source.count, of_source.hexdigest()) != (wanted.count, wanted.hexdigest()):
            raise difference_error(self.stream.name, wanted.count, of_source.count)
        removed = whole.count - of_source.count
        return Imported(self.stream, whole.count, whole.hexdigest(), removed)

    def _is_removed(self, offset: int, end_offset: int) -> bool:
        """Whether a record that was copied before has no place in the source any more."""
        return offset < min(self._copied_before, end_offset) and offset not in self._source

    def listen(self) -> Stream:
        """The stream has its limits, and listens to its subject when this returns."""
        return listen(self._client, self.stream, self._limits)


def run(
    client: Client, name: str, subject: str, settings: dict[str, Any], source: Iterable[Records],
    bounds: tuple[int, int], bar: Bar, *, may_shrink: bool,
) -> Imported:  # fmt: skip
    """All of an import. bounds: the source's first offset, and the one after its last."""
    importing = Import(client, name, subject, settings, may_shrink=may_shrink)
    importing.begin(bounds[0])
    done = importing.copy(source, bounds, bar)
    importing.listen()
    return done


def imported_before(
    client: Client, name: str, subject: str, source: Callable[[Stream], Iterable[Records]], bar: Bar
) -> Imported | None:
    """What `run` would return, if the stream of that name and subject was made of this source: an
    import was interrupted after its last step, or is repeated. None: it may be another one. source:
    reads the records again, as for that stream."""
    found = listening(client, name, subject)
    if found is None:
        return None
    wanted, start_offset, end_offset = RecordDigest(), 0, 0
    with bar(None, "reading") as advance:
        for records in source(found):
            if records:
                start_offset = start_offset if wanted.count else records.offsets[0]
                end_offset = records.offsets[-1] + 1
                wanted.add(records)
                advance(len(records))
    if not wanted.count:
        return None  # Any stream holds as much.
    bounds = start_offset, end_offset
    with bar(end_offset - start_offset, "comparing") as advance:
        held = held_between(client, found, bounds, advance)
    if held is None or (held.count, held.hexdigest()) != (wanted.count, wanted.hexdigest()):
        return None
    return Imported(found, held.count, held.hexdigest(), 0)
