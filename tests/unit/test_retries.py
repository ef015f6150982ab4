"""When what was refused is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from jetstream_server.retries import Retries, RetryTimer


def test_pauses_grow_up_to_a_limit_and_begin_anew_when_it_worked() -> None:
    retries: Retries[str] = Retries(pause_max=1.0)
    now, pauses = 0.0, []
    for _ in range(6):
        retries.refused("a", now, 0.1)
        due = retries.next_due
        assert due is not None
        assert retries.due(due - 0.01) == []
        pauses.append(round(due - now, 3))
        now = due
        assert retries.due(now) == ["a"]
        assert retries.next_due is None
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    retries.forget("a")
    retries.refused("a", now, 0.1)
    assert retries.next_due == now + 0.1


def test_a_key_that_waits_waits_once() -> None:
    """A refusal of something else that was under way must not bring its retry forward."""
    retries: Retries[int] = Retries(pause_max=8.0)
    for now in (0.0, 0.5, 0.9):
        retries.refused(1, now, 1.0)
    assert retries.waits(1)
    assert retries.next_due == 1.0
    assert retries.due(5.0) == [1]
    assert not retries.waits(1)
    retries.refused(1, 5.0, 1.0)
    assert retries.next_due == 7.0


def test_pauses_are_spread_over_their_second_half() -> None:
    retries: Retries[int] = Retries(pause_max=8.0, random=Random(1))
    for key in range(100):
        retries.refused(key, 0.0, 1.0)
    assert len(retries.due(0.5)) < 10
    assert 20 < len(retries.due(0.75)) < 80
    retries.due(1.0)
    assert retries.next_due is None


@given(st.lists(st.tuples(st.sampled_from(["refuse", "forget", "due"]), st.integers(0, 4))))
def test_a_key_is_due_once_for_each_wait_and_never_after_it_was_forgotten(
    steps: list[tuple[str, int]],
) -> None:
    retries: Retries[int] = Retries(pause_max=4.0)
    waiting: set[int] = set()
    now = 0.0
    for step, key in steps:
        now += 0.5
        if step == "refuse":
            retries.refused(key, now, 1.0)
            waiting.add(key)
        elif step == "forget":
            retries.forget(key)
            waiting.discard(key)
        else:
            found = retries.due(now)
            assert len(found) == len(set(found))
            assert waiting.issuperset(found)
            waiting.difference_update(found)
        assert {each for each in range(5) if retries.waits(each)} == waiting
    assert set(retries.due(now + 100)) == waiting


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_key_that_is_due_already_keeps_nobody_from_being_refused(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The loop is busy, and looks at its timers late."""
    loop = new_loop()
    tried: list[int] = []
    retries: Retries[int] = Retries(pause_max=3600.0)
    timer = RetryTimer(loop, retries, tried.extend)
    retries.refused(1, loop.time() - 5.0, 1.0)
    timer.refused(2, 0.001)
    timer.refused(3, 3600.0)
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    timer.cancel()
    loop.close()
    assert tried == [1, 2]


def test_a_key_whose_timer_is_called_a_little_early_is_tried() -> None:
    """Else the timer would be set again for the same moment, without end."""
    loop = asyncio.new_event_loop()
    tried: list[int] = []
    retries: Retries[int] = Retries(pause_max=1.0)
    timer = RetryTimer(loop, retries, tried.extend)
    try:
        now = loop.time()
        loop.time = lambda: now  # type: ignore[method-assign]
        timer.refused(1, 0.1)
        handle = timer._timer
        assert handle is not None
        handle._run()
        assert tried == [1]
        assert timer._timer is None
    finally:
        loop.close()
