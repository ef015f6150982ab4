"""Bytes of flushed segments that go bad on the disk, and their repair from another replica.

    WatchedDisk   keeps a true copy of each batch, and knows which marks were written
    DamagedNode   the node with the shipped `Healing` and `SegmentRepair`, a step at a time

An inspection and a repair go on between everything else: each stops before and after whatever it
does in its thread. What is promised:

* No reader gets a changed record. What is neither bad nor in the way of something bad can be read.
* Marks that were saved are not forgotten, by the process or by a start, while the bytes are bad: a
  log with such bytes is distrusted at each start.
* An inspection that nothing interrupts marks whatever could not be read.
* A repair brings back what was lost, and nothing else. Marks go with what is repaired or reset.
* Once the disk works again, all that is bad is found and repaired, and the log is trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from jetstream_protocol.batch import Batch, BatchHeader, iterate
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    JetstreamError,
    RecordsDamagedError,
)
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.names import DAMAGE_NAME, LOG_SUFFIX, base_offset_of
from jetstream_protocol.logfiles.scan import Bad, walk_past_damage
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import KIND
from jetstream_server.log.disk import Buffer
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import owner_of
from jetstream_server.replication.core.restart_trust import Trust
from jetstream_server.replication.drivers import segment_repair
from jetstream_server.replication.drivers.healing import Healing
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from tests.property.log_failures.compacted import Content, Stored, check, mark_of
from tests.property.log_failures.disk import FailingDisk
from tests.property.log_failures.node import FOLDER, ME, STREAM, Node
from tests.simulation.disk import File, Killed
from tests.support.inline import Inline
from tests.unit.replication.cores import nodes

LOG = f"{FOLDER}/{STREAM.id}"
COMPACTED = replace(STREAM, was_compacted=True)
ROUNDS_MAX = 60


class WatchedDisk(FailingDisk):
    """copies: each batch as it was first written, by its mark. on_marked: called with each file of
    marks that was written."""

    def __init__(self, on_marked: Callable[[bytes], None]) -> None:
        super().__init__()
        self.copies: dict[bytes, bytes] = {}
        self._on_marked = on_marked

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data, at = b"".join(buffers), 0
        if path.endswith(LOG_SUFFIX):
            with suppress(CorruptBatchError):  # Written again as it was read.
                for batch in iterate(data):
                    end = at + batch.header.length
                    self.copies.setdefault(mark_of(batch), data[at:end])
                    at = end
        super().write(path, position, buffers)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write_atomic(path, data, durable=durable)
        if path.endswith(f"/{DAMAGE_NAME}"):
            self._on_marked(data)


class Rot(NamedTuple):
    """A batch that has gone bad where it lies in a file."""

    file: File
    position: int
    data: bytes
    mark: bytes

    @property
    def is_bad(self) -> bool:
        there = self.file.data[self.position : self.position + len(self.data)]
        return there != self.data


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


class _Loop:
    """Runs at the next step what is to run in a thread, and comes back at the one after."""

    async def run_in_executor(self, _: object, function: Callable[..., Any], *given: Any) -> Any:
        await _Pause()
        result = function(*given)
        await _Pause()
        return result


class _Source:
    """Another replica, which has everything and was never compacted. Now and then what it sends
    arrives changed."""

    def __init__(self, node: DamagedNode) -> None:
        self._node = node
        self.is_true = False

    async def fetch(self, _: int, offset: int, last_epoch: int) -> tuple[object, bytes]:
        await _Pause()
        node, dice = self._node, Random(offset)
        batches = node.now.batches
        before = [mark for _, end, mark in batches if end <= offset][-1:]
        if last_epoch >= 0 and before and node.epochs[before[0]] != last_epoch:
            raise DivergedError("another epoch", node.epochs[before[0]], offset)
        marks = [mark for _, end, mark in batches if end > offset][: dice.randint(1, 3)]
        data = bytearray(b"".join(node.disk.copies[mark] for mark in marks))
        if data and not self.is_true and node.dice.random() < 0.1:
            data[node.dice.randrange(len(data))] ^= 1 << node.dice.randrange(8)
        return SimpleNamespace(tombstones_gone_below=0), bytes(data)


@asynccontextmanager
async def _reading_from(dial: _Source, *_: object) -> AsyncIterator[_Source]:
    yield dial


class DamagedNode(Node):
    """See the module."""

    disk: WatchedDisk

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._rots: list[Rot] = []
        self._saved_as_bad: set[Rot] = set()
        """What is bad by the file of marks, unless it was repaired since."""
        self._unmarked: list[int] = []
        """Where a reader has met bad bytes that are not marked."""
        self._tasks: dict[str, Coroutine[Any, Any, object]] = {}
        self._healing: Healing | None = None
        self._source = _Source(self)
        self._may_be_torn = False
        """Whether a power failure may have lost the note of what was flushed last."""
        self._was_compacted = False
        self._may_forget_producers = False
        """Whether a start has not read what it would have had to remember."""
        self.dice = Random(0)
        super().__init__(tell, WatchedDisk(self._marked))

    # What goes bad.

    def rot(self, dice: Random) -> None:
        """Some bytes that were synced go bad, or the end of a file is lost."""
        self.is_sound = False
        files = {
            name: file
            for name, file in self._files().items()
            if file.data and file.durable is None and not file.writes
        }
        marks = files.pop(DAMAGE_NAME, None)
        if marks is not None and dice.random() < 0.2:
            marks.data[dice.randrange(len(marks.data))] ^= 1 << dice.randrange(8)
            self._tell("  the file of marks")
            return
        segments = [name for name in files if name.endswith(LOG_SUFFIX)]
        if segments:
            name = dice.choice(segments)
            self._rot(name, files[name], dice)

    def _rot(self, name: str, file: File, dice: Random) -> None:
        base_offset = base_offset_of(name)
        assert base_offset is not None
        data = bytes(file.data)
        found = _valid(data, base_offset)
        if not found or found[-1][1].base_offset >= self.now.end:
            return  # What a failed append has left is not known.
        first = dice.randrange(len(found))
        begin, header = found[first]
        if dice.random() < 0.25:
            bad = found[first:]
            file.cut(begin + dice.randrange(header.length))
        else:
            bad = found[first : first + 1]
            # Half of the time in what leads to the next batch.
            length = dice.choice([64, header.length])
            for _ in range(dice.choice([1, 1, 20])):
                file.data[begin + dice.randrange(length)] ^= 1 << dice.randrange(8)
        for at, each in bad:
            stored, mark = data[at : at + each.length], _mark(each)
            self._rots.append(Rot(file, at, stored, mark))
            self._tell(f"  offset {each.base_offset} in {name}")

    def _files(self) -> dict[str, File]:
        """The files of the log's folder by their names."""
        if not self.disk.exists(LOG):
            return {}
        names = self.disk.list_directory(LOG)
        return {name: self.disk.file(f"{LOG}/{name}") for name in names}

    def _bad(self) -> list[Rot]:
        """What is bad in the log's files now."""
        self._rots = [rot for rot in self._rots if rot.is_bad or self.disk_may_bring_back(rot.file)]
        files = [file for name, file in self._files().items() if name.endswith(LOG_SUFFIX)]
        return [rot for rot in self._rots if rot.is_bad and any(rot.file is f for f in files)]

    @staticmethod
    def disk_may_bring_back(file: File) -> bool:
        return file.durable is not None or bool(file.writes)

    # The process and the machine.

    def start(self, dice: Random) -> None:
        self._drop_tasks()
        self._healing = None
        if self._may_be_torn:
            self._note_torn()
        self._may_forget_producers |= bool(self._bad())
        super().start(dice)
        replica = self.replica
        if replica is None:
            return
        self._may_be_torn &= self.online is None or self.disk.full
        repair = SegmentRepair(
            self.disk, cast(Any, SimpleNamespace(nodes=nodes())), cast(Any, ME),
            cast(Any, self._source), Inline(),
        )  # fmt: skip
        self._healing = Healing(repair, self.disk, Inline())

    def _note_torn(self) -> None:
        """What is bad at the end may pass for an append that was torn."""
        bad, end = {rot.mark for rot in self._bad()}, self.flushed
        for _, last, mark in reversed(self.now.batches):
            if last <= self.flushed:
                end = last  # Not where the next one begins: a gap may lie between.
                if mark not in bad:
                    break
        else:
            end = min(self.now.start, self.recorded_start)
        self.noted, self.flushed = min(self.noted, end), min(self.flushed, end)

    def _judged(self, log: CommitLog, trust: Trust) -> None:
        forgotten = self._forgotten(log)
        check(bool(trust.distrusted) or not forgotten, f"it vouches for {forgotten}")

    def stop(self, dice: Random) -> None:
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError, StopIteration, OSError, JetstreamError):
                self._run(task.throw, asyncio.CancelledError())
        self._tasks.clear()
        super().stop(dice)

    def killed(self) -> None:
        self._drop_tasks()
        super().killed()

    def _drop_tasks(self) -> None:
        fuse, self.disk.fuse = self.disk.fuse, -1  # Nothing that they do at their end takes place.
        for task in self._tasks.values():
            with suppress(Killed):
                task.close()
        self._tasks.clear()
        self.disk.fuse = fuse

    def lost_power(self, dice: Random) -> None:
        super().lost_power(dice)
        self._may_be_torn = True

    # The log's operations.

    def compact(self, dice: Random) -> None:
        self._was_compacted = True
        if self._pass is not None or not self._log.damage.is_damaged:
            super().compact(dice)

    def reset(self, dice: Random) -> None:
        is_hindered = self.disk.full or self.disk.fails_in is not None
        super().reset(dice)
        if self.online and not self.now.batches:
            check(is_hindered or not self._log.damage.is_damaged, "it was reset, and is damaged")
            self._may_forget_producers = False

    def inspect(self, dice: Random) -> None:
        """Inspect what a reader or the scrub has reported, or go on with it."""
        if "inspect" not in self._tasks:
            bad = {rot.mark for rot in self._bad()} if dice.random() < 0.8 else set[bytes]()
            among = [first for first, _, mark in self.now.seen.batches if mark in bad]
            offset = dice.choice(among or [dice.randint(self.now.start, self.now.end)])
            self._begin("inspect", "_examine", offset, dice.random() < 0.5)
        self._go_on("inspect", dice)

    def repair(self, dice: Random) -> None:
        """Repair what is marked, or go on with it."""
        if "repair" not in self._tasks and self._log.damage.is_damaged:
            self._begin("repair", "_repair_replica")
        self._go_on("repair", dice)

    def heal(self) -> None:
        """Find all that is bad, and repair it."""
        self._source.is_true = True
        for name in ("inspect", "repair"):
            while name in self._tasks and self.online:
                self._go_on(name, Random(0))
        for _ in range(ROUNDS_MAX):
            if self.online is None or self.is_suspect:
                return
            if self._log.begins_below_start:
                self._change(self.now, self._log.flush, is_durable=False)
                self._log.begin_advance(self._log.log_start_offset)
                self._log.finish_advance()
            self._read(self._log)
            if not self._unmarked and not self._log.damage.is_damaged:
                break
            if self._log.damage.is_damaged:
                self._begin("repair", "_repair_replica")
                while "repair" in self._tasks and self.online:
                    self._go_on("repair", Random(0))
                continue
            offset = self._unmarked[0]
            self._begin("inspect", "_examine", offset, False)
            while "inspect" in self._tasks:
                self._go_on("inspect", Random(0))
            self._read(self._log)
            check(offset not in self._unmarked, f"it finds nothing wrong at {offset}")
        else:
            check(False, f"it is not repaired: {self._log.damage.first} {self._unmarked}")

    def _begin(self, name: str, method: str, *given: object) -> None:
        assert self.replica is not None
        self._rows.is_repaired |= name == "repair"
        self.replica.stream = COMPACTED if self._was_compacted else STREAM
        self._tasks[name] = getattr(self._healing, method)(self.replica, *given)

    def _go_on(self, name: str, dice: Random) -> None:
        self.dice = dice
        for _ in range(dice.randint(1, 8)):
            task = self._tasks.get(name)
            if task is None:
                return
            self._change(self.now, lambda task=task: self._step(name, task), is_durable=False)

    def _step(self, name: str, task: Coroutine[Any, Any, object]) -> None:
        was_online = self.online is not None
        is_hindered = self.disk.full or self.disk.fails_in is not None
        try:
            self._run(task.send, None)
        except StopIteration:
            del self._tasks[name]
        except OSError:
            check(name == "inspect", "repairs have ended")
            del self._tasks[name]
        if was_online and self.online is None and not is_hindered:
            reason = self._log.offline_reason
            check("compacted differently" in reason, f"it refuses a true copy: {reason}")

    def _run(self, function: Callable[..., object], *given: object) -> object:
        with (
            patch.object(asyncio, "get_running_loop", _Loop),
            patch.object(segment_repair, "reading_from", _reading_from),
        ):
            return function(*given)

    # Inside.

    def _change(
        self, after: Content, operation: Callable[[], object], *, is_durable: bool = True
    ) -> bool:
        is_done = super()._change(after, operation, is_durable=is_durable)
        log = self.online
        if log is not None and not self.is_suspect:
            known = [self.now, *self.others, *self._deleted]
            marks = {mark for each in known for *_, mark in each.batches}
            self._saved_as_bad = {rot for rot in self._saved_as_bad if rot.mark in marks}
            forgotten = self._forgotten(log)
            check(not forgotten, f"it has forgotten that {forgotten} are bad")
        return is_done

    def _forgotten(self, log: CommitLog) -> list[int]:
        """The offsets of what was saved as bad, is bad, and not marked."""
        bad = {rot.mark for rot in self._bad() if rot in self._saved_as_bad}
        if log.damage.is_unknown:
            return []
        return [
            first
            for first, end, mark in self.now.batches
            if mark in bad
            and end > log.log_start_offset
            and not any(m.start_offset <= first and end <= m.end_offset for m in log.damage.ranges)
        ]

    def _marked(self, data: bytes) -> None:
        """A file of marks was written."""
        state = checkpoint_file.decode(data, KIND, owner_of(LOG))
        ranges = [each[1:3] for each in state["ranges"]]
        # What goes bad after an inspection of the whole log is not found by it.
        is_unknown = state["is_unknown"] and "repair" not in self._tasks
        marked = {
            mark
            for first, end, mark in self.now.batches
            if is_unknown or any(s <= first and end <= e for s, e in ranges)
        }
        bad = set(self._bad())
        self._saved_as_bad |= {rot for rot in bad if rot.mark in marked}
        self._saved_as_bad &= bad

    def _read(self, log: CommitLog) -> list[Batch]:
        """What readers get who go on after what cannot be read."""
        self.disk.reads_fail = 0
        bases = [segment.base_offset for segment in log.damage.segments()]
        offset, found = max(log.log_start_offset, *bases[:1], 0), list[Batch]()
        unread, self._unmarked = set[int](), []
        while True:
            resumes_at = offset // 2 * 2 + 2
            try:
                slice_ = log.read(offset, 1 << 20, log.log_end_offset) if bases else None
                if slice_ is None:
                    break
                data = log.pread(slice_)
                for batch in iterate(data, file=slice_.path):
                    found.append(batch)
                    resumes_at = batch.header.next_offset
                offset = slice_.next_offset
                continue
            except RecordsDamagedError as error:
                resumes_at = max(error.end_offset, resumes_at)
            except CorruptBatchError:
                if not found or found[-1].header.next_offset < resumes_at:
                    self._check_is_bad(log, offset)
                    self._unmarked.append(offset)
                else:
                    offset = resumes_at
                    continue
            unread.update(range(offset // 2 * 2, resumes_at, 2))
            offset = resumes_at
        self._rows.unread = unread
        return found

    def _check_is_bad(self, log: CommitLog, offset: int) -> None:
        """Something is bad in the segment that cannot be read."""
        segment = log.damage.segment_of(offset)
        file = None if segment is None else self._files().get(segment.path.rpartition("/")[2])
        is_bad = any(rot.file is file for rot in self._bad())
        check(is_bad, f"offset {offset} cannot be read, and nothing is bad there")

    def _batches_in(self, segment: Segment) -> set[int]:
        data = bytes(self.disk.file(segment.path).data[: segment.size])
        bad = {rot.mark for rot in self._bad()}
        left = {first for first, _, mark in self.now.batches if mark in bad}
        return left | {header.base_offset for _, header in _valid(data, segment.base_offset)}

    def _content(self, log: CommitLog, known: Content, batches: Sequence[Batch]) -> Content:
        found = super()._content(log, known, batches)
        there = {first for first, *_ in found.batches}
        lost = self._rows.unread - there
        if not lost:
            return found
        # Out-of-date marks hide what is good.
        hidden = [each for each in self._valid_in(log) if each[0] in lost]
        lost -= {first for first, *_ in hidden}
        unread = [*hidden, *(each for each in known.batches if each[0] in lost)]
        unread = [each for each in unread if found.start < each[1] <= found.end]
        return replace(found, batches=tuple(sorted((*found.batches, *unread))))

    def _valid_in(self, log: CommitLog) -> list[Stored]:
        """The valid batches in the log's files."""
        found = []
        for segment in log.damage.segments():
            if self.disk.exists(segment.path):
                data = bytes(self.disk.file(segment.path).data[: segment.size])
                found += [
                    (header.base_offset, header.next_offset, _mark(header))
                    for _, header in _valid(data, segment.base_offset)
                ]
        return found

    def _check_producers(self, log: CommitLog) -> None:
        if not self._rows.unread and not self._may_forget_producers:
            super()._check_producers(log)


def _valid(data: bytes, base_offset: int) -> list[tuple[int, BatchHeader]]:
    """Position and header of each valid batch in a segment."""
    walked = walk_past_damage(lambda at, length: data[at : at + length], len(data), base_offset)
    return [each for each in walked if not isinstance(each, Bad)]


def _mark(header: BatchHeader) -> bytes:
    return b"%06d" % header.append_timestamp
