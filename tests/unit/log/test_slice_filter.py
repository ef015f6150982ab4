"""Which bytes of a slice a filtered fetch sends: all that is wanted, and little else."""

from __future__ import annotations

from jetstream_protocol.batch import iterate
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.segment import LogSlice
from jetstream_server.log.slice_filter import GAP_BYTES_MAX, SliceFilter
from tests.unit.client.batches import batch_bytes

LONG = b"x" * (GAP_BYTES_MAX + 1)
WANTED = RecordFilter("eu")
START = 1000  # of the slice, in its file


def batches(*subjects: str, value: bytes = LONG) -> list[bytes]:
    return [
        batch_bytes([value, value], 2 * number, subjects=subject.encode())
        for number, subject in enumerate(subjects)
    ]


def filtered(data: bytes, room: int = 1 << 30, *, takes_first: bool = True) -> SliceFilter:
    found = LogSlice("segment", START, len(data), 0, 1 << 20)
    step = SliceFilter(found, data, WANTED, room, takes_first)
    for _ in step.steps():
        pass
    return step


def offsets(step: SliceFilter, data: bytes) -> list[int]:
    sent = b"".join(data[s.position - START : s.position - START + s.length] for s in step.kept)
    return [batch.header.base_offset for batch in iterate(sent)]


def test_batches_without_a_match_are_left_out_and_passed_by() -> None:
    data = b"".join(batches("us", "eu", "us", "us", "eu", "us"))
    step = filtered(data)
    assert offsets(step, data) == [2, 8]
    assert [(s.base_offset, s.next_offset) for s in step.kept] == [(2, 4), (8, 10)]
    assert step.next_offset == 12


def test_without_any_match_there_is_only_progress() -> None:
    step = filtered(b"".join(batches("us", "us")))
    assert (step.kept, step.next_offset) == ([], 4)


def test_short_gaps_are_sent_along() -> None:
    data = b"".join(batches("eu", "us", "eu", value=b"short"))
    step = filtered(data)
    assert len(step.kept) == 1
    assert offsets(step, data) == [0, 2, 4]


def test_what_has_no_room_is_left_for_the_next_fetch() -> None:
    parts = batches("us", "eu", "eu", "eu")
    step = filtered(b"".join(parts), 2 * len(parts[0]))
    assert step.next_offset == 6
    assert [(s.base_offset, s.next_offset) for s in step.kept] == [(2, 6)]


def test_the_first_match_is_taken_whole_and_only_the_first() -> None:
    data = b"".join(batches("us", "eu", "eu"))
    assert offsets(filtered(data, 1), data) == [2]
    later = filtered(data, 1, takes_first=False)
    assert (later.kept, later.next_offset) == ([], 2)


def test_a_damaged_batch_is_sent_for_its_reader_to_find() -> None:
    parts = batches("us", "us", "us")
    broken = bytearray(b"".join(parts))
    broken[len(parts[0]) + 200] ^= 1
    step = filtered(bytes(broken))
    assert [(s.base_offset, s.next_offset) for s in step.kept] == [(2, 4)]
    assert step.next_offset == 6


def test_after_a_damaged_header_all_is_sent() -> None:
    parts = batches("us", "us", "us")
    broken = bytearray(b"".join(parts))
    broken[len(parts[0]) + 20] ^= 1
    step = filtered(bytes(broken))
    (kept,) = step.kept
    assert (kept.position, kept.length) == (START + len(parts[0]), 2 * len(parts[0]))
    assert step.next_offset == kept.next_offset == 1 << 20
