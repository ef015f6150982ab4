"""Repair of a segment with any byte flipped, and a death at every step of it.

Claims: what is flipped is found, and the batch it lies in is marked; what is before and after is
read as before, and nothing else ever is; after the repair the files are what they were, byte for
byte; a process that dies, or a machine that loses power, at any step of it leaves a log that is
repaired or knows that it is not; and bytes that are not those that were lost repair nothing.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.batch import HEADER_BYTES, EncodedBatch, encode, iterate
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, DivergedError, RecordsDamagedError
from jetstream_server.log import repair as repairs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.index import Index
from tests.support import repairing
from tests.support.examples import scaled
from tests.support.log_batches import batch, read_all, stamped
from tests.support.log_disk import Killed, MemoryDisk
from tests.support.log_start import delete_segments_before
from tests.support.repairing import find, repair_log

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200)
FOLDER = "/17"


def build(batches: list[EncodedBatch], config: LogConfig = CONFIG) -> tuple[MemoryDisk, CommitLog]:
    """A flushed log of those batches, in sealed segments, and one batch after them."""
    disk = MemoryDisk()
    log = CommitLog.open(disk, FOLDER, config, clean=False)
    for number, each in enumerate(batches):
        log.append(each, leader_epoch=number // 5, timestamp_us=number)
    log.seal()
    log.append(batch(b"the end"), leader_epoch=99, timestamp_us=99)
    log.flush()
    return disk, log


def a_log(count: int = 24) -> tuple[MemoryDisk, CommitLog]:
    return build([batch(b"value %d" % number * (number % 4 + 1)) for number in range(count)])


def segments(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: data for name, data in disk.files(FOLDER).items() if name.endswith(".log")}


def flip(disk: MemoryDisk, name: str, position: int, mask: int = 0x55) -> None:
    data = bytearray(disk.files(FOLDER)[name])
    data[position] ^= mask
    disk.put(f"{FOLDER}/{name}", bytes(data))


def contents(log: CommitLog) -> dict[int, bytes]:
    return {each.header.base_offset: each.body for each in read_all(log)}


def readable(log: CommitLog) -> dict[int, bytes]:
    """What a reader gets who goes on where he is told to."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            slice_ = log.read(offset, 300, log.log_end_offset)
        except RecordsDamagedError as error:
            offset = error.end_offset
            continue
        assert slice_ is not None
        found |= {each.header.base_offset: each.body for each in iterate(log.pread(slice_))}
        offset = slice_.next_offset
    return found


def check_found_and_repaired(
    disk: MemoryDisk, log: CommitLog, source: CommitLog, before: dict[int, bytes],
    files: dict[str, bytes],
) -> None:  # fmt: skip
    found = find(disk, log)
    assert found
    lost = {offset for bad in found for offset in range(bad.start_offset, bad.end_offset)}
    assert readable(log) == {at: body for at, body in before.items() if at not in lost}
    again = CommitLog.open(disk.killed(), FOLDER, CONFIG, clean=False)
    assert again.damage.ranges == log.damage.ranges
    assert readable(again) == readable(log)
    repair_log(disk, log, source)
    assert not log.damage.is_damaged
    after = segments(disk)
    assert {name: after[name] for name in files} == files
    assert readable(log) == before
    assert not CommitLog.open(disk.killed(), FOLDER, CONFIG, clean=False).damage.is_damaged


def test_every_flipped_byte_is_found_read_around_and_repaired() -> None:
    _, source = a_log()
    before = contents(source)
    for name, data in list(segments(a_log()[0]).items())[:-1]:
        for position in range(0, len(data), 7):
            disk, log = a_log()
            files = segments(disk)
            flip(disk, name, position)
            check_found_and_repaired(disk, log, source, before, files)


values = st.lists(st.binary(max_size=120), min_size=1, max_size=4)


@settings(max_examples=scaled(60))
@given(
    st.lists(
        st.tuples(values, st.sampled_from([0, Flags.ZSTD, Flags.LZ4])),
        min_size=8,
        max_size=30,
    ),
    st.data(),
)
def test_any_flips_in_any_log_are_found_read_around_and_repaired(
    written: list[tuple[list[bytes], int]], data: st.DataObject
) -> None:
    def batches() -> list[EncodedBatch]:
        return [encode(list(each), b"a.b", compression=how) for each, how in written]

    _, source = build(batches())
    disk, log = build(batches())
    before, files = contents(source), segments(disk)
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(files)[:-1]))
        position = data.draw(st.integers(0, len(files[name]) - 1))
        flip(disk, name, position, data.draw(st.integers(1, 255)))
    if segments(disk) != files:  # Two flips of the same bits undo each other.
        check_found_and_repaired(disk, log, source, before, files)


def test_stored_batches_in_a_payload_are_never_taken_for_the_logs_own() -> None:
    """A header that is bad does not say how long its batch is, and a producer can store batches."""
    inner = stamped(5, b"forged", epoch=1) + stamped(6, b"forged too", epoch=1)
    batches = [batch(b"value %d" % number) for number in range(5)]
    batches.append(batch(inner, b"x" * 20))
    batches += [batch(b"value %d" % number) for number in range(8)]
    config = LogConfig(index_interval_bytes=400)
    _, source = build([*batches], config)
    for position in range(88):
        disk, log = build([*batches], config)
        at = segments(disk)["00000000000000000000.log"].index(inner) // 8 * 8
        start = max(p for p in range(0, at, 8) if disk_magic(disk, p))
        flip(disk, "00000000000000000000.log", start + position)
        find(disk, log)
        assert all(body in contents(source).values() for body in readable(log).values())
        assert b"forged" not in b"".join(readable(log).values())


