"""How fast copies may be sent: at most the limit over any time, and not much less."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.types import MonotonicUs
from jetstream_server.replication.core.copy_limit import CREDIT_US, CopyLimit

RATE = 1_000_000
"""Bytes a second: one a microsecond."""


def test_without_a_limit_nothing_waits() -> None:
    limit = CopyLimit(lambda: 0)
    for _ in range(10):
        limit.sent(1 << 30, MonotonicUs(5))
        assert limit.wait_us(MonotonicUs(5)) == 0


def test_what_was_sent_has_to_be_paid_for_by_time() -> None:
    limit = CopyLimit(lambda: RATE)
    limit.sent(300_000, MonotonicUs(0))
    assert limit.wait_us(MonotonicUs(0)) == 300_000
    assert limit.wait_us(MonotonicUs(299_999)) == 1
    assert limit.wait_us(MonotonicUs(300_000)) == 0


def test_a_changed_limit_counts_at_once() -> None:
    rate = RATE
    limit = CopyLimit(lambda: rate)
    limit.sent(1_000_000, MonotonicUs(0))
    rate = 10 * RATE
    assert limit.wait_us(MonotonicUs(0)) == 100_000
    rate = RATE // 10
    assert limit.wait_us(MonotonicUs(0)) == 10_000_000
    rate = 0
    assert limit.wait_us(MonotonicUs(0)) == 0
    rate = RATE  # Nothing is owed from before.
    assert limit.wait_us(MonotonicUs(0)) == 0


def test_a_pause_is_no_licence_for_a_burst() -> None:
    limit = CopyLimit(lambda: RATE)
    limit.sent(1, MonotonicUs(0))
    assert limit.wait_us(MonotonicUs(3_600_000_000)) == 0
    limit.sent(CREDIT_US + 1000, MonotonicUs(3_600_000_000))
    assert limit.wait_us(MonotonicUs(3_600_000_000)) == 1000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 2_000)), min_size=1, max_size=60),
    st.sampled_from((64 * 1024, RATE, 100 * RATE)),
)
def test_over_any_time_it_is_the_limit(sends: list[tuple[int, int]], rate: int) -> None:
    """Whoever waits as long as it is told, and its timer `late` µs longer."""
    limit = CopyLimit(lambda: rate)
    now, total = MonotonicUs(0), 0
    for size, late in sends:
        wait = limit.wait_us(now)
        now = MonotonicUs(now + wait + (late if wait else 0))
        assert limit.wait_us(now) <= 1  # Rounded.
        limit.sent(size, now)
        total += size
    before_last = total - sends[-1][0]
    assert before_last <= rate * (now + CREDIT_US) / 1e6 + len(sends)
    # Late timers cost nothing: their time is credit.
    latest = max(late for _, late in sends)
    assert before_last >= rate * (now - latest) / 1e6 - len(sends) * rate / 1e6 - 1
