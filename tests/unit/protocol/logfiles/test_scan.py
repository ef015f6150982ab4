from __future__ import annotations

import pytest

from jetstream_protocol.batch import HEADER_BYTES, encode
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.names import base_offset_of, index_name, segment_name
from jetstream_protocol.logfiles.scan import (
    SCAN_BYTES,
    Bad,
    Read,
    Tail,
    find_valid,
    find_valid_after,
    walk,
    walk_past_damage,
)
from tests.support.log_batches import stamped


def reader(data: bytes, reads: list[int] | None = None) -> Read:
    def read(position: int, length: int) -> bytes:
        if reads is not None:
            reads.append(length)
        return data[position : position + length]

    return read


THREE = [stamped(0, b"a"), stamped(1, b"b" * 50), stamped(2, b"c")]
DATA = b"".join(THREE)
POSITIONS = [0, len(THREE[0]), len(THREE[0]) + len(THREE[1])]


def test_walk_gives_position_and_header_of_each_batch() -> None:
    found = list(walk(reader(DATA), 0, len(DATA), bodies=True))
    assert [position for position, _ in found] == POSITIONS
    assert [header.base_offset for _, header in found] == [0, 1, 2]
    assert list(walk(reader(b""), 0, 0, bodies=True)) == []


@pytest.mark.parametrize("chunk_bytes", [1, HEADER_BYTES, 100, 1000])
def test_walk_is_the_same_however_little_it_reads_at_a_time(chunk_bytes: int) -> None:
    found = list(walk(reader(DATA), 0, len(DATA), bodies=True, chunk_bytes=chunk_bytes))
    assert [position for position, _ in found] == POSITIONS


def test_walk_without_bodies_does_not_read_large_ones() -> None:
    large = stamped(0, b"x" * 1_000_000) + stamped(1, b"y" * 1_000_000)
    reads: list[int] = []
    assert len(list(walk(reader(large, reads), 0, len(large), bodies=False, chunk_bytes=256))) == 2
    assert sum(reads) == 512


def test_walk_names_the_position_of_the_first_bad_batch() -> None:
    for position in POSITIONS:
        for at in (0, 30, HEADER_BYTES + 2):
            damaged = bytearray(DATA)
            damaged[position + at] ^= 1
            with pytest.raises(CorruptBatchError) as raised:
                list(walk(reader(bytes(damaged)), 0, len(DATA), bodies=True))
            assert raised.value.position == position


def test_walk_never_goes_beyond_its_end() -> None:
    with pytest.raises(CorruptBatchError, match="cut short"):
        list(walk(reader(DATA), 0, len(DATA) - 8, bodies=False))


def test_batch_continues_the_log_at_its_end_and_not_under_an_older_epoch() -> None:
    (header,) = (header for _, header in walk(reader(stamped(5, epoch=3)), 0, 112, bodies=False))
    assert Tail(5, 3).problem(header) == ""
    assert Tail(5, -1).problem(header) == ""
    assert "offset 5 where 6 is next" in Tail(6, 3).problem(header)
    assert "epoch 3 after epoch 4" in Tail(5, 4).problem(header)
    tail = Tail(5, 1, 99)
    tail.advance(header)
    assert (tail.offset, tail.leader_epoch, tail.timestamp) == (6, 3, 99)


def test_valid_batch_is_found_after_garbage_at_aligned_positions_only() -> None:
    for length in range(64):
        data = b"\xaa" * length + DATA
        expected = length if length % 8 == 0 else None
        if expected is None:
            # None of the batches is aligned then.
            assert find_valid(reader(data), 0, len(data), Tail(0)) is None
        else:
            assert find_valid(reader(data), 0, len(data), Tail(0)) == expected


def test_valid_batch_is_found_far_after_where_one_read_ends() -> None:
    for length in (SCAN_BYTES - 88, SCAN_BYTES - 8, SCAN_BYTES, 2 * SCAN_BYTES + 8):
        data = bytes(length) + DATA
        assert find_valid(reader(data), 0, len(data), Tail(0)) == length


def test_magic_alone_is_no_batch() -> None:
    data = b"JSLB" * 5000
    assert find_valid(reader(data), 0, len(data), Tail(0)) is None


def test_batches_of_the_past_are_not_taken_for_the_logs() -> None:
    data = stamped(5, epoch=3)
    assert find_valid(reader(data), 0, len(data), Tail(5, 3)) == 0
    assert find_valid(reader(data), 0, len(data), Tail(6, 3)) is None
    assert find_valid(reader(data), 0, len(data), Tail(5, 4)) is None


def test_search_begins_after_the_bad_batch_when_its_header_is_intact() -> None:
    inner = stamped(7, b"inside")
    outer = encode([inner], b"a.b")
    outer.stamp(0, 0, 0)
    data = bytearray(outer.to_bytes())
    data[HEADER_BYTES + 4] ^= 1  # in the value offsets
    assert inner in data
    assert find_valid_after(reader(bytes(data)), 0, len(data), Tail(0)) is None
    data += stamped(1)
    assert find_valid_after(reader(bytes(data)), 0, len(data), Tail(0)) == outer.length


def test_valid_batch_that_only_does_not_continue_counts_itself() -> None:
    assert find_valid_after(reader(DATA), 0, len(DATA), Tail(9)) == 0


def test_walk_past_damage_goes_on_with_the_next_valid_batch() -> None:
    damaged = bytearray(DATA + b"torn")
    damaged[POSITIONS[1] + 3] ^= 1
    found = list(walk_past_damage(reader(bytes(damaged)), len(damaged), 0))
    assert [f if isinstance(f, Bad) else f[0] for f in found] == [
        0,
        Bad(POSITIONS[1], "not a batch: wrong magic", POSITIONS[2]),
        POSITIONS[2],
        Bad(len(DATA), "batch header cut short", None),
    ]


def test_names_sort_as_offsets_do_and_nothing_else_is_one() -> None:
    offsets = [0, 9, 10, 10**12, 2**63 - 1]
    names = [segment_name(offset) for offset in offsets]
    assert names == sorted(names)
    assert [base_offset_of(name) for name in names] == offsets
    assert base_offset_of(index_name(5), ".index") == 5
    for name in ("5.log", "0" * 20, "0" * 21 + ".log", "0" * 19 + "٣.log", str(2**63) + ".log",
                 "0" * 20 + ".index", "-" + "0" * 19 + ".log", "9" * 20 + ".log"):  # fmt: skip
        assert base_offset_of(name) is None