def disk_magic(disk: MemoryDisk, position: int) -> bool:
    return segments(disk)["00000000000000000000.log"][position : position + 4] == b"JSLB"


@pytest.mark.parametrize("how", ["killed", "without power"])
def test_a_death_at_any_step_leaves_a_log_that_is_repaired_or_knows_that_it_is_not(
    how: str,
) -> None:
    _, source = a_log()
    before = contents(source)
    name = sorted(segments(a_log()[0]))[1]
    for seed in range(3 if how == "without power" else 1):
        after = 0
        while not dies_and_heals(source, before, name, after, how, seed):
            after += 1
        assert after > 15


def dies_and_heals(
    source: CommitLog, before: dict[int, bytes], name: str, after: int, how: str, seed: int
) -> bool:
    """Whether the repair ended before it died."""
    disk, log = a_log()
    files = segments(disk)
    flip(disk, name, 150)
    flip(disk, name, 480)
    find(disk, log)
    disk.crash_after = disk.operations + after
    try:
        repair_log(disk, log, source)
        ended = True
    except Killed:
        ended = False
    picks = iter(range(seed, seed + 10_000))
    left = disk.killed() if how == "killed" else disk.power_failed(lambda n: next(picks) % n)
    again = CommitLog.open(left, FOLDER, CONFIG, clean=False)
    assert not again.offline_reason
    assert not [each for each in left.files(FOLDER) if each.endswith(".tmp")]
    if not again.damage.is_damaged:
        assert {each: segments(left)[each] for each in files} == files
    find(left, again)  # As a start does with what is marked.
    repair_log(left, again, source)
    assert {each: segments(left)[each] for each in files} == files
    assert readable(again) == before
    return ended


def check_others_bytes_repair_nothing(spoil: str) -> None:
    """`spoil`: what is wrong with the replica that is asked."""
    disk, log = a_log()
    source_disk, source = a_log()
    if spoil == "epoch":
        source = CommitLog.open(MemoryDisk(), FOLDER, CONFIG, clean=False)
        for number in range(24):
            source.append(
                batch(b"value %d" % number * (number % 4 + 1)), leader_epoch=50, timestamp_us=number
            )
    elif spoil == "batches":
        source = CommitLog.open(MemoryDisk(), FOLDER, CONFIG, clean=False)
        for number in range(12):
            source.append(batch(records=2), leader_epoch=number // 3, timestamp_us=number)
    before = contents(log)
    name = sorted(segments(disk))[0]
    flip(disk, name, 112 + HEADER_BYTES + 4)
    if spoil == "rot":
        flip(source_disk, name, 112 + HEADER_BYTES + 6)
    find(disk, log)
    harmed = segments(disk)
    marks = log.damage.ranges
    refused = False
    try:
        repair_log(disk, log, source)
    except (CorruptBatchError, DivergedError):
        refused = True
    assert all(before.get(at) == body for at, body in readable(log).items())
    assert refused
    assert log.damage.ranges == marks
    assert {each: segments(disk)[each] for each in harmed} == harmed


@pytest.mark.parametrize("spoil", ["rot", "epoch", "batches"])
def test_bytes_that_are_not_those_that_were_lost_repair_nothing(spoil: str) -> None:
    check_others_bytes_repair_nothing(spoil)


@pytest.mark.parametrize("spoil", ["rot", "epoch", "batches"])
def test_mutant_that_does_not_verify_what_repairs_dies(
    spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        repairing,
        "check_fetched",
        lambda data, offset, bad, epoch_at, has_gaps: (
            bad.end_position - bad.position,
            bad.end_offset,
        ),
    )
    monkeypatch.setattr(repairs.Repair, "_check", lambda self: (Index(200), 0))
    with pytest.raises((AssertionError, CorruptBatchError, DivergedError)):
        check_others_bytes_repair_nothing(spoil)


def test_damage_of_the_mark_has_the_whole_log_inspected() -> None:
    disk, log = a_log()
    flip(disk, sorted(segments(disk))[0], 150)
    find(disk, log)
    path = f"{FOLDER}/damage"
    sound = disk.read_file(path)
    for position in range(len(sound)):
        spoiled = bytearray(sound)
        spoiled[position] ^= 0x55
        disk.put(path, bytes(spoiled))
        again = CommitLog.open(disk.killed(), FOLDER, CONFIG, clean=False)
        assert again.damage.is_unknown
        assert again.lost_range is not None
    disk.put(path, sound)
    again = CommitLog.open(disk.killed(), FOLDER, CONFIG, clean=False)
    assert again.damage.ranges == log.damage.ranges


@pytest.mark.parametrize("how", ["retention", "truncation", "reset"])
def test_the_mark_goes_with_what_is_removed_from_the_log(how: str) -> None:
    disk, log = a_log()
    flip(disk, sorted(segments(disk))[0 if how == "retention" else 2], 150)
    (bad,) = find(disk, log)
    if how == "retention":
        delete_segments_before(log, log.damage.segments()[1].base_offset)
    elif how == "truncation":
        log.truncate(log.damage.segments()[1].base_offset)
    else:
        log.reset(log.log_end_offset)
    assert log.lost_range is None
    again = CommitLog.open(disk.killed(), FOLDER, CONFIG, clean=False)
    assert again.lost_range is None
    assert bad.start_offset not in readable(again)
