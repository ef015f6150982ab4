"""Recovery from every truncation point and every flipped byte of small logs of several segments.

Claims, for any damage to one segment: no batch before it is lost, none is invented; it is cut off
exactly when nothing valid follows it, and otherwise every byte stays where it is and the log takes
no appends; `verify` calls it damage exactly when the log goes offline.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.verify import verify
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from tests.support.log_batches import batch, read_all
from tests.support.log_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=200)


@dataclass(frozen=True)
class Place:
    """A batch of the undamaged log: where it is, and what it holds."""

    segment: str
    position: int
    length: int
    base_offset: int
    next_offset: int


def build(batches: list[EncodedBatch]) -> tuple[MemoryDisk, list[Place]]:
    """A log of those batches as a killed process leaves it, without a checkpoint."""
    disk = MemoryDisk()
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    places = []
    for number, each in enumerate(batches):
        base = log.append(each, leader_epoch=number // 4, timestamp_us=number)
        slice_ = log.read(base, 0, log.log_end_offset)
        assert slice_ is not None
        places.append(Place(slice_.path, slice_.position, slice_.length, base, slice_.next_offset))
    return disk, places


def contents(log: CommitLog) -> list[tuple[int, bytes]]:
    return [(found.header.base_offset, found.body) for found in read_all(log)]


def check_damaged(disk: MemoryDisk, places: list[Place], hit: int, *, last: bool) -> None:
    """`disk` holds the log with damage in batch `hit`; last: nothing valid is after it."""
    undamaged = [(place.base_offset, place.next_offset) for place in places[:hit]]
    before = {name: data for name, data in disk.files("/17").items() if name.endswith(".log")}
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert log.log_end_offset == places[hit].base_offset
    assert [(b.header.base_offset, b.header.next_offset) for b in read_all(log)] == undamaged
    after = {name: data for name, data in disk.files("/17").items() if name.endswith(".log")}
    if last:
        assert log.offline_reason == ""
        log.append(batch(b"next"), leader_epoch=99, timestamp_us=99)
        again = CommitLog.open(disk.killed(), "/17", CONFIG, clean=False)
        assert contents(again) == contents(log)
        assert again.offline_reason == ""
    else:
        assert places[hit].segment in log.offline_reason
        assert f"at byte {places[hit].position}" in log.offline_reason
        assert after == before
        with pytest.raises(StorageError):
            log.append(batch(b"next"), leader_epoch=99, timestamp_us=99)


def flipped(disk: MemoryDisk, path: str, at: int, mask: int) -> MemoryDisk:
    damaged = disk.killed()
    data = bytearray(damaged.read_file(path))
    data[at] ^= mask
    damaged.put(path, bytes(data))
    return damaged


def cut(disk: MemoryDisk, path: str, size: int) -> MemoryDisk:
    damaged = disk.killed()
    damaged.put(path, damaged.read_file(path)[:size])
    return damaged


def varied() -> list[EncodedBatch]:
    """Ten batches over four segments: small, large, of several records, compressed."""
    return [
        batch(b"a"),
        batch(records=7),
        batch(b"b" * 100),
        encode([b"c" * 400], b"a.b", compression=2),
        batch(b"d" * 600),
        batch(b""),
        batch(records=3),
        batch(b"e" * 200),
        batch(b"f"),
        batch(b"g" * 30),
    ]


def test_every_flipped_byte() -> None:
    disk, places = build(varied())
    assert len({place.segment for place in places}) >= 4
    for hit, place in enumerate(places):
        for at in range(place.position, place.position + place.length):
            damaged = flipped(disk, place.segment, at, 1 << (at % 8))
            check_damaged(damaged, places, hit, last=hit == len(places) - 1)


def test_every_truncation_point() -> None:
    disk, places = build(varied())
    last_segment = places[-1].segment
    for hit, place in enumerate(places):
        # Cutting inside the batch also removes those after it in the segment.
        for size in range(place.position, place.position + place.length):
            if size == place.position and place.segment == last_segment:
                continue  # Whole batches are missing, and without a checkpoint nobody can know.
            damaged = cut(disk, place.segment, size)
            last = place.segment == last_segment
            if size == place.position and not last:
                log = CommitLog.open(damaged, "/17", CONFIG, clean=False)
                assert "is next" in log.offline_reason
                assert log.log_end_offset == place.base_offset
            else:
                check_damaged(damaged, places, hit, last=last)


def test_every_truncation_point_of_a_flushed_log_is_a_loss_and_not_a_torn_tail() -> None:
    disk, places = build(varied())
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    log.close(clean=True)
    last_segment = places[-1].segment
    for size in range(disk.size(last_segment)):
        damaged = cut(disk, last_segment, size)
        for clean in (True, False):
            again = CommitLog.open(damaged, "/17", CONFIG, clean=clean)
            assert again.offline_reason
            assert damaged.size(last_segment) == size
            survivors = [p for p in places if p.segment != last_segment]
            survivors += [
                p for p in places if p.segment == last_segment and p.position + p.length <= size
            ]
            assert [b.header.base_offset for b in read_all(again)] == [
                p.base_offset for p in survivors
            ]


def test_every_flipped_byte_of_indexes_and_checkpoint_costs_nothing() -> None:
    disk, places = build(varied())
    CommitLog.open(disk, "/17", CONFIG, clean=False).close(clean=True)
    undamaged = contents(CommitLog.open(disk, "/17", CONFIG, clean=True))
    for name, data in disk.files("/17").items():
        if name.endswith(".log"):
            continue
        for at in range(len(data)):
            damaged = flipped(disk, f"/17/{name}", at, 1 << (at % 8))
            for clean in (True, False):
                log = CommitLog.open(damaged, "/17", CONFIG, clean=clean)
                assert log.offline_reason == ""
                assert contents(log) == undamaged
                times = [log.offset_for_timestamp(number) for number in range(len(places))]
                assert times == [(p.base_offset, n // 4) for n, p in enumerate(places)]


shapes = st.lists(
    st.one_of(
        st.integers(0, 300).map(lambda size: batch(b"v" * size)),
        st.integers(1, 9).map(lambda count: batch(records=count)),
        st.integers(0, 600).map(lambda size: encode([b"z" * size], b"a.b", compression=1)),
    ),
    min_size=1,
    max_size=12,
)


@given(batches=shapes, data=st.data())
def test_any_flipped_bits_of_any_log(batches: list[EncodedBatch], data: st.DataObject) -> None:
    disk, places = build(batches)
    hit = data.draw(st.integers(0, len(places) - 1))
    place = places[hit]
    at = data.draw(st.integers(0, place.length - 1)) + place.position
    damaged = flipped(disk, place.segment, at, data.draw(st.integers(1, 255)))
    check_damaged(damaged, places, hit, last=hit == len(places) - 1)


@given(batches=shapes, data=st.data())
def test_any_overwritten_stretch_of_any_log(
    batches: list[EncodedBatch], data: st.DataObject
) -> None:
    disk, places = build(batches)
    first = data.draw(st.integers(0, len(places) - 1))
    place = places[first]
    content = disk.read_file(place.segment)
    start = place.position + data.draw(st.integers(0, place.length - 1))
    end = data.draw(st.integers(start + 1, len(content)))
    filler = data.draw(st.sampled_from([b"\0", b"\xff", b"JSLB", b"x"]))
    stretch = (filler * (end - start))[: end - start]
    if stretch == content[start:end]:
        return
    different = next(i for i in range(start, end) if stretch[i - start] != content[i])
    same_until = max(i for i in range(start, end) if stretch[i - start] != content[i]) + 1
    hit = next(
        i
        for i, p in enumerate(places)
        if p.segment == place.segment and p.position <= different < p.position + p.length
    )
    untouched_after = any(
        (p.segment == place.segment and p.position >= same_until) or p.segment > place.segment
        for p in places[hit + 1 :]
    )
    disk.put(place.segment, content[:start] + stretch + content[end:])
    check_damaged(disk, places, hit, last=not untouched_after)


@given(
    batches=shapes,
    garbage=st.one_of(
        st.binary(max_size=200), st.lists(st.sampled_from([b"JSLB", b"\0" * 8])).map(b"".join)
    ),
)
def test_any_garbage_after_any_log_is_cut_off(batches: list[EncodedBatch], garbage: bytes) -> None:
    disk, places = build(batches)
    last = places[-1]
    disk.put(last.segment, disk.read_file(last.segment) + garbage)
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert log.offline_reason == ""
    assert log.log_end_offset == last.next_offset
    assert disk.size(last.segment) == last.position + last.length


@given(batches=shapes, data=st.data())
def test_verify_calls_damage_what_takes_the_log_offline(
    tmp_path_factory: pytest.TempPathFactory, batches: list[EncodedBatch], data: st.DataObject
) -> None:
    disk, places = build(batches)
    place = data.draw(st.sampled_from(places))
    at = place.position + data.draw(st.integers(0, place.length - 1))
    if data.draw(st.booleans()):
        damaged = flipped(disk, place.segment, at, 0x40)
    else:
        damaged = cut(disk, place.segment, at)
    folder = tmp_path_factory.mktemp("data") / "17"
    folder.mkdir()
    for name, content in damaged.files("/17").items():
        (folder / name).write_bytes(content)
    findings = list(verify(folder))
    real = OsDisk()
    log = CommitLog.open(real, str(folder), CONFIG, clean=False)
    assert bool(log.offline_reason) == any(not finding.repairable for finding in findings)
    if not log.offline_reason:
        log.flush()
        log.close(clean=True)
        assert [f for f in verify(folder) if not f.file.endswith(".index")] == []
    real.close()
