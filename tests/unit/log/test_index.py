from __future__ import annotations

import pytest

from jetstream_protocol.errors import CorruptBatchError
from jetstream_server.log.index import Index


def index_of(*batches: tuple[int, int, int], interval: int = 100) -> Index:
    index = Index(interval)
    for offset, position, timestamp in batches:
        index.add(offset, position, timestamp)
    return index


def test_first_batch_and_then_one_per_interval_get_an_entry() -> None:
    index = index_of((0, 0, 1), (1, 60, 2), (2, 100, 3), (3, 199, 4), (4, 205, 5))
    assert [index.entry(slot) for slot in range(len(index))] == [
        (0, 0, 1),
        (2, 100, 3),
        (4, 205, 5),
    ]


@pytest.mark.parametrize(("offset", "slot"), [(9, -1), (10, 0), (19, 0), (20, 1), (999, 2)])
def test_lookup_by_offset_finds_the_last_entry_at_or_before_it(offset: int, slot: int) -> None:
    assert index_of((10, 0, 5), (20, 100, 5), (30, 200, 9)).slot_of_offset(offset) == slot


@pytest.mark.parametrize(("timestamp", "slot"), [(4, -1), (5, -1), (6, 1), (9, 1), (10, 2)])
def test_lookup_by_time_finds_the_last_entry_older_than_it(timestamp: int, slot: int) -> None:
    assert index_of((0, 0, 5), (1, 100, 5), (2, 200, 9)).slot_before_timestamp(timestamp) == slot


@pytest.mark.parametrize(("position", "slot"), [(0, 0), (99, 0), (100, 1), (10_000, 2)])
def test_lookup_by_position(position: int, slot: int) -> None:
    assert index_of((0, 0, 5), (1, 100, 5), (2, 200, 9)).slot_of_position(position) == slot


def test_truncated_index_grows_on_from_where_it_was_cut() -> None:
    index = index_of((0, 0, 1), (5, 100, 2), (9, 200, 3))
    index.truncate(100)
    assert len(index) == 1
    index.add(5, 100, 7)
    assert index.entry(1) == (5, 100, 7)
    index.truncate(0)
    assert len(index) == 0
    assert index.slot_of_offset(5) == -1


def test_file_gives_back_the_index() -> None:
    index = index_of((7, 0, 1), (9, 100, 2))
    again = Index.from_bytes(index.to_bytes(7, 150), 7, 150, 100)
    assert [again.entry(slot) for slot in range(2)] == [(7, 0, 1), (9, 100, 2)]
    again.add(10, 199, 3)
    assert len(again) == 2, "the interval goes on from the last entry of the file"
    again.add(11, 200, 3)
    assert len(again) == 3


def test_empty_index_has_a_file_too() -> None:
    assert len(Index.from_bytes(Index(100).to_bytes(7, 0), 7, 0, 100)) == 0


@pytest.mark.parametrize(("base_offset", "log_length"), [(8, 150), (7, 158)])
def test_index_of_another_segment_is_refused(base_offset: int, log_length: int) -> None:
    data = index_of((7, 0, 1), (9, 100, 2)).to_bytes(7, 150)
    with pytest.raises(CorruptBatchError, match="index of"):
        Index.from_bytes(data, base_offset, log_length, 100)


def test_every_flipped_bit_and_every_shortened_index_is_refused() -> None:
    data = index_of((7, 0, 1), (9, 100, 2)).to_bytes(7, 150)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBatchError):
            Index.from_bytes(bytes(damaged), 7, 150, 100)
    for length in range(len(data)):
        with pytest.raises(CorruptBatchError):
            Index.from_bytes(data[:length], 7, 150, 100)
    with pytest.raises(CorruptBatchError):
        Index.from_bytes(data + b"\0", 7, 150, 100)
