"""The log says the same thing seldom, and different things at once."""

from __future__ import annotations

from jetstream_server.log_throttle import MESSAGES_MAX, REPEAT_SECONDS, LogThrottle


def test_the_same_complaint_is_due_again_only_after_a_while() -> None:
    now = 0.0
    complaints = LogThrottle(lambda: now)
    assert complaints.is_due("dropped", "10.0.0.1")
    assert not complaints.is_due("dropped", "10.0.0.1")
    assert complaints.is_due("dropped", "10.0.0.2")
    assert complaints.is_due("refused", "10.0.0.1")
    now = REPEAT_SECONDS - 0.1
    assert not complaints.is_due("dropped", "10.0.0.1")
    now = REPEAT_SECONDS
    assert complaints.is_due("dropped", "10.0.0.1")
    assert not complaints.is_due("dropped", "10.0.0.1")


def test_what_is_remembered_is_bounded() -> None:
    complaints = LogThrottle(lambda: 0.0)
    assert all(complaints.is_due(number) for number in range(10 * MESSAGES_MAX))
    assert len(complaints._made_at) == MESSAGES_MAX
    assert not complaints.is_due(10 * MESSAGES_MAX - 1)
    assert complaints.is_due(0)
