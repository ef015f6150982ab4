"""The checker's own reading of a log: nothing fails, and nobody's word is believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from jetstream_protocol.batch import HEADER_BYTES, Batch, decode_header
from jetstream_protocol.errors import CorruptBatchError, RecordsDamagedError
from jetstream_protocol.logfiles.scan import walk
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.log.inspection import BadRange
from tests.simulation.disk import SimulatedDisk
from tests.simulation.shadows import Entry, entry_of


def folder_of(log: CommitLog) -> object:
    """The log's folder on its disk, whatever its name; None: it is gone."""
    return cast(SimulatedDisk, log._disk).folder(log.directory)


def entries_of(log: CommitLog, from_offset: int | None = None) -> list[Entry]:
    entries = []
    offset = log.log_start_offset if from_offset is None else from_offset
    while (slice_ := _slice_at(log, offset, log.log_end_offset)) is not None:
        data, position = pread(log, slice_), 0
        while position < len(data):
            header = decode_header(data, position)
            body = data[position + HEADER_BYTES : position + header.length]
            entries.append(entry_of(header, body))
            position += header.length
        offset = slice_.next_offset
    return entries


def _slice_at(log: CommitLog, offset: int, end_offset: int) -> LogSlice | None:
    """What is there from `offset` on, also where the log's disk has lost its beginning."""
    with _sound_reads(log):
        try:
            return log.read(offset, 1 << 20, end_offset)
        except RecordsDamagedError as error:
            return log.read(error.end_offset, 1 << 20, end_offset)


def pread(log: CommitLog, slice_: LogSlice) -> bytes:
    with _sound_reads(log):
        return log.pread(slice_)


@contextmanager
def _sound_reads(log: CommitLog) -> Iterator[None]:
    """The checker's own reads do not fail, and a mark hides nothing that can be read."""
    disk = cast(SimulatedDisk, log._disk)
    failing, disk.reads_fail = disk.reads_fail, 0
    damage = log.damage
    ranges, marks = damage.ranges, [(segment, segment.bad) for segment in damage.segments()]
    if ranges:
        damage._replace(lambda bad: not _is_sound(log, disk, bad))
    try:
        yield
    finally:
        disk.reads_fail = failing
        damage.ranges = ranges
        for segment, bad in marks:
            segment.bad = bad


def _is_sound(log: CommitLog, disk: SimulatedDisk, bad: BadRange) -> bool:
    """Whether what was marked can be read after all."""
    segment = log.damage.segment_of(bad.start_offset)
    assert segment is not None
    try:
        read = partial(disk.pread, segment.path)
        return bool(list(walk(read, bad.position, bad.end_position, bodies=True)))
    except CorruptBatchError:
        return False


def batches_of(
    log: CommitLog, from_offset: int | None = None, end_offset: int | None = None
) -> list[Batch]:
    batches = []
    offset = log.log_start_offset if from_offset is None else from_offset
    end_offset = log.log_end_offset if end_offset is None else end_offset
    while (slice_ := _slice_at(log, offset, end_offset)) is not None:
        data, position = pread(log, slice_), 0
        while position < len(data):
            batch = Batch.decode(data, position)
            batches.append(batch)
            position += batch.header.length
        offset = slice_.next_offset
    return batches
