"""Retention's policy against the rules it is to keep, for any log and any limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jetstream_server.log.retention import Limits, Span, judge


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Span], int, int]:
    """Sealed segments, the bytes of the last one, and the log end."""
    offset = draw(st.integers(0, 50))
    newest = 0
    spans = []
    for _ in range(draw(st.integers(0, 8))):
        length = draw(st.integers(1, 10))
        newest += draw(st.integers(0, 30))
        spans.append(Span(offset, offset + length, draw(st.integers(1, 100)), newest))
        offset += length
    return spans, draw(st.integers(0, 100)), offset + draw(st.integers(0, 10))


LIMITS = st.builds(Limits, *[st.one_of(st.just(0), st.integers(1, 300)) for _ in range(3)])


def keeps(limits: Limits, spans: list[Span], at: int, active: int, end: int, now: int) -> bool:
    """Whether some record of segment `at` is within every limit, so that it has to stay."""
    after = sum(span.size for span in spans[at + 1 :]) + active
    return (
        (not limits.max_age_us or spans[at].newest_us + limits.max_age_us > now)
        and (not limits.max_bytes or after < limits.max_bytes)
        and (not limits.max_messages or end - spans[at].next_offset < limits.max_messages)
    )


@given(log=logs(), limits=LIMITS, now=st.integers(0, 400), bound=st.integers(0, 150))
def test_what_is_within_every_limit_stays_and_nothing_else_that_may_go(
    log: tuple[list[Span], int, int], limits: Limits, now: int, bound: int
) -> None:
    spans, active, end = log
    first = spans[0].base_offset if spans else end
    looked = []

    def sealed() -> Iterator[Span]:
        for span in spans:
            looked.append(span)
            yield span

    verdict = judge(
        sealed(), limits, size_bytes=sum(span.size for span in spans) + active,
        log_start_offset=first, log_end_offset=end, bound_offset=bound, wall_us=now,
    )  # fmt: skip
    removed = [span for span in spans if span.next_offset <= verdict.log_start_offset]
    assert verdict.log_start_offset in (first, *[span.next_offset for span in spans])
    assert verdict.log_start_offset <= max(bound, first), "never past the bound"
    assert len(looked) <= len(removed) + 1
    for at in range(len(spans)):
        stays = keeps(limits, spans, at, active, end, now) or spans[at].next_offset > bound
        if at < len(removed):
            assert not stays
        if at == len(removed):
            assert stays
    if verdict.due_us is not None:
        assert now < verdict.due_us == spans[len(removed)].newest_us + limits.max_age_us
        later = judge(
            spans, replace(limits, max_bytes=0, max_messages=0), size_bytes=10**6,
            log_start_offset=first, log_end_offset=end, bound_offset=bound, wall_us=verdict.due_us,
        )  # fmt: skip
        assert later.log_start_offset > verdict.log_start_offset


@given(log=logs(), now=st.integers(0, 400))
def test_without_limits_everything_stays(log: tuple[list[Span], int, int], now: int) -> None:
    spans, active, end = log
    verdict = judge(
        spans, Limits(), size_bytes=active, log_start_offset=3, log_end_offset=end,
        bound_offset=end, wall_us=now,
    )  # fmt: skip
    assert (verdict.log_start_offset, verdict.due_us) == (3, None)
