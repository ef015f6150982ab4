"""The ends that clients are owed whose inboxes nobody hears, as of a leaf link that was lost."""

from __future__ import annotations

import pytest

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT, Pull, Status
from jetstream_server.jetstream_api import owed_ends
from jetstream_server.jetstream_api.owed_ends import KEPT_US, OwedEnds

NOW = MonotonicUs(1_000_000)


def pull(reply: bytes, left: int, *, delivered: int = 0, bytes_max: int = 0) -> Pull:
    found = Pull(reply, left, bytes_max, delivered=delivered)
    found.is_heard = True
    return found


def told(owed: OwedEnds, *heard: bytes, now_us: int = NOW) -> list[tuple[bytes, object]]:
    """Inbox, and how many messages count as open."""
    ends = owed.due(heard.__contains__, MonotonicUs(now_us))
    assert all(status.text == REQUEST_TIMEOUT for status in ends)
    return [(status.to, status.headers["Nats-Pending-Messages"]) for status in ends]


def test_a_client_is_told_once_as_soon_as_it_hears() -> None:
    owed = OwedEnds()
    owed.owe([pull(b"a", 3), pull(b"b", 4)], NOW)
    assert told(owed, b"b") == [(b"b", 4)]
    assert told(owed, b"b") == []
    assert told(owed, b"a", b"b") == [(b"a", 3)]
    assert len(owed) == 0


def test_all_that_was_asked_for_counts_as_open_because_what_was_sent_may_be_lost() -> None:
    owed = OwedEnds()
    asked = pull(b"a", 5, bytes_max=1000)
    asked.left, asked.delivered, asked.bytes_left = 2, 3, 10
    owed.owe([asked], NOW)
    headers = {"Nats-Pending-Messages": 5, "Nats-Pending-Bytes": 1000}
    assert owed.due(lambda _: True, NOW) == [Status(b"a", REQUEST_TIMEOUT, headers)]


def test_a_client_that_has_asked_again_is_told_nothing() -> None:
    owed = OwedEnds()
    owed.owe([pull(b"a", 3), pull(b"b", 4)], NOW)
    owed.asked_again(b"a")
    assert told(owed, b"a", b"b") == [(b"b", 4)]


def test_a_pull_that_another_node_has_heard_too_is_ended_once() -> None:
    owed = OwedEnds()
    owed.owe([pull(b"a", 3)], NOW)
    owed.owe([pull(b"a", 3)], NOW)
    assert told(owed, b"a") == [(b"a", 3)]


def test_the_last_two_pulls_of_an_inbox_are_ended_each_by_itself() -> None:
    owed = OwedEnds()
    owed.owe([pull(b"a", 1), pull(b"a", 2), pull(b"a", 3)], NOW)
    owed.owe([pull(b"a", 3)], NOW)
    assert told(owed, b"a") == [(b"a", 2), (b"a", 3)]


def test_an_inbox_of_which_nats_does_not_tell_is_told_at_once() -> None:
    owed = OwedEnds()
    owed.owe([Pull(b"_GR_.a.b._INBOX.c", 1)], NOW)
    assert told(owed) == [(b"_GR_.a.b._INBOX.c", 1)]


def test_a_client_that_does_not_come_back_is_forgotten() -> None:
    owed = OwedEnds()
    owed.owe([pull(b"a", 1)], NOW)
    assert told(owed, now_us=NOW + KEPT_US - 1) == []
    assert len(owed) == 1
    owed.linked(MonotonicUs(NOW + 3 * KEPT_US))  # Nobody could come back before.
    assert told(owed, now_us=NOW + 4 * KEPT_US - 1) == []
    assert len(owed) == 1
    assert told(owed, now_us=NOW + 4 * KEPT_US) == []
    assert len(owed) == 0


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed_ends, "OWED_MAX", 2)
    owed = OwedEnds()
    owed.owe([pull(b"a", 1), pull(b"b", 2), pull(b"c", 3)], NOW)
    owed.owe([pull(b"b", 2)], NOW)
    owed.owe([pull(b"d", 4)], NOW)
    assert told(owed, b"a", b"b", b"c", b"d") == [(b"b", 2), (b"d", 4)]
