"""The pulls that a follower remembers for the case that the leader crashes."""

from __future__ import annotations

import pytest

from jetstream_protocol.types import MonotonicUs, StreamId
from jetstream_server.consumers.pulls import Pull
from jetstream_server.jetstream_api import heard_pulls
from jetstream_server.jetstream_api.heard_pulls import HeardPulls

ONE, TWO = StreamId(1), StreamId(2)
NOW = MonotonicUs(0)


def replies(pulls: list[Pull]) -> list[tuple[bytes, int]]:
    return [(pull.reply, pull.left) for pull in pulls]


def test_the_last_two_pulls_of_an_inbox_are_remembered_once() -> None:
    heard = HeardPulls()
    for left in (1, 2, 3):
        heard.take(ONE, Pull(b"a", left))
    heard.take(ONE, Pull(b"b", 4, expires_us=MonotonicUs(5), no_wait=True))
    heard.take(TWO, Pull(b"a", 5))
    assert replies(heard.end(ONE, NOW)) == [(b"a", 2), (b"a", 3), (b"b", 4)]
    assert heard.end(ONE, NOW) == []
    assert replies(heard.end(TWO, NOW)) == [(b"a", 5)]
    assert len(heard) == 0


def test_a_pull_that_does_not_wait_is_not_remembered() -> None:
    heard = HeardPulls()
    heard.take(ONE, Pull(b"a", 1, no_wait=True))
    assert heard.end(ONE, NOW) == []


def test_the_oldest_inboxes_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard_pulls, "INBOXES_MAX", 3)
    heard = HeardPulls()
    for number in range(5):
        heard.take(ONE, Pull(b"%d" % number, 1))
    heard.take(ONE, Pull(b"3", 2))
    assert replies(heard.end(ONE, NOW)) == [(b"2", 1), (b"4", 1), (b"3", 1), (b"3", 2)]


def test_the_last_pull_of_an_inbox_is_ended_though_it_has_expired_without_a_leader() -> None:
    heard, now_us = HeardPulls(), MonotonicUs(100_000_000)
    for left, ago_us in ((1, 2), (2, 1)):
        heard.take(ONE, Pull(b"a", left, expires_us=MonotonicUs(now_us - ago_us)))
    heard.take(ONE, Pull(b"b", 3, expires_us=MonotonicUs(now_us - 6_000_000)))
    heard.take(ONE, Pull(b"c", 4, expires_us=MonotonicUs(now_us + 1)))
    heard.take(ONE, Pull(b"d", 5))
    assert replies(heard.end(ONE, now_us)) == [(b"a", 2), (b"c", 4), (b"d", 5)]


def test_what_was_asked_while_the_leader_could_not_be_reached_may_wait_in_vain() -> None:
    heard, lost_us = HeardPulls(), MonotonicUs(1000)
    for inbox, left, expires_us in ((b"a", 1, 1001), (b"b", 2, 1000), (b"a", 3, 3000)):
        heard.take(ONE, Pull(inbox, left, expires_us=MonotonicUs(expires_us)))
    heard.take(ONE, Pull(b"c", 4))
    expected = [(b"a", 1), (b"a", 3), (b"c", 4)]
    assert replies(heard.lost(ONE, lost_us)) == expected
    assert replies(heard.lost(ONE, lost_us)) == expected  # The leader may still crash.
    assert heard.lost(TWO, lost_us) == []
