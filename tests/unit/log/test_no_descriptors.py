"""Where descriptors run out for a while, no log goes offline, and nothing is lost or stored twice.

Each operation is tried with want of descriptors at every file that it opens: at one, at some, or at
all from there on.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_server.disk_errors import NoDescriptorError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Buffer, Disk, OsDisk
from jetstream_server.log.inspection import BadRange
from tests.support.compacting import compact, table
from tests.support.compacting import records as records_of
from tests.support.log_batches import batch, read_all, values_of
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.log_producers import check_producers

P = 2**62 + 1
COUNT, FLUSHED = 8, 6
"""Records at first: two full segments of three, and two more, which are not flushed."""


class LackingDisk(FaultyDisk):
    """Opens a file for each operation, as a disk does that has no room to keep any open. Of these,
    `lacking` fail from the `begins_at`th on."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.opens = 0
        self.begins_at: int | None = None
        self.lacking = 0
        self.error = errno.EMFILE

    def lack(self, begins_at: int, lacking: int) -> None:
        self.opens, self.begins_at, self.lacking = 0, begins_at, lacking

    def heal(self) -> None:
        super().heal()
        self.begins_at = None

    def _opening(self, path: str) -> None:
        at, begins_at = self.opens, self.begins_at
        self.opens += 1
        if begins_at is not None and begins_at <= at < begins_at + self.lacking:
            raise OSError(self.error, os.strerror(self.error), path)

    @property
    def has_lacked(self) -> bool:
        return self.begins_at is not None and self.opens > self.begins_at

    def list_directory(self, path: str) -> list[str]:
        self._opening(path)
        return super().list_directory(path)

    def create(self, path: str) -> None:
        self._opening(path)
        super().create(path)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._opening(path)
        super().write(path, position, buffers)

    def pread(self, path: str, position: int, length: int) -> bytes:
        self._opening(path)
        return super().pread(path, position, length)

    def read_file(self, path: str) -> bytes:
        self._opening(path)
        return super().read_file(path)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """The last open is that of the folder: the file is replaced by then."""
        self._opening(path)
        super().write_atomic(path, data, durable=False)
        if durable:
            self._disk.fsync(path)
            self._opening(path)
            self._disk.fsync_directory(path.rpartition("/")[0])

    def truncate(self, path: str, size: int) -> None:
        self._opening(path)
        super().truncate(path, size)

    def fsync(self, path: str) -> None:
        self._opening(path)
        super().fsync(path)

    def fsync_directory(self, path: str) -> None:
        self._opening(path)
        super().fsync_directory(path)


def numbered(number: int) -> EncodedBatch:
    """A producer's batch with a message id."""
    block = b"NATS/1.0\r\nNats-Msg-Id: %04d\r\n\r\n" % number
    return encode(
        [b"%04d" % number], b"a.b", header_blocks=[block], producer_id=P, producer_sequence=number
    )


LENGTH = numbered(0).length
CONFIG = LogConfig(segment_bytes=3 * LENGTH, index_interval_bytes=LENGTH)


def append(log: CommitLog) -> None:
    log.append(numbered(log.log_end_offset), leader_epoch=1, timestamp_us=log.log_end_offset)
    log.note_end()


def reopen(disk: Disk, boot_id: str = "b") -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=False, boot_id=boot_id)


def after_power_failure(disk: MemoryDisk) -> CommitLog:
    """Nothing is left but what was synced."""
    return reopen(disk.power_failed(lambda _: 0), "another")


def opened() -> tuple[MemoryDisk, LackingDisk, CommitLog]:
    memory = MemoryDisk()
    disk = LackingDisk(memory)
    log = reopen(disk)
    for _ in range(FLUSHED):
        append(log)
    log.flush()
    append(log)
    append(log)
    return memory, disk, log


