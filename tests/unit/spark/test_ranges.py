"""Ranges are cut evenly, lose nothing, and small ones share a task."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.ranges import Range, tasks

ranges = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=8).map(
    lambda found: [
        Range(number, f"s{number}", start, start + length, 3, 5)
        for number, (start, length) in enumerate(found)
    ]
)


@given(ranges, st.integers(0, 50), st.integers(1_000, 10**6))
def test_the_parts_are_the_ranges(found: list[Range], min_partitions: int, most: int) -> None:
    parts = [part for task in tasks(found, min_partitions, most) for part in task]
    for whole in found:
        mine = [part for part in parts if part.stream_id == whole.stream_id]
        if not len(whole):
            assert mine == []
            continue
        assert mine[0].start == whole.start
        assert mine[-1].stop == whole.stop
        assert all(a.stop == b.start for a, b in pairwise(mine))
        lengths = [len(part) for part in mine]
        assert 0 < min(lengths) <= max(lengths) <= min(lengths) + 1
        assert max(lengths) <= most
        assert [part.last_epoch for part in mine] == [3] + [-1] * (len(mine) - 1)
        assert [part.stop_epoch for part in mine] == [-1] * (len(mine) - 1) + [5]


@given(ranges, st.integers(1_000, 10**6))
def test_tasks_are_not_larger_than_asked_for(found: list[Range], most: int) -> None:
    assert all(sum(map(len, task)) <= most for task in tasks(found, 0, most))


def test_small_ranges_share_a_task_unless_tasks_are_asked_for() -> None:
    small = [Range(number, "s", 0, 10) for number in range(100)]
    assert len(tasks(small, 0, 1_000_000)) == 1
    assert len(tasks(small, 4, 1_000_000)) == 100


def test_minimum_partitions_go_by_size() -> None:
    found = tasks([Range(1, "a", 0, 900), Range(2, "b", 0, 100)], 10, 1_000_000)
    assert [task[0].stream_id for task in found] == [1] * 9 + [2]
