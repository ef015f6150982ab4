"""What people may say for a position, and the offset it comes to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from jetstream_client import AsyncClient, At, InvalidRequestError, Last, Position
from jetstream_client.values.positions import check_offset, needed, offset_of
from tests.support.loops import on_loop

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("position", "asked"),
    [
        (0, ()),
        (2**63 - 1, ()),
        ("earliest", ("earliest",)),
        ("latest", ("latest",)),
        (MOMENT, (At(1_769_860_800_000_005),)),
        (At(-5), (At(-5),)),
        (Last(3), ("earliest", "latest")),
    ],
)
def test_only_what_is_no_offset_is_asked_for(position: Position, asked: tuple[object, ...]) -> None:
    assert needed(position) == asked


@pytest.mark.parametrize(
    ("position", "answers", "offset"),
    [
        (7, [], 7),
        ("latest", [20], 20),
        (At(1), [4], 4),
        (Last(3), [0, 20], 17),
        (Last(0), [0, 20], 20),
        (Last(100), [5, 20], 5),
        (Last(100), [20, 20], 20),
    ],
)
def test_the_last_records_begin_no_earlier_than_the_log(
    position: Position, answers: list[int], offset: int
) -> None:
    assert offset_of(position, answers) == offset


def test_an_integer_of_numpy_is_an_offset() -> None:
    position: Any = np.int64(7)
    assert (needed(position), type(offset_of(position, []))) == ((), int)


@pytest.mark.parametrize(
    "position",
    [-100, 2**63, "newest", 1.5, None, True, np.float64(1), np.True_, datetime(2026, 1, 1)],
)
def test_what_is_no_position_is_refused(position: Any) -> None:
    with pytest.raises(InvalidRequestError):
        needed(position)


def test_a_negative_number_says_how_to_mean_the_last_records() -> None:
    with pytest.raises(InvalidRequestError, match=r"Last\(100\)"):
        needed(-100)


@pytest.mark.parametrize("wrong", ["5", 1.5, None])
def test_what_is_no_whole_number_is_named(wrong: Any) -> None:
    for make in (Last, At, check_offset):
        with pytest.raises(TypeError, match=f"must be an int, not {type(wrong).__name__}"):
            make(wrong)


@on_loop
async def test_positions_of_many_streams_are_pairs() -> None:
    with pytest.raises(TypeError, match="positions must be pairs"):
        await AsyncClient("localhost:1").list_offsets("orders")  # type: ignore[arg-type]


def test_impossible_wishes_are_refused_when_they_are_made() -> None:
    with pytest.raises(InvalidRequestError):
        Last(-1)
    with pytest.raises(InvalidRequestError):
        At(2**64)