def replicate(log: CommitLog, to: int = COUNT + 5) -> None:
    """What a follower does with its leader's answer, from where its log ends."""
    data = bytearray()
    for number in range(log.log_end_offset, to):
        each = numbered(number)
        each.stamp(number, 1, number)
        data += each.to_bytes()
    if data:
        log.append_replica(bytes(data), leader_epoch=1)


def append_one(log: CommitLog) -> None:
    if log.log_end_offset == COUNT:
        append(log)


def seal(log: CommitLog) -> None:
    log.seal()


def flush(log: CommitLog) -> None:
    assert log.flush() == log.log_end_offset


def append_on_a_full_disk(log: CommitLog) -> None:
    """A part of the batch is written, and cut off again."""
    disk = log._disk
    assert isinstance(disk, LackingDisk)
    disk.write_room = 50
    with pytest.raises(StorageError) as raised:
        append(log)
    disk.write_room = None
    if isinstance(raised.value, NoDescriptorError):
        raise raised.value


def seal_and_flush(log: CommitLog) -> None:
    log.seal()
    append_one(log)
    flush(log)


def remove(log: CommitLog) -> None:
    log.begin_advance(5)
    log.finish_advance()


def cut_to(offset: int, log: CommitLog) -> None:
    log.truncate(offset)


OPERATIONS: dict[str, tuple[Callable[[CommitLog], None], int, int]] = {
    # Where the log begins and ends afterwards.
    "append": (append_one, 0, COUNT + 1),
    "append on a full disk": (append_on_a_full_disk, 0, COUNT),
    "replicate": (replicate, 0, COUNT + 5),
    "seal": (seal, 0, COUNT),
    "flush": (flush, 0, COUNT),
    "seal and flush": (seal_and_flush, 0, COUNT + 1),
    "remove": (remove, 5, COUNT),
    "cut to 7": (partial(cut_to, 7), 0, 7),
    "cut to 6": (partial(cut_to, 6), 0, 6),
    "cut to 2": (partial(cut_to, 2), 0, 2),
    "cut to 0": (partial(cut_to, 0), 0, 0),
}


def expected(start: int, end: int) -> list[bytes | None]:
    return [b"%04d" % number for number in range(start, end)]


def check(log: CommitLog, start: int, end: int) -> None:
    """The log holds those records, and knows what it must not store again."""
    assert (log.offline_reason, log.health.has_failed) == ("", False)
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    found = values_of(log)
    # A segment that holds the log start is kept as a whole.
    assert found[-(end - start) :] == expected(start, end) if end > start else not found
    for number in range(start, end):
        assert log.producers.offset_of(b"a.b", b"%04d" % number, 0) == number
    assert log.producers.offset_of(b"a.b", b"%04d" % end, 0) is None
    check_ids(log, end)


def check_ids(log: CommitLog, end: int) -> None:
    if log.log_start_offset == 0:
        sequences = [found.header.producer_sequence for found in read_all(log)]
        assert sequences == list(range(end))


