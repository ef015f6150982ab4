"""One node with one log on a disk that fails, and what it promises.

The node opens, flushes, judges, registers and closes its log with the shipped functions. Its run
record lies on the same disk: that a log has failed may not be noted before the process dies.

What is promised (docs/guarantees.md, docs/replication.md "Restart trust", docs/file_formats.md
"Offsets"):

* A log that a start does not distrust, or that it distrusts only because it has failed before,
  holds every batch that was appended and noted, if the machine has not lost power since.
* If it has, such a log holds everything below the flushed offset that was told.
* It holds nothing else: each batch is unchanged and follows the one before, nothing that was
  truncated or reset away is back, except what an interrupted operation was about to remove, and
  what was flushed since is not replaced by it.
* Its log start is neither below what was recorded durably nor above what was asked for.
* A log whose operation has failed, and of which that is noted, is distrusted at each start until
  it was begun anew.
* A log that is distrusted can be read in part: what can be read is valid, as above.
* An operation that fails and leaves the log online has changed nothing.
* While no operation has failed and no power was lost, a log is never damaged or incomplete.
* The log remembers the epoch of each batch, and lets no producer's batch in twice (remembered.py).
* Once the disk works again, the log can be begun anew, and all of the above holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from jetstream_protocol.batch import Batch, decode_header, encode, iterate
from jetstream_protocol.errors import StorageError, UnavailableError
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.segment import Segment
from jetstream_server.replication.core.messages import LeaderSnapshot, OutOfRange
from jetstream_server.replication.core.restart_trust import Trust, judge
from jetstream_server.replication.drivers.membership import _problem
from jetstream_server.replication.found_logs import flush_what_earlier_runs_left, open_log
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import close_cleanly
from jetstream_server.replication.run_record import RunRecordFile
from tests.property.log_failures.compacted import (
    BrokenPromiseError,
    Compacting,
    Content,
    Rows,
    check,
    mark_of,
)
from tests.property.log_failures.disk import FailingDisk
from tests.property.log_failures.remembered import PASSING_US, SUBJECT, WINDOW_US, Remembered
from tests.support.inline import Inline
from tests.support.log_batches import read_all
from tests.support.log_producers import check_producers, next_of
from tests.support.services import services
from tests.unit.replication.cores import nodes
from tests.unit.replication.cores import stream as make_stream

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=150)
FOLDER = "/streams"
RUNS = "/runs"
ME = 1
_STREAM = make_stream((0, 2), flush="group", leader_epoch=1 << 40)
STREAM = replace(_STREAM, config=replace(_STREAM.config, duplicate_window_us=WINDOW_US))


class Node:
    """See the module. `now`: what the log should hold. `others`: what the disk may hold instead,
    because an operation was interrupted. `noted`, `flushed`: the offsets up to which the log must
    reach after a kill and after a power failure. `recorded_start`: durably."""

    def __init__(
        self, tell: Callable[[str], None] = lambda _: None, disk: FailingDisk | None = None
    ) -> None:
        self.disk = disk or FailingDisk()
        self.disk.make_directory(FOLDER)
        self.disk.fsync_directory(FOLDER)
        self.disk.fsync_directory("/")
        self.disk.make_directory("/put_away")
        self.runs: RunRecordFile | None = None
        """The run record as the last process knew it."""
        self.replica: Replica | None = None
        self._failed = False
        self._must_note = False
        """That the log has failed is not noted yet."""
        self._is_noted = False
        """That it has is noted for certain."""
        self.now = Content()
        self.others: list[Content] = []
        self._deleted: list[Content] = []
        """What was in deleted logs whose names may come back, because nothing has synced that."""
        self.noted = self.flushed = self.recorded_start = 0
        self._has_lost_power = False
        """Since the last start."""
        self.is_sound = True
        """No operation has failed, and no power was lost."""
        self.boots = self.sessions = self.appended = 0
        self.epoch = 1
        self.epochs: dict[bytes, int] = {}
        """The epoch of each batch."""
        self._rows = Rows()
        self._remembered = Remembered()
        self._pass: Compacting | None = None
        self._tell = tell
        self._session: str | None = None

    @property
    def log(self) -> CommitLog | None:
        """None: no process runs."""
        return None if self.replica is None else self.replica.log

    @property
    def is_suspect(self) -> bool:
        """Whether the process knows, or knew, that the log has failed."""
        is_noted = self.runs is not None and STREAM.id in self.runs.record.suspects
        return self._must_note or is_noted

    @property
    def online(self) -> CommitLog | None:
        log = self.log
        return None if log is None or log.offline_reason else log

    # The process and the machine.

    def start(self, dice: Random) -> None:
        """Open the log, and register. Now and then the process dies in between."""
        self.sessions += 1
        session = f"session {self.sessions}"
        self._failed = self._must_note = False
        self._pass = None
        try:
            runs = RunRecordFile(self.disk, RUNS, "a cluster/1")
            clean = runs.record.clean
            runs.begin(session, f"boot {self.boots}")
        except StorageError as error:
            self._tell(f"  {error.message}")
            return
        self.runs, was_suspect = runs, STREAM.id in runs.record.suspects
        check(not runs.damage, f"the run record is damaged: {runs.damage}")
        check(was_suspect or not self._is_noted, "it forgets that the log has failed")
        log, unreadable_reason = open_log(
            self.disk, STREAM, f"{FOLDER}/{STREAM.id}", CONFIG, runs.record,
            clean=clean and not was_suspect, is_only_replica=False,
        )  # fmt: skip
        log.health.on_failure = self._suspect
        replica = Replica(STREAM, log, services(), node_id=ME, incarnation=10, rebuild=was_suspect,
            unreadable_reason=unreadable_reason,
        )  # fmt: skip
        flush_what_earlier_runs_left([log], Inline())
        problem = log.offline_reason or log.incomplete_reason
        trust = judge(runs.record, self._session, {STREAM.id: _problem(replica)})
        check(bool(trust.distrusted) or not was_suspect, "a log that has failed is trusted")
        self._tell(
            f"  found [{log.log_start_offset}, {log.log_end_offset}), flushed "
            f"{log.flushed_offset}: {problem or ('suspect' if trust.distrusted else 'trusted')}"
        )
        if not unreadable_reason:
            self._found(log, problem, may_be_torn=bool(trust.distrusted) and self._has_lost_power)
            self._judged(log, trust)
        self._has_lost_power = False
        # What is copied now in place of what was lost would be the same under the same epoch.
        self.epoch += bool(problem)
        if dice.random() < 0.1:
            return
        self._session = session
        self.replica = replica
        if problem and not unreadable_reason:
            self.noted = min(self.noted, log.log_end_offset)
            self.flushed = min(self.flushed, log.log_end_offset)
        if log.incomplete_reason and not log.offline_reason:
            self._rebase(log)
        replica.record_incompleteness()
        replica.update(STREAM, nodes(), 0)
        if self.online:
            self.noted = log.log_end_offset
            self._told()
        try:
            runs.registered(session)
        except StorageError as error:
            self._tell(f"  {error.message}")
            self.stop(dice)

    def _suspect(self) -> None:
        self._failed = self._must_note = True

    def note_failure(self) -> bool:
        """Note that the log has failed, if it has. Returns whether that is noted."""
        if self._must_note:
            assert self.runs is not None
            try:
                self.runs.suspect(STREAM.id)
            except StorageError as error:
                self._tell(f"  {error.message}")
                return False
            self._must_note, self._is_noted = False, True
        return True

    def _rebuilt(self) -> None:
        """The log is as good as a new one."""
        assert self.runs is not None
        self._must_note = self._is_noted = False
        if self.is_suspect:
            try:
                self.runs.rebuilt(STREAM.id)
            except StorageError as error:
                self._tell(f"  {error.message}")

    def stop(self, dice: Random) -> None:
        """A clean stop."""
        replica, log, was_online = self.replica, self._log, self.online is not None
        is_durable = log.flushed_offset < log.log_end_offset
        self.replica = self._pass = None
        assert replica is not None
        assert self.runs is not None
        is_registered = self.runs.record.is_registered
        is_clean = close_cleanly([replica], Inline(), is_registered=is_registered)
        if self.note_failure() and is_clean:
            self.runs.stop()
        if is_clean:
            if was_online and not self.is_suspect:
                self.noted = self.flushed = self.now.end
                self.recorded_start = self.now.start
                if is_durable:
                    self.others.clear()
        else:
            is_noted = self.is_suspect or self.disk.full or not was_online
            check(is_noted, "a close that failed is not noted")

    def killed(self) -> None:
        """The process ends, and leaves what it has written."""
        self.replica = self._pass = None
        self._must_note = False
        self.disk.repair()

    def lost_power(self, dice: Random) -> None:
        self.killed()
        self.disk.lose_power(dice)
        self.boots += 1
        self._has_lost_power = True
        self.noted = min(self.noted, self.flushed)
        self.is_sound = False

    # The log's operations.

    def publish(self, dice: Random) -> None:
        """As the leader, with message ids and producers."""
        self.append(dice, is_known=True)

    def append(self, dice: Random, *, is_known: bool = False) -> None:
        """As the leader."""
        log, end, known, now_us = self._log, self.now.end, self._remembered, None
        if is_known or known.sent:
            self.epoch = known.epoch(self.epoch, end)
            now_us = MonotonicUs(self.appended + 1)
        mark = self._mark()
        rows = self._rows.drawn(mark, dice)
        rows |= known.led(log, mark, dice) if now_us else next_of(log, dice.randrange(2))
        batch = encode(subjects=SUBJECT, **rows)
        batch.stamp(end, self.epoch, WallUs(int(mark)))
        known.made(mark, decode_header(batch.header))
        known.reached(self.epoch, end + 2)
        after = replace(self.now, end=end + 2, batches=(*self.now.batches, (end, end + 2, mark)))

        def append() -> None:
            if self.epoch > log.epochs.latest_epoch and self._rows.below:
                log.compaction.lead_from(log.log_end_offset)
            log.append(batch, leader_epoch=self.epoch, timestamp_us=int(mark), now_us=now_us)
            log.note_end()

        self._change(after, append, is_durable=False)
        if self.online:
            self.noted = self.now.end

    def copy(self, dice: Random) -> None:
        """As a follower, with message ids and producers: some of them long after they came."""
        self.epoch = self._remembered.epoch(self.epoch, self.now.end)
        self.append_replica(dice, is_known=True)

    def append_replica(self, dice: Random, *, is_known: bool = False) -> None:
        """As a follower: several batches at once. The leader's log may be compacted, too."""
        log, after, data, gaps_below = self._log, self.now, b"", 0
        is_late = not is_known or dice.random() < 0.5
        for _ in range(dice.randrange(1, 5)):
            mark, end = self._mark(), after.end
            has_gap = self._rows.below > 0 and Random(mark).random() < 0.3
            if has_gap:
                end = gaps_below = end + 2
                self._rows.copied(end)
            rows = self._rows.drawn(mark, dice)
            if is_known:
                rows |= self._remembered.copied(after, mark, dice)
            batch = encode(subjects=SUBJECT, **rows, after_gap=has_gap)
            batch.stamp(end, self.epoch, WallUs(int(mark)))
            self._remembered.made(mark, decode_header(batch.header))
            data += batch.to_bytes()
            after = replace(after, end=end + 2, batches=(*after.batches, (end, end + 2, mark)))
            if is_known and dice.random() < 0.3:
                self.appended += dice.choice(PASSING_US)
                is_late = True
        self._remembered.reached(self.epoch, after.end)
        now_us = None if is_late else MonotonicUs(self.appended)

        def append() -> None:
            try:
                log.append_replica(
                    data, leader_epoch=self.epoch, gaps_below=gaps_below, now_us=now_us
                )
            except StorageError:
                log.note_end()  # Batches in earlier segments stay, and count.
                raise
            log.note_end()

        self._change(after, append, is_durable=False)
        if self.online:
            self.noted = self.now.end

    def wait(self, dice: Random) -> None:
        """Time passes, and the node forgets what is older than the window."""
        self.appended += dice.choice(PASSING_US)
        forget, now_us = self._log.forget_message_ids, MonotonicUs(self.appended)
        self._change(self.now, lambda: forget(now_us), is_durable=False)

    def flush(self, dice: Random) -> None:
        log = self._log
        # With nothing to flush, what a failed append has left may come back.
        is_durable = log.flushed_offset < log.log_end_offset
        self._change(self.now, log.flush, is_durable=is_durable)

    def seal(self, dice: Random) -> None:
        self._change(self.now, self._log.seal, is_durable=False)

    def truncate(self, dice: Random) -> None:
        log, now = self._log, self.now
        # Mostly not what was committed.
        first = now.start if dice.random() < 0.2 else max(now.start, self._rows.below)
        offset = dice.choice([now.end, dice.randint(min(first, now.end), now.end)])
        after = now.cut(offset)
        is_durable = after.end < now.end
        if is_durable:
            # Nothing could follow after a gap, not even after one that the log start hides.
            cut = [each for each in log.damage.segments() if each.base_offset <= offset][-1]
            left = self._batches_in(cut)
            while (
                after.batches and after.end > cut.base_offset and after.batches[-1][0] not in left
            ):
                after = after.cut(after.batches[-1][0])
            self.epoch += 1  # Another leader has other records there.
        end = after.end
        if (
            self._lowering(after, end, lambda: log.truncate(offset), is_durable=is_durable)
            and is_durable
        ):
            self._rows.cut_to(end)

    def advance(self, dice: Random) -> None:
        """Retention, or a purge: now and then interrupted by other operations."""
        log = self._log
        offset = dice.randint(self.now.start, self.now.end)
        if offset > log.flushed_offset:
            self.flush(dice)
        if self.online is None or not self.now.start < offset <= log.flushed_offset:
            return
        log.begin_advance(offset)
        self.now = replace(self.now, start=offset)
        if dice.random() < 0.7:
            self._change(self.now, log.finish_advance, is_durable=False)
            if self.online and not self.disk.full:
                self.recorded_start = offset

    def compact(self, dice: Random) -> None:
        """Begin a pass of compaction, or do some steps of the one that was begun."""
        log = self._log
        if self._pass is None:
            high_watermark = dice.choice([self.now.end, dice.randint(self.now.start, self.now.end)])
            sources = log.compaction.sources(min(high_watermark, log.flushed_offset))
            if not sources:
                return
            token = f"{self.boots}-{self.sessions}-{dice.random()}"
            self._pass = Compacting(self.disk, log, sources, token, self.appended)
            self._rows.begun(self._pass.task)
        for _ in range(dice.randint(1, 6)):
            if self._pass is None or self.online is None:
                return
            self._change(self.now, self._pass.step, is_durable=False)
            if self._pass.has_ended:
                self._pass = None

    def reset(self, dice: Random) -> None:
        """Begin anew where the leader says, and copy from there."""
        log, now, replica = self._log, self.now, self.replica
        middle = dice.randint(now.start, now.end)
        offset = dice.choice([0, now.start, now.end, middle, now.end + dice.randrange(9)])
        offset += offset % 2
        assert replica is not None
        assert replica.following is not None
        if self._failed:
            replica.failed()
            replica.failure_recorded(replica.failures)
            self._failed = False
        replica.high_watermark = replica.following.high_watermark = log.log_end_offset
        asked = replica.position()
        assert asked is not None
        answer = OutOfRange(asked, LeaderSnapshot(1 << 20, offset, STREAM.stream_epoch))
        self._remembered.may_be_read_anew = True
        is_done = self._lowering(
            Content(offset, offset), 0, lambda: replica.accept(answer, b"", MonotonicUs(0))
        )
        is_held = replica.high_watermark <= log.log_end_offset
        check(is_held, "it counts as committed what it has lost")
        if is_done:
            check(not (replica.needs_rebuild or replica.has_failed), "it was begun anew")
            self.noted = self.flushed = self.recorded_start = offset
            self.others.clear()
            self._remembered.emptied()
            self._rows.cut_to(0)
            self._rebuilt()

    def salvage(self, dice: Random) -> None:
        """Be elected with what can be read."""
        log = self._log
        if not (log.is_damaged or log.health.has_failed):
            return
        was, self.noted, self.flushed = (self.noted, self.flushed), 0, 0
        self.recorded_start = min(self.recorded_start, log.log_start_offset)
        try:
            log.salvage()
        except StorageError as error:
            self._tell(f"  {error.message}")
            self.others.append(self._content(log, self.now, self._read(log)))
            return
        if self.online is None:
            self.noted, self.flushed = was
            return
        self._rebase(log)
        self.others = []
        self.noted = log.log_end_offset
        self.flushed = 0
        self._told()

    def delete(self, dice: Random) -> None:
        """Delete the log. What that leaves is put away, and the log begins empty."""
        log = self._log
        self._deleted += [*self.others, self.now]
        self._remembered.emptied()
        self.now, self.others, self.replica, self._pass = Content(), [], None, None
        self.noted = self.flushed = self.recorded_start = 0
        self._rebuilt()
        log.close(clean=False)
        try:
            log.delete()
            check(not self.disk.exists(log.directory), "it was deleted, and is there")
        except StorageError as error:
            self._tell(f"  {error.message}")
        finally:
            self.disk.set_aside(log.directory)

    def _judged(self, log: CommitLog, trust: Trust) -> None:
        """Compare what the node says of its log with what it has to say."""

    def _check_producers(self, log: CommitLog) -> None:
        if not self._remembered.sent:
            check_producers(log)

    # Inside.

    @property
    def _log(self) -> CommitLog:
        assert self.log is not None
        return self.log

    def _mark(self) -> bytes:
        self.appended += 1
        mark = b"%06d" % self.appended
        self.epochs[mark] = self.epoch
        return mark

    def _lowering(
        self, after: Content, end: int, operation: Callable[[], object], *, is_durable: bool = True
    ) -> bool:
        """Cut the log: nothing after `end` is promised meanwhile. Returns whether it was cut."""
        was = (self.now, self.noted, self.flushed, self.recorded_start)
        self.noted, self.flushed = min(self.noted, end), min(self.flushed, end)
        self.recorded_start = min(self.recorded_start, after.start)
        is_done = self._change(after, operation, is_durable=is_durable)
        if not is_done and self.online and self.now == was[0]:
            _, self.noted, self.flushed, self.recorded_start = was
        return is_done

    def _change(
        self, after: Content, operation: Callable[[], object], *, is_durable: bool = True
    ) -> bool:
        """Do an operation of a log that leaves it as `after` says. Returns whether it succeeded."""
        log, before, others = self._log, self.now, self.others
        was_offline = log.offline_reason
        self.others = [*others, after]
        is_done = False
        try:
            operation()
            is_done = True
        except (StorageError, UnavailableError) as error:
            self._tell(f"  {error.message}")
        if log.offline_reason:  # Of an append this may only show here.
            check(bool(was_offline) or self.is_suspect, "it failed, and is not noted")
            return False
        batches = self._read(log)
        if is_done:
            self.now = after
            self.others = [] if is_durable else others
        elif self._content(log, before, batches) != before.seen:
            # Of several batches some may be there.
            found = self._content(log, after, batches)
            check(after.begins_with(found), f"it failed and holds {found}")
            self.now = after.cut(found.end)
        elif is_durable:
            self.others = others
        found = self._content(log, self.now, batches)
        check(found == self.now.seen, f"it holds {found} and not {self.now.seen}")
        self._rows.check(self.now, batches)
        self._remembered.check(log, self.now, batches, self.appended, self.is_suspect)
        self._told()
        return is_done

    def _told(self) -> None:
        """Take over the flushed offset that the cluster hears of."""
        log = self.online
        if log is None or self.is_suspect:
            return
        check(log.flushed_offset >= self.flushed, "the flushed offset fell")
        self.flushed = log.flushed_offset

    def _rebase(self, log: CommitLog) -> None:
        """From now on the log is what it holds."""
        found = self._content(log, self.now, self._read(log))
        # What its first segment may still hide. (A deleted log may have come back in its place.)
        bases = [segment.base_offset for segment in log.damage.segments()]
        first = min(bases, default=found.end)
        hidden = [each for each in self.now.batches if each[1] <= found.start]
        self._remembered.removed.update(hidden)
        below = tuple(each for each in hidden if each[0] >= first)
        self.now = replace(found, batches=(*below, *found.batches))
        self.recorded_start = min(self.recorded_start, self.now.start)

    def _found(self, log: CommitLog, problem: str, *, may_be_torn: bool) -> None:
        """Compare what a start has found with what it had to find. may_be_torn: it is distrusted,
        and a power failure may have torn the mark of its reset: it may be empty then."""
        known = [self.now, *self.others, *self._deleted]
        batches = self._read(log)
        all_found = [(each, self._content(log, each, batches)) for each in known]
        if problem:
            is_part = any(each.holds(found) or not found.batches for each, found in all_found)
            check(is_part, f"it is distrusted, and holds {all_found[0][1]}")
            check(not self.is_sound, f"nothing has failed, and it says: {problem}")
            return
        matching, found = next(
            (pair for pair in all_found if pair[0].begins_with(pair[1])), (None, Content())
        )
        if matching is None and may_be_torn and not batches:
            self._rebase(log)
            return
        if matching is None:
            raise BrokenPromiseError(f"it holds {all_found[0][1]} and not {self.now}")
        self._rows.check(found, batches)
        self._rows.check_state(log, found, batches)
        check(found.end >= self.noted, f"it ends at {found.end} and not at {self.noted}")
        claimed = [b for b in self.now.seen.batches if b[1] <= self.noted]
        is_there = set(claimed) <= set(found.batches)
        check(is_there or self.is_suspect, f"it lacks some of {claimed}")
        is_start = self.recorded_start <= found.start <= max(each.start for each in known)
        check(is_start or self.is_suspect, f"it begins at {found.start}")
        for each in batches:
            epoch = log.epochs.epoch_at(each.header.base_offset)
            check(epoch == self.epochs[mark_of(each)], "it has another epoch")
        self._check_producers(log)
        if found.end < self.now.end or matching is not self.now:
            self.others.append(self.now)
        below = tuple(each for each in matching.batches if each[1] <= found.start)
        self.now = replace(found, batches=(*below, *found.batches))
        alike = [known.batches for known, seen in all_found if known.begins_with(seen)]
        self._remembered.check(log, self.now, batches, self.appended, self.is_suspect, *alike)

    def _batches_in(self, segment: Segment) -> set[int]:
        """The base offsets of the batches in a segment's file."""
        failing, self.disk.reads_fail = self.disk.reads_fail, 0
        data = self.disk.read_file(segment.path)[: segment.size]
        self.disk.reads_fail = failing
        return {each.header.base_offset for each in iterate(data)}

    def _read(self, log: CommitLog) -> list[Batch]:
        """Every batch that can be read."""
        self.disk.reads_fail = 0
        bases = [segment.base_offset for segment in log.damage.segments()]
        # The first segments may be lost.
        return read_all(log, start=max(log.log_start_offset, *bases[:1]) if bases else None)

    def _content(self, log: CommitLog, known: Content, batches: Sequence[Batch]) -> Content:
        """What the log holds, with what compaction may have removed of what is known. batches: what
        can be read."""
        found = tuple((b.header.base_offset, b.header.next_offset, mark_of(b)) for b in batches)
        content = Content(log.log_start_offset, log.log_end_offset, found)
        return known.filled(content, self._rows.below)
