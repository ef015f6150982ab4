"""The last hour of a node: what is kept, what is forgotten, and what is made of totals."""

from __future__ import annotations

from math import isnan
from typing import cast

import pytest

from jetstream_protocol.types import WallUs
from jetstream_server.background import run_in_background
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.replica import Replica
from jetstream_server.serving import history_sampler
from jetstream_server.serving.grpc.cursor_lags import CursorLag
from jetstream_server.serving.history import History, Key
from jetstream_server.serving.history_sampler import HistorySampler
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop

KEY: Key = ("node", "records")


def sample(history: History, second: float, **totals: float) -> None:
    history.begin(WallUs(round(second * 1_000_000)))
    for name, total in totals.items():
        history.put_total(("node", name), total)


def values(history: History, key: Key = KEY) -> list[float | None]:
    found = history.found(lambda each: each == key).get(key, [])
    return [None if isnan(value) else value for value in found]


def test_the_newest_samples_are_kept_in_order() -> None:
    history = History(samples=3)
    for second in range(7):
        history.begin(WallUs(second))
        history.put(KEY, second)
        kept = list(range(max(0, second - 2), second + 1))
        assert (history.times, values(history)) == (kept, kept)


def test_a_total_becomes_its_growth_a_second() -> None:
    history = History()
    for second, total in ((0, 100), (2, 110), (4, 110), (5, 117)):
        sample(history, second, records=total)
    assert values(history) == [None, 5.0, 0.0, 7.0]


def test_a_total_that_shrinks_or_was_away_begins_anew() -> None:
    history = History()
    sample(history, 0, records=100)
    sample(history, 1, records=3)
    sample(history, 2, records=4)
    sample(history, 3)
    sample(history, 4, records=9)
    sample(history, 5, records=10)
    assert values(history) == [None, None, 1.0, None, None, 1.0]


def test_what_has_no_number_for_an_hour_is_forgotten_and_makes_room() -> None:
    history = History(samples=3, series_max=2)
    sample(history, 0, a=1, b=1, c=1)
    assert history.left_out == 1
    assert set(history.found(lambda _: True)) == {("node", "a"), ("node", "b")}
    for second in range(1, 4):
        sample(history, second, a=1, c=1)
        assert history.left_out == (second < 3)
    assert set(history.found(lambda _: True)) == {("node", "a"), ("node", "c")}


def test_times_that_stand_still_or_go_back_make_no_rate() -> None:
    history = History()
    for second in (5, 5, 4):
        sample(history, second, records=second)
    assert values(history) == [None, None, None]


def test_a_series_is_of_what_its_key_says() -> None:
    history = History()
    history.begin(cast(WallUs, 0))
    history.put(("cursor", "billing", 3, "lag"), 7)
    history.put(("cursor", "audit", 3, "lag"), 8)
    assert history.found(lambda key: key[:2] == ("cursor", "billing")) == {
        ("cursor", "billing", 3, "lag"): [7.0]
    }


@on_virtual_loop
async def test_an_unforeseen_error_costs_a_sample_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_sampler, "EVERY_SECONDS", 0.001)
    tried = 0

    async def cursors(_: object) -> tuple[list[CursorLag], int]:
        nonlocal tried
        tried += 1
        raise KeyError("a bug")

    class Nothing(list[Replica]):
        gone = Counters()

    sampler = HistorySampler(History(), Nothing(), lambda: 1, cursors, lambda: WallUs(0))
    running = run_in_background(sampler.run(), "history")
    await eventually(lambda: tried > 1)
    assert not running.done()
    running.cancel()