@pytest.mark.parametrize(
    ("error", "lacking"), [(errno.EMFILE, 1), (errno.EMFILE, 2), (errno.ENFILE, 1000)]
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_lacks_descriptors_anywhere_is_done_once_there_are_some(
    name: str, error: int, lacking: int
) -> None:
    operation, start, end = OPERATIONS[name]
    for begins_at in range(100):
        memory, disk, log = opened()
        disk.error = error
        disk.lack(begins_at, lacking)
        has_failed = False
        try:
            operation(log)
        except StorageError:  # NoDescriptorError, unless it was about to read.
            has_failed = True
        if not disk.has_lacked:
            assert begins_at > 0, "it opens no file"
            break
        assert (log.offline_reason, log.health.has_failed) == ("", False)

        # Whoever kills it now finds it as before or as after, or with what was appended meanwhile.
        killed = reopen(memory.killed())
        assert killed.offline_reason == ""
        low, high = sorted((COUNT, end))
        assert killed.log_start_offset in (0, start)
        assert low <= killed.log_end_offset <= high
        check(killed, killed.log_start_offset, killed.log_end_offset)

        # As soon as there are descriptors it is done.
        disk.heal()
        if has_failed:
            operation(log)
        check(log, start, end)
        if name.startswith("cut") and end <= FLUSHED:
            check(after_power_failure(memory), start, end)
        for _ in range(4):
            append(log)
        check(log, start, end + 4)
        check(reopen(memory.killed()), start, end + 4)
        assert log.flush() == end + 4
        check(after_power_failure(memory), start, end + 4)
        log.close(clean=True)
        again = CommitLog.open(memory.killed(), "/17", CONFIG, clean=True, boot_id="b")
        check(again, start, end + 4)
    else:
        raise AssertionError("it opens fewer files than that")


@pytest.mark.parametrize("lacking", [1, 1000])
def test_a_first_append_that_lacks_descriptors_is_made_once_there_are_some(lacking: int) -> None:
    for begins_at in range(20):
        memory = MemoryDisk()
        disk = LackingDisk(memory)
        log = reopen(disk)
        disk.lack(begins_at, lacking)
        try:
            append(log)
        except NoDescriptorError:
            assert log.log_end_offset == 0
        if not disk.has_lacked:
            break
        disk.heal()
        while log.log_end_offset < 5:
            append(log)
        check(log, 0, 5)
        check(reopen(memory.killed()), 0, 5)
        log.flush()
        check(after_power_failure(memory), 0, 5)
    else:
        raise AssertionError("it opens fewer files than that")


@pytest.mark.parametrize("lacking", [1, 1000])
def test_a_close_that_lacks_descriptors_costs_the_next_start_a_scan(lacking: int) -> None:
    for begins_at in range(30):
        memory, disk, log = opened()
        disk.lack(begins_at, lacking)
        with_error = False
        try:
            log.close(clean=True)
        except StorageError:
            with_error = True
        if not disk.has_lacked:
            break
        for clean in (False, True):
            if with_error and clean:
                continue
            again = CommitLog.open(memory.killed(), "/17", CONFIG, clean=clean, boot_id="b")
            check(again, 0, COUNT)
    else:
        raise AssertionError("it opens fewer files than that")


@pytest.mark.parametrize("lacking", [1, 2, 1000])
def test_compaction_that_lacks_descriptors_leaves_the_log_as_it_was(lacking: int) -> None:
    for begins_at in range(200):
        memory = MemoryDisk()
        disk = LackingDisk(memory)
        log = reopen(disk)
        for number in range(20):
            log.append(
                encode([b"%04d" % number], b"a.b", keys=[b"key %d" % (number % 3)]),
                leader_epoch=1, timestamp_us=number,
            )  # fmt: skip
        log.flush()
        wanted = table(records_of(log))
        disk.lack(begins_at, lacking)
        try:
            compact(disk, log)
        except (JetstreamError, OSError):
            pass
        if not disk.has_lacked:
            break
        assert log.offline_reason == ""
        found = reopen(memory.killed())
        assert (found.offline_reason, found.log_end_offset) == ("", 20)
        assert table(records_of(found)) == wanted
        disk.heal()
        compact(disk, log)
        log.append(batch(b"last"), leader_epoch=1, timestamp_us=99)
        log.flush()
        for each in (log, reopen(memory.killed()), after_power_failure(memory)):
            assert (each.offline_reason, each.log_end_offset) == ("", 21)
            assert table(records_of(each)) == wanted
            assert each.compaction.state.cleaned_to > 0
    else:
        raise AssertionError("it opens fewer files than that")


@pytest.mark.parametrize("lacking", [1, 2, 1000])
def test_a_cut_that_lacks_descriptors_forgets_the_damage_after_it(lacking: int) -> None:
    for begins_at in range(50):
        memory, disk, log = opened()
        log.flush()
        log.damage.is_unknown = False
        segment = log.damage.segments()[1]
        bad = BadRange(3, 4, 5, segment.size // 3, 2 * segment.size // 3, "rot")
        log.damage._replace(lambda _: True, [bad])
        log.damage.save()
        disk.lack(begins_at, lacking)
        try:
            log.truncate(2)
        except StorageError:
            pass
        if not disk.has_lacked:
            break
        disk.heal()
        if log.log_end_offset > 2:
            log.truncate(2)
        for _ in range(8):
            append(log)
        log.flush()
        for each in (log, reopen(memory.killed()), after_power_failure(memory)):
            assert each.lost_range is None
            check(each, 0, 10)
    else:
        raise AssertionError("it opens fewer files than that")


def test_ids_of_compacted_records_are_known_after_a_cut_that_lacked_descriptors() -> None:
    """The file `producers` may be cut already, and the log is not."""
    key = [b"key"]
    block = [b"NATS/1.0\r\nNats-Msg-Id: %02d\r\n\r\n" % number for number in range(12)]
    for begins_at in range(50):
        memory = MemoryDisk()
        disk = LackingDisk(memory)
        log = reopen(disk)
        for number in range(12):
            each = encode([b"x"], b"a.b", keys=key, header_blocks=[block[number]])
            log.append(each, leader_epoch=1, timestamp_us=number)
            if number == 6:
                log.flush()
                assert compact(disk, log) is not None
        log.flush()
        assert log.producers.offset_of(b"a.b", b"01", 0) == 1
        disk.lack(begins_at, 1)
        try:
            log.truncate(8)
        except StorageError:
            pass
        if not disk.has_lacked:
            break
        disk.heal()
        log.flush()
        log.records.save()
        again = reopen(memory.killed())
        end = log.log_end_offset
        assert (again.offline_reason, again.log_end_offset) == ("", end)
        known = [again.producers.offset_of(b"a.b", b"%02d" % number, 0) for number in range(end)]
        assert known == list(range(end))
    else:
        raise AssertionError("it opens fewer files than that")


def test_nothing_is_appended_after_a_cut_that_is_not_finished() -> None:
    memory, disk, log = opened()
    disk.fail("truncate", ".log", errno.EMFILE)
    with pytest.raises(NoDescriptorError):
        log.truncate(1)
    before = memory.files("/17")
    for use in (lambda: append(log), log.flush, log.seal, partial(replicate, log)):
        with pytest.raises(NoDescriptorError):
            use()
    assert memory.files("/17") == before
    assert (log.log_end_offset, values_of(log)) == (1, expected(0, 1))
    disk.heal()
    log.flush()
    check(log, 0, 1)
    assert memory.files("/17")["00000000000000000000.log"] == log.pread(log.read(0, 999, 1))


def test_a_failed_fsync_after_a_lack_of_descriptors_still_takes_the_log_offline() -> None:
    _, disk, log = opened()
    log.seal()
    append(log)
    disk.fail("fsync", ".log", errno.EMFILE)
    with pytest.raises(NoDescriptorError):
        log.flush()
    assert log.flushed_offset == FLUSHED
    disk.heal()
    disk.fail("fsync", "6.log", errno.EIO)  # The sealed segment, which still has to be synced.
    with pytest.raises(StorageError):
        log.flush()
    assert log.health.has_failed
    disk.heal()
    with pytest.raises(StorageError, match="offline"):
        log.flush()
    assert log.flushed_offset == FLUSHED


def test_the_mark_of_a_reset_is_gone_before_anything_counts_as_flushed() -> None:
    """A power failure could bring the mark back, and the next start would empty the log."""
    memory = MemoryDisk()
    disk = LackingDisk(memory)
    log = reopen(disk)
    append(log)
    log.reset(50)
    log = reopen(disk)  # It does not know whether the run before has synced that it took it off.
    log.append(batch(b"new"), leader_epoch=2, timestamp_us=0)
    disk.fail("fsync", ".offsets", errno.EMFILE)
    for _ in range(2):
        with pytest.raises(NoDescriptorError):
            log.flush()
        assert log.flushed_offset == 50
    disk.heal()
    assert log.flush() == 51
    again = after_power_failure(memory)
    assert (again.log_end_offset, values_of(again)) == (51, [b"new"])


@pytest.mark.parametrize("lacking", [1, 1000])
def test_a_reset_that_lacks_descriptors_is_not_done_or_fails_the_log_until_it_is(
    lacking: int,
) -> None:
    for begins_at in range(50):
        memory, disk, log = opened()
        disk.lack(begins_at, lacking)
        has_failed = False
        try:
            log.reset(50)
        except StorageError:
            has_failed = True
        if not disk.has_lacked:
            break
        disk.heal()
        if not log.offline_reason and has_failed:
            # It may be elected meanwhile, as nothing says that it is being emptied.
            check(log, 0, COUNT)
            check(reopen(memory.killed()), 0, COUNT)
        if has_failed:
            log.reset(50)
        log.append(batch(b"new"), leader_epoch=2, timestamp_us=0)
        log.flush()
        again = after_power_failure(memory)
        assert (again.log_start_offset, again.log_end_offset) == (50, 51)
        assert values_of(again) == [b"new"]
    else:
        raise AssertionError("it opens fewer files than that")


# The real disk.


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """The process may open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def taking_all() -> Iterator[list[socket.socket]]:
    """Sockets that take every descriptor that is left."""
    held: list[socket.socket] = []
    try:
        while True:
            held.append(socket.socket())
    except OSError:
        pass
    try:
        yield held
    finally:
        for each in held:
            each.close()


def test_spare_descriptors_serve_files_where_connections_have_taken_all(tmp_path: Path) -> None:
    disk = OsDisk(spare=4)
    logs = [CommitLog.open(disk, str(tmp_path / str(n)), clean=False) for n in range(3)]
    with few_descriptors(10):
        with taking_all():
            for log in logs:
                append(log)
                log.flush()
            assert disk.list_directory(str(tmp_path / "0"))
        held = len(os.listdir("/proc/self/fd"))
        # There are some again: those that were given up are taken back.
        append(logs[0])
        disk.create(str(tmp_path / "file"))
        assert len(os.listdir("/proc/self/fd")) > held
        assert len(disk._spare) == 4
    for log in logs[1:]:
        check(log, 0, 1)
    disk.close()
    assert disk._spare == []
    disk.create(str(tmp_path / "another"))
    assert disk._spare == []


def test_connections_that_take_every_descriptor_take_no_log_offline(tmp_path: Path) -> None:
    """Connections are as fast as the log, and take also what it gives up."""
    disk = OsDisk(spare=2)
    logs = [CommitLog.open(disk, str(tmp_path / str(n)), clean=False) for n in range(20)]
    for log in logs:
        append(log)
    held: list[socket.socket] = []
    is_over = threading.Event()

    def connect() -> None:
        while not is_over.is_set():
            try:
                held.append(socket.socket())
            except OSError:
                pass

    refused = 0
    storm = threading.Thread(target=connect)
    with few_descriptors(15):
        storm.start()
        try:
            for _ in range(40):
                for log in logs:
                    try:
                        append(log)
                        log.flush()
                    except NoDescriptorError:
                        refused += 1
        finally:
            is_over.set()
            storm.join()
            for each in held:
                each.close()
    for log in logs:
        append(log)
        assert log.flush() == log.log_end_offset
        check(log, 0, log.log_end_offset)
        check_producers(log)
    disk.close()
    for number, log in enumerate(logs):
        again = CommitLog.open(OsDisk(), str(tmp_path / str(number)), clean=False)
        check(again, 0, log.log_end_offset)
