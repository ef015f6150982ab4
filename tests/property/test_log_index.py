"""Index lookups against a linear scan."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import decode_header
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.index import Index
from tests.support.log_batches import batch
from tests.support.log_disk import MemoryDisk

Entries = list[tuple[int, int, int]]


@st.composite
def growing(draw: st.DrawFn) -> Entries:
    """Batches of a segment: offset and position grow, the timestamp does not fall."""
    offset = position = timestamp = 0
    found = []
    for records, length, step in draw(
        st.lists(
            st.tuples(st.integers(1, 20), st.integers(88, 900), st.integers(0, 3)), max_size=60
        )
    ):
        timestamp += step
        found.append((offset, position, timestamp))
        offset += records
        position += length
    return found


@given(batches=growing(), interval=st.integers(1, 2000), probe=st.integers(-1, 1300))
def test_lookups_are_those_of_a_linear_scan(batches: Entries, interval: int, probe: int) -> None:
    index = Index(interval)
    for entry in batches:
        index.add(*entry)
    entries = [index.entry(slot) for slot in range(len(index))]
    assert set(entries) <= set(batches)
    gaps = [b[1] - a[1] for a, b in pairwise(entries)]
    assert all(gap >= interval for gap in gaps)
    assert index.slot_of_offset(probe) == sum(e[0] <= probe for e in entries) - 1
    assert index.slot_of_position(probe) == sum(e[1] <= probe for e in entries) - 1
    assert index.slot_before_timestamp(probe) == sum(e[2] < probe for e in entries) - 1


@given(batches=growing(), interval=st.integers(1, 2000), cut=st.integers(0, 60))
def test_truncated_index_is_the_index_of_the_batches_that_stay(
    batches: Entries, interval: int, cut: int
) -> None:
    index, expected = Index(interval), Index(interval)
    for entry in batches:
        index.add(*entry)
    for entry in batches[:cut]:
        expected.add(*entry)
    if cut < len(batches):
        index.truncate(batches[cut][1])
    assert index.to_bytes(0, 0) == expected.to_bytes(0, 0)


@given(
    batches=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=25),
    interval=st.integers(1, 1500),
    clean=st.booleans(),
    data=st.data(),
)
def test_log_finds_offsets_and_times_as_a_linear_scan_does(
    batches: list[tuple[int, int]], interval: int, clean: bool, data: st.DataObject
) -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=900, index_interval_bytes=interval)
    log = CommitLog.open(disk, "/17", config, clean=False)
    timestamp, truth = 0, []
    for records, step in batches:
        timestamp += step
        encoded = batch(records=records)
        base = log.append(encoded, leader_epoch=1, timestamp_us=timestamp)
        truth.append((base, base + records, timestamp))
    log.close(clean=True)
    log = CommitLog.open(disk, "/17", config, clean=clean)
    for _ in range(4):
        offset = data.draw(st.integers(0, log.log_end_offset - 1))
        slice_ = log.read(offset, 0, log.log_end_offset)
        assert slice_ is not None
        header = decode_header(log.pread(slice_))
        expected = next(b for b in truth if b[0] <= offset < b[1])
        assert (header.base_offset, header.next_offset, header.append_timestamp) == expected
        time = data.draw(st.integers(-1, timestamp + 1))
        later = [(b[0], 1) for b in truth if b[2] >= time]
        assert log.offset_for_timestamp(time) == (later[0] if later else None)
