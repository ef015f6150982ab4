"""Looking for the last record that is wanted, from the end of a log."""

from __future__ import annotations

import pytest

from jetstream_client.reading.backwards import FIRST_OFFSETS, Windows, last_of, newest_first
from jetstream_client.reading.messages import Messages
from tests.support.loops import on_loop
from tests.unit.client.batches import messages_of, numbered


class Log:
    """Records of which those at `wanted` are; more than `most` are too many at a time."""

    def __init__(self, wanted: list[int], most: int = 10) -> None:
        self.wanted = wanted
        self.most = most
        self.windows: list[tuple[int, int]] = []

    async def read(self, start: int, stop: int) -> Messages | None:
        self.windows.append((start, stop))
        found = [offset for offset in self.wanted if start <= offset < stop]
        if len(found) > self.most and stop - start > 1:
            return None
        return messages_of(b"".join(numbered(1, offset) for offset in found), start)


@on_loop
async def test_a_recent_one_is_found_in_the_first_window() -> None:
    log = Log([3, 99_990, 99_995])
    found = await last_of(Windows(0, 100_000), log.read)
    assert found is not None
    assert found.offset == 99_995
    assert log.windows == [(100_000 - FIRST_OFFSETS, 100_000)]


@on_loop
async def test_windows_grow_while_nothing_is_found_and_meet() -> None:
    log = Log([70])
    found = await last_of(Windows(50, 1_000_000), log.read)
    assert found is not None
    assert found.offset == 70
    stops = [stop for _, stop in log.windows]
    assert [start for start, _ in log.windows][:-1] == stops[1:]
    assert log.windows[-1][0] == 50
    assert len(log.windows) < 10


@on_loop
async def test_without_one_all_is_looked_through_once() -> None:
    log = Log([])
    assert await last_of(Windows(5, 5000), log.read) is None
    assert sum(stop - start for start, stop in log.windows) == 4995


@on_loop
async def test_an_empty_log_has_none() -> None:
    assert await last_of(Windows(5, 5), Log([]).read) is None


@pytest.mark.parametrize("most", [0, 1, 10])
@on_loop
async def test_a_window_that_holds_too_much_is_made_smaller(most: int) -> None:
    log = Log(list(range(10_000)), most)
    found = await last_of(Windows(0, 20_000), log.read)
    assert found is not None
    assert found.offset == 9999


@pytest.mark.parametrize("most", [1, 10, 5000])
@pytest.mark.parametrize("count_max", [None, 1, 7, 10_000])
@on_loop
async def test_what_is_wanted_comes_newest_first_and_once(most: int, count_max: int | None) -> None:
    wanted = [3, 4, *range(500, 540), 7000, 9999]
    log = Log(wanted, most)
    found: list[int] = []
    end = 10_000
    while end > 0 and (count_max is None or len(found) < count_max):
        messages = await newest_first(
            "orders",
            Windows(0, end),
            log.read,
            count_max=None if count_max is None else count_max - len(found),
            bytes_max=4000,
        )
        assert all(offset >= messages.next_offset for offset in messages.offsets())
        found += messages.offsets()
        end = messages.next_offset
    assert found == wanted[::-1][:count_max]
