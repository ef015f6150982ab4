"""A node that is deposed although it lives gets no leaderships by balancing, longer each time."""

from __future__ import annotations

from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.replication.core.depositions import PAUSE_US, PAUSE_US_MAX, Depositions

ONE, TWO = NodeId(1), NodeId(2)


def test_the_streams_of_one_node_begin_one_pause() -> None:
    depositions = Depositions()
    assert depositions.note(ONE, MonotonicUs(0)) == PAUSE_US
    assert depositions.note(ONE, MonotonicUs(PAUSE_US - 1)) == 0
    assert depositions.note(TWO, MonotonicUs(PAUSE_US - 1)) == PAUSE_US
    assert depositions.pausing(MonotonicUs(PAUSE_US - 1)) == [ONE, TWO]
    assert depositions.pausing(MonotonicUs(PAUSE_US)) == [TWO]


def test_each_pause_is_twice_as_long_up_to_a_bound() -> None:
    depositions = Depositions()
    now_us, lengths = 0, []
    for _ in range(9):
        lengths.append(depositions.note(ONE, MonotonicUs(now_us)))
        now_us += lengths[-1] + PAUSE_US
    assert lengths[:4] == [PAUSE_US, 2 * PAUSE_US, 4 * PAUSE_US, 8 * PAUSE_US]
    assert lengths[-2:] == [PAUSE_US_MAX] * 2


def test_who_has_led_for_long_or_has_changed_begins_anew() -> None:
    depositions = Depositions()
    depositions.note(ONE, MonotonicUs(0))
    led_until_us = PAUSE_US + PAUSE_US_MAX
    assert depositions.note(ONE, MonotonicUs(led_until_us)) == PAUSE_US
    assert depositions.note(ONE, MonotonicUs(led_until_us + PAUSE_US)) == 2 * PAUSE_US
    depositions.forget(ONE)
    assert depositions.pausing(MonotonicUs(led_until_us + PAUSE_US)) == []
    assert depositions.note(ONE, MonotonicUs(led_until_us + PAUSE_US)) == PAUSE_US
    depositions.forget(TWO)
