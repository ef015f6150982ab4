"""Mends taken out again, one at a time: the attack must find each (test_log_failures.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.errors import StorageFullError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.offsets_file import Bounds, Mark
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.log import producers, recovery
from jetstream_server.log.checkpointer import LogCheckpointer
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.compaction.log_compaction import LogCompaction
from jetstream_server.log.compaction.rewrite_pass import Task, _Writer
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.log.log_time import LogTime, LogTimeImage, LogTimeUs
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.recovery import Recovered, _Scan
from jetstream_server.log.segment import Segment
from jetstream_server.log.storage import LogStorage
from jetstream_server.replication.drivers import segment_repair
from jetstream_server.replication.replica import Replica
from tests.property.log_failures.disk import FailingDisk
from tests.property.log_failures.history import run_seed

SEEDS_MAX: Final = 40_000
_SEEDS: Final = Path(__file__).with_name("killing_seeds.json")


def forgets_folders_before_they_are_synced() -> Any:
    """A folder whose fsync failed is not synced again."""

    def sync_directories(self: LogStorage) -> None:
        while self._unsynced_directories:
            self._disk.fsync_directory(self._unsynced_directories.pop(0))

    return patch.object(LogStorage, "sync_directories", sync_directories)


def takes_a_folder_made_in_part_for_synced() -> Any:
    """The folder was made, and the file beside it could not be."""

    def look_for_folder(self: LogStorage) -> None:
        paths = (self.directory, self._offsets.path)
        self._exists = all(map(self._disk.exists, paths))

    return patch.object(LogStorage, "look_for_folder", look_for_folder)


def takes_the_folder_of_a_killed_reset_for_synced() -> Any:
    """A reset notes as flushed where the log begins, before its folder is synced."""
    begin = LogStorage.__init__

    def begun(self: LogStorage, *args: Any) -> None:
        begin(self, *args)
        recovered = next(each for each in args if isinstance(each, Recovered))
        if recovered.recorded.flushed_offset and self._parent in self._unsynced_directories:
            self._unsynced_directories.remove(self._parent)

    return patch.object(LogStorage, "__init__", begun)


def lets_the_mark_of_a_reset_come_back() -> Any:
    """The first flush does not sync the file with the mark."""
    note = LogCheckpointer.note_flush

    def note_unsynced(self: LogCheckpointer, flushed_offset: int) -> None:
        self._may_be_marked = False
        note(self, flushed_offset)

    return patch.object(LogCheckpointer, "note_flush", note_unsynced)


def counts_what_a_failed_reset_has_lost() -> Any:
    """The high watermark of a replica whose reset failed stays."""
    accept = Replica.accept

    def accepted(self: Replica, *args: Any) -> Any:
        high_watermark = self.high_watermark
        try:
            return accept(self, *args)
        except BaseException:
            self.high_watermark = high_watermark
            raise

    return patch.object(Replica, "accept", accepted)


def believes_a_write_that_failed() -> Any:
    """What is in the offsets file is what was written last, although that failed."""

    def write(self: OffsetsFile, position: int, slot: bytes) -> None:
        self._written[position] = slot
        self._disk.write(self.path, position, (slot,))

    return patch.object(OffsetsFile, "_write", write)


def takes_the_mark_of_a_reset_back() -> Any:
    """The mark is written first, and taken back if there is no room for the checkpoint."""

    def emptying(self: LogCheckpointer, offset: int) -> None:
        offsets = self._offsets
        bounds, end_offset = offsets.bounds or self._bounds, offsets.end_offset
        with self._health.changing("resetting"):
            self._storage.look_for_folder()
            self._storage.make_folder()
            offsets.write_end(0)
            offsets.write_bounds(Bounds(offset, offset, Mark.EMPTYING), durable=True)
            self._storage.sync_directories()
        try:
            self._save(LogCheckpoint(segments=()))
        except StorageFullError:
            with self._health.must_succeed("resetting"):
                offsets.write_bounds(bounds, durable=True)
                offsets.write_end(end_offset or 0)
            raise

    return patch.object(LogCheckpointer, "emptying", emptying)


def deletes_no_folder_made_in_part() -> Any:
    """The folder stays when the file beside it could not be made."""
    delete = LogStorage.delete

    def deleted(self: LogStorage) -> None:
        if self._exists:
            delete(self)

    return patch.object(LogStorage, "delete", deleted)


def trusts_what_a_killed_process_could_not_sync() -> Any:
    """What an earlier run has left unflushed is synced, and not written again."""
    return patch.object(LogStorage, "write_again", lambda self, offset: None)


def compacts_while_segments_in_front_are_removed() -> Any:
    """A pass takes no note of segments that a kill would bring back."""

    def blind(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: LogCompaction, *args: Any) -> Any:
            storage = self._storage
            retired, storage._retired = storage._retired, []
            try:
                return method(self, *args)
            finally:
                storage._retired = retired

        return called

    sources, swap = blind(LogCompaction.sources), blind(LogCompaction.swap)
    return patch.multiple(LogCompaction, sources=sources, swap=swap)


def swaps_segments_that_are_not_synced() -> Any:
    """The successor of a segment is not synced before it takes its place."""
    finish = _Writer.finish

    def finished(self: _Writer) -> int | None:
        with patch.object(type(self._disk), "fsync", lambda self, path: None):
            return finish(self)

    return patch.object(_Writer, "finish", finished)


def says_afterwards_what_a_pass_may_remove() -> Any:
    """Where gaps may lie, and tombstones be missing, is not recorded before the first swap."""

    def begin(self: LogCompaction, task: Task) -> None:
        self._storage.rewriting.update(source.base_offset for source in task.sources)
        self._save()

    return patch.object(LogCompaction, "begin", begin)


def forgets_which_segments_are_being_swapped() -> Any:
    """The checkpoint says how long a segment is although that is about to change."""
    sealed_below = LogStorage.sealed_below

    def with_sizes(self: LogStorage, offset: int) -> Any:
        rewriting, self.rewriting = self.rewriting, set()
        try:
            return sealed_below(self, offset)
        finally:
            self.rewriting = rewriting

    return patch.object(LogStorage, "sealed_below", with_sizes)


def forgets_gaps_before_the_log_is_cut() -> Any:
    """The log does not know of its committed gaps any more when it is to be cut below them."""
    truncate = CommitLog._truncate

    def forgetful(self: CommitLog, offset: int) -> None:
        self.compaction.cut_to(self._storage.segments.holding(offset).locate_end(offset)[1])
        truncate(self, offset)

    return patch.object(CommitLog, "_truncate", forgetful)


def takes_the_older_checkpoint_for_the_one_on_disk() -> Any:
    """A checkpoint whose write failed has left the file as it was."""
    write = LogStorage._write_checkpoint

    def write_checkpoint(self: LogStorage, checkpoint: LogCheckpoint) -> None:
        known = self.recovery_point
        try:
            write(self, checkpoint)
        except OSError:
            self.recovery_point, self._is_checkpoint_in_doubt = known, False
            raise

    return patch.object(LogStorage, "_write_checkpoint", write_checkpoint)


def takes_what_a_killed_process_has_cut_for_synced() -> Any:
    """A segment that ends where the log was flushed needs no sync."""
    run = _Scan.run

    def scan(self: _Scan, interval_bytes: int) -> None:
        run(self, interval_bytes)
        segments, flushed = self._segments, self._found.recorded.flushed_offset
        beyond = (i for i, each in enumerate(segments) if each.next_offset > flushed)
        self._found.unsynced_from = next(beyond, len(segments))

    return patch.object(_Scan, "run", scan)


def leaves_what_a_killed_process_has_cut_to_the_next_flush() -> Any:
    """A start does not sync it."""
    return patch.object(Recorded, "may_be_cut", property(lambda self: False))


def revives_what_a_failed_reset_has_left() -> Any:
    """The segments are in the log until those that retention took out are removed."""
    restart_at = LogStorage.restart_at

    def restart(self: LogStorage, offset: int) -> None:
        self.remove_retired()
        restart_at(self, offset)

    return patch.object(LogStorage, "restart_at", restart)


def takes_the_older_state_of_compaction_for_the_one_on_disk() -> Any:
    """A state whose write failed has left the file as it was."""
    write = LogCompaction._write

    def unsuspecting(self: LogCompaction, state: CompactionState) -> None:
        try:
            write(self, state)
        finally:
            self._is_in_doubt = False

    return patch.object(LogCompaction, "_write", unsuspecting)


def counts_time_twice() -> Any:
    """The time between batches that are read again counts again."""

    def follow(self: LogTime, header: BatchHeader, time_us: LogTimeUs, read_at_us: Any) -> None:
        self.image = LogTimeImage(time_us, header.append_timestamp, header.leader_epoch)
        self._read_at_us = read_at_us

    return patch.object(LogTime, "_follow", follow)


def counts_the_age_of_a_batch_twice() -> Any:
    """Of several batches in one answer, all were made just now."""
    return patch.object(producers, "passed_between", lambda one, other: 0)


def takes_the_crc_of_what_compaction_has_left() -> Any:
    """A batch of which rows were removed has the CRC of what its producer sent."""
    return patch.object(producers, "sent_crc", lambda header: header.body_crc)


def takes_what_it_cannot_compare_for_the_same() -> Any:
    """A repeated batch is a duplicate where nobody knows what is stored under its number."""
    check = producers._check_content

    def lenient(stored: producers.StoredBatch, producer_id: int, body_crc: int) -> None:
        if stored.body_crc != producers.UNKNOWN_CRC:
            check(stored, producer_id, body_crc)

    return patch.object(producers, "_check_content", lenient)


def takes_an_id_for_the_same_on_any_subject() -> Any:
    """A message is a duplicate by its id alone."""
    return patch.object(producers, "known_by", lambda subject, message_id: message_id)


def syncs_a_cut_without_cutting_again() -> Any:
    """A file is not truncated to the length that it has."""
    truncate = FailingDisk.truncate

    def shorten(self: FailingDisk, path: str, size: int) -> None:
        if self.size(path) != size:
            truncate(self, path, size)

    return patch.object(FailingDisk, "truncate", shorten)


def forgets_where_a_log_starts_that_is_to_be_emptied() -> Any:
    """The checkpoint says nothing of it from then on."""
    save = LogCheckpointer._save

    def forget(self: LogCheckpointer, checkpoint: LogCheckpoint) -> None:
        is_empty = not checkpoint.segments and not checkpoint.epochs
        save(self, LogCheckpoint(segments=()) if is_empty else checkpoint)

    return patch.object(LogCheckpointer, "_save", forget)


def repairs_what_is_not_damaged_any_more() -> Any:
    """A segment that was cut before it was looked at is repaired all the same."""
    return patch.object(segment_repair, "_check_is_damaged", lambda log, segment: None)


def contradicts_itself_while_segments_are_removed() -> Any:
    """A repair takes it for a contradiction that the log forgets the epochs of a segment."""
    return patch.object(segment_repair, "_check_as_seen", lambda replica, segment, seen: None)


def cuts_after_what_is_bad() -> Any:
    """A log that is cut where bad batches lie ends after them."""

    def locate_end(self: Segment, offset: int) -> tuple[int, int]:
        position, header = self.locate(offset)
        return position, header.base_offset

    return patch.object(Segment, "locate_end", locate_end)


def takes_what_is_left_of_a_rewritten_segment_for_all_of_it() -> Any:
    """A segment whose length is not on record may end anywhere."""
    return patch.object(recovery, "_first_cut_short", lambda found: None)


MUTANTS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        forgets_folders_before_they_are_synced,
        takes_a_folder_made_in_part_for_synced,
        takes_the_folder_of_a_killed_reset_for_synced,
        lets_the_mark_of_a_reset_come_back,
        counts_what_a_failed_reset_has_lost,
        believes_a_write_that_failed,
        takes_the_mark_of_a_reset_back,
        deletes_no_folder_made_in_part,
        trusts_what_a_killed_process_could_not_sync,
        compacts_while_segments_in_front_are_removed,
        swaps_segments_that_are_not_synced,
        says_afterwards_what_a_pass_may_remove,
        forgets_which_segments_are_being_swapped,
        forgets_gaps_before_the_log_is_cut,
        takes_the_older_checkpoint_for_the_one_on_disk,
        takes_what_a_killed_process_has_cut_for_synced,
        leaves_what_a_killed_process_has_cut_to_the_next_flush,
        revives_what_a_failed_reset_has_left,
        takes_the_older_state_of_compaction_for_the_one_on_disk,
        counts_time_twice,
        counts_the_age_of_a_batch_twice,
        takes_the_crc_of_what_compaction_has_left,
        takes_what_it_cannot_compare_for_the_same,
        takes_an_id_for_the_same_on_any_subject,
        syncs_a_cut_without_cutting_again,
        forgets_where_a_log_starts_that_is_to_be_emptied,
        repairs_what_is_not_damaged_any_more,
        contradicts_itself_while_segments_are_removed,
        cuts_after_what_is_bad,
        takes_what_is_left_of_a_rewritten_segment_for_all_of_it,
    )
}


def recorded() -> dict[str, int]:
    """A seed that kills each mutant."""
    found: dict[str, int] = json.loads(_SEEDS.read_text())
    return found


def record(seeds: dict[str, int]) -> None:
    _SEEDS.write_text(json.dumps(seeds, indent=2) + "\n")


def first_seed(name: str) -> int | None:
    """The recorded seed if it still kills a mutant, or the first one that does; None: none does."""
    seeds = [*filter(None, [recorded().get(name)]), *range(SEEDS_MAX)]
    with MUTANTS[name]():
        return next((seed for seed in seeds if run_seed(seed)), None)
