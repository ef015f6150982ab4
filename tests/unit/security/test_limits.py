"""What one principal may take of a node: over a limit of bytes it waits."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import TooManyRequestsError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.security import limits
from jetstream_server.security.limits import BURST_US, Limits, Quotas


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 5_000_000)), max_size=40))
def test_no_more_goes_out_than_the_rate_the_burst_and_one_answer(
    asked: list[tuple[int, int]],
) -> None:
    found = Limits(Quotas(bytes_per_second=(rate := 1_000_000)))
    start = now = MonotonicUs(50_000_000)
    sent = longest = 0
    for pause, length in asked:
        now = MonotonicUs(now + pause)
        now = MonotonicUs(now + found.read_delay_us("user:x", length, now))
        sent, longest = sent + length, max(longest, length)
        assert sent <= (now - start + BURST_US) * rate // 1_000_000 + longest + len(asked)


def test_one_principal_does_not_wait_for_another_and_nobody_without_a_limit() -> None:
    now = MonotonicUs(50_000_000)
    found = Limits(Quotas(bytes_per_second=1000))
    assert found.read_delay_us("user:x", 10_000, now) == 0
    assert found.read_delay_us("user:x", 1, now) == 9_000_000
    assert found.read_delay_us("user:y", 1, now) == 0
    unlimited = Limits(Quotas())
    assert [unlimited.read_delay_us("user:x", 1 << 40, now) for _ in range(3)] == [0, 0, 0]


def test_so_many_principals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRINCIPALS_MAX", 2)
    now = MonotonicUs(50_000_000)
    found = Limits(Quotas(bytes_per_second=1000))
    for name in ("a", "b", "c"):
        found.read_delay_us(name, 10_000, now)
    assert found.read_delay_us("a", 1, now) == 0
    assert found.read_delay_us("c", 1, now) > 0


def test_a_connection_beyond_the_limit_is_refused_until_another_ends() -> None:
    found = Limits(Quotas(connections=2))
    found.connected("user:x")
    found.connected("user:x")
    with pytest.raises(TooManyRequestsError, match="2 connections"):
        found.connected("user:x")
    found.connected("user:y")
    found.disconnected("user:x")
    found.connected("user:x")


def test_a_request_beyond_the_limit_is_refused_until_another_ends_on_that_port() -> None:
    found = Limits(Quotas(requests=2))
    requests = found.requests_of("user:x", "data")
    requests.begin()
    found.requests_of("user:x", "data").begin()
    with pytest.raises(TooManyRequestsError, match="2 requests"):
        requests.begin()
    found.requests_of("user:x", "grpc").begin()
    found.requests_of("user:y", "data").begin()
    requests.end()
    found.requests_of("user:x", "data").begin()


def test_nothing_is_kept_of_a_principal_without_connections() -> None:
    found = Limits(Quotas(requests=2))
    kept = weakref.ref(found.requests_of("user:x", "data"))
    gc.collect()
    assert kept() is None


@given(st.lists(st.sampled_from(["begin", "end"]), max_size=60), st.integers(1, 5))
def test_whoever_ends_what_began_is_never_refused_for_long(steps: list[str], most: int) -> None:
    requests, running = Limits(Quotas(requests=most)).requests_of("user:x", "data"), 0
    for step in steps:
        if step == "end" and running:
            requests.end()
            running -= 1
        elif step == "begin":
            if running == most:
                with pytest.raises(TooManyRequestsError):
                    requests.begin()
            else:
                requests.begin()
                running += 1
