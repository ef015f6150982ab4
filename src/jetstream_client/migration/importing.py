"""Importing: records of another system become a new stream, with their offsets and times.

The records are digested while they are read. At the end the new stream is read back, and count and
digest are compared. An import that was interrupted reads the source again from its
beginning, and writes only what the stream lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import Advance, kept
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.migration.restore import begin_restoring, differs, listen, records_of
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_client.values.types import Stream


class Import:
    """A new stream that is filled from a source: `begin`, `add`, then `finish`."""

    def __init__(self, client: Client, name: str, subject: str, settings: dict[str, Any]) -> None:
        self._client = client
        self.stream, self._limits = begin_restoring(client, name, subject, dict(settings))
        self._writer = RestoreWriter(client, self.stream)
        self._digest = RecordDigest()
        self._start = 0

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
        for records in source:
            before = self._writer.next_offset
            self._digest.add(records)
            self._writer.put(records)
            advance(max(0, self._writer.next_offset - before))
        self._writer.flush()

    def verify(self, end_offset: int) -> RecordDigest:
        """Compare the records that were read with what the stream holds; its log must end at
        `end_offset`. Raises CorruptBatchError."""
        self._writer.cover(end_offset)
        self._writer.flush()
        found = RecordDigest()
        for records in records_of(self._client, self.stream):
            found.add(kept(records, self._start))
        if (found.count, found.hexdigest()) != (self._digest.count, self._digest.hexdigest()):
            raise differs(self.stream.name, self._digest.count, found.count)
        return found

    def listen(self) -> Stream:
        """The stream has its limits, and listens to its subject when this returns."""
        return listen(self._client, self.stream, self._limits)


def run(
    client: Client, name: str, subject: str, settings: dict[str, Any], source: Iterable[Records],
    bounds: tuple[int, int], advance: Advance,
) -> tuple[Stream, RecordDigest]:  # fmt: skip
    """All of an import. bounds: the source's first offset, and the one after its last."""
    importing = Import(client, name, subject, settings)
    importing.begin(bounds[0])
    importing.add(source, advance)
    digest = importing.verify(bounds[1])
    return importing.listen(), digest
