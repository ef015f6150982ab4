"""Inspecting a log and repairing it from another one, step by step and without threads, as
`Healing` and `SegmentRepair` do it."""

from __future__ import annotations

from jetstream_protocol.errors import UnavailableError
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import view
from jetstream_server.log.disk import Disk
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.inspection import BadRange, inspect
from jetstream_server.log.repair import Repair, check_fetched


def find(disk: Disk, log: CommitLog) -> list[BadRange]:
    """Inspect every segment and mark what is bad; returns what is new."""
    fresh = []
    for segment in log.damage.segments():
        seen = view(segment)
        fresh += log.damage.mark(segment, seen, inspect(disk, seen))
    log.damage.inspected_all()
    log.damage.save()
    return fresh


def fetched(source: CommitLog, offset: int) -> bytes:
    """What another replica answers."""
    found = source.read(offset, 300, source.log_end_offset)
    if found is None:
        raise UnavailableError("it has not got so far")
    return source.pread(found)


def repair_log(disk: Disk, log: CommitLog, source: CommitLog, *, has_gaps: bool = False) -> None:
    """Repair every marked segment."""
    for base_offset in sorted({bad.base_offset for bad in log.damage.ranges}):
        segment = log.damage.segment_of(base_offset)
        assert segment is not None
        if log.damage.is_last(segment):
            log.seal()
        epoch_at = LeaderEpochCache(log.epochs.entries).epoch_at
        repair = Repair(
            disk, view(segment), "0123456789abcdef", interval_bytes=200, epoch_at=epoch_at,
            has_gaps=has_gaps,
        )  # fmt: skip
        repair.begin()
        for bad in segment.bad:
            repair.copy_until(bad.position)
            offset = bad.start_offset
            while offset < bad.end_offset:
                data = fetched(source, offset)
                used, offset = check_fetched(data, offset, bad, epoch_at, has_gaps=has_gaps)
                repair.add(data[:used])
            repair.replaced(bad)
        log.damage.swap(segment, repair.finish())
        disk.fsync_directory(log.directory)
        log.damage.repaired(base_offset)
        log.damage.save()
