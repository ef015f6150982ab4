"""Which connections of the HTTP port make room, and which are ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from jetstream_server.serving.http.connections import (
    CONNECTIONS_MAX,
    SILENT_MAX,
    SILENT_SECONDS,
    UNREAD_SECONDS,
    Connections,
)


class FakeTransport:
    """unsent: bytes that the client has not taken."""

    def __init__(self) -> None:
        self.unsent = 0
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False

    def is_closing(self) -> bool:
        return not self.is_open

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Port:
    """Connections with fake transports. refused: how many were closed to make room."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self.connections = Connections(self._refused)

    @property
    def refused(self) -> int:
        return self._refused["http"]

    def take(self, origin: str, now: float = 0.0) -> FakeTransport:
        found = FakeTransport()
        self.connections.take(cast(asyncio.Transport, found), origin, now)
        return found

    def asked(self, transport: FakeTransport) -> None:
        self.connections.asked(cast(asyncio.Transport, transport))

    def keeping(self, origin: str, count: int = 1) -> list[FakeTransport]:
        """Connections that were asked over, and are kept."""
        found = [self.take(origin) for _ in range(count)]
        for each in found:
            self.asked(each)
        return found


@pytest.mark.parametrize("origins", [1, CONNECTIONS_MAX])
def test_who_comes_has_a_place_although_all_others_have_asked(origins: int) -> None:
    port = Port()
    kept = [each for n in range(CONNECTIONS_MAX) for each in port.keeping(f"{n % origins}")]
    for each in kept[1:]:
        port.asked(each)
    newcomer = port.take("newcomer")
    assert newcomer.is_open
    assert [each.is_open for each in kept] == [False] + [True] * (CONNECTIONS_MAX - 1)
    assert port.refused == 1


def test_of_those_that_have_asked_the_origin_with_most_makes_room() -> None:
    port = Port()
    others = port.keeping("a", 3) + port.keeping("b", 3)
    many = port.keeping("many", CONNECTIONS_MAX - 6)
    newcomers = [port.take(f"{number}") for number in range(SILENT_MAX)]
    assert all(each.is_open for each in others + newcomers)
    assert [each.is_open for each in many[: SILENT_MAX + 1]] == [False] * SILENT_MAX + [True]


def test_silent_connections_take_a_quarter_from_those_that_have_asked_and_no_more() -> None:
    port = Port()
    kept = port.keeping("asker", CONNECTIONS_MAX)
    silent = [port.take("silent") for _ in range(10 * CONNECTIONS_MAX)]
    assert sum(each.is_open for each in kept) == CONNECTIONS_MAX - SILENT_MAX
    assert [each.is_open for each in silent[-SILENT_MAX - 1 :]] == [False] + [True] * SILENT_MAX


def test_silent_connections_of_one_origin_do_not_push_out_those_of_another() -> None:
    port = Port()
    mine = port.take("mine")
    for _ in range(10 * CONNECTIONS_MAX):
        port.take("silent")
    assert mine.is_open


def test_who_asks_nothing_is_hung_up_on_and_who_has_asked_is_kept() -> None:
    port = Port()
    (kept,), silent = port.keeping("a"), port.take("b")
    port.connections.look(SILENT_SECONDS)
    assert silent.is_open
    port.connections.look(SILENT_SECONDS + 1)
    assert (kept.is_open, silent.is_open) == (True, False)
    assert port.refused == 0, "it did not have to make room"


def test_who_reads_nothing_of_an_answer_is_hung_up_on_and_who_reads_slowly_is_not() -> None:
    port = Port()
    deaf, slow, idle = port.keeping("a", 3)
    deaf.unsent = slow.unsent = 1_000_000
    now = 0.0
    while now <= UNREAD_SECONDS + 2:
        port.connections.look(now)
        slow.unsent -= 1
        now += 1
    assert (deaf.is_open, slow.is_open, idle.is_open) == (False, True, True)


def test_what_has_been_read_meanwhile_counts_anew() -> None:
    port = Port()
    (reader,) = port.keeping("a")
    for now in (0.0, UNREAD_SECONDS, UNREAD_SECONDS + 1):
        reader.unsent = 500
        port.connections.look(now)
        reader.unsent = 0
        port.connections.look(now + 0.5)
    assert reader.is_open


def test_connections_that_have_ended_leave_their_places() -> None:
    port = Port()
    kept = port.keeping("a", CONNECTIONS_MAX)
    kept[7].abort()
    port.take("b")
    assert sum(each.is_open for each in kept) == CONNECTIONS_MAX - 1
    port.asked(kept[7])  # A request that was under way when it ended.
    port.connections.look(0.0)
    assert port.refused == 0
