"""Which messages belong to a recorded trace."""

from __future__ import annotations

import pytest

from jetstream_protocol.traces import TraceParent, sampled_in

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16))


def block(line: str) -> bytes:
    return f"NATS/1.0\r\nOther: x\r\n{line}\r\n\r\n".encode()


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_a_recorded_trace_is_found(name: str) -> None:
    blocks = [b"", block("X: y"), block(f"{name}: 00-{TRACE}-{SPAN}-01"), b""]
    assert sampled_in(blocks, 10) == [(2, PARENT)]


@pytest.mark.parametrize(
    "line",
    [
        f"traceparent: 00-{TRACE}-{SPAN}-00",
        f"traceparent: 00-{TRACE}-{SPAN}-02",
        f"traceparent: 00-{'0' * 32}-{SPAN}-01",
        f"traceparent: 00-{TRACE}-{'0' * 16}-01",
        f"traceparent: 01-{TRACE}-{SPAN}-01",
        f"traceparent: 00-{TRACE.upper()}-{SPAN}-01",
        f"traceparent: 00-{TRACE}-{SPAN}",
        f"traceparent: 00-{TRACE}-{SPAN}-01-more",
        f"xtraceparent: 00-{TRACE}-{SPAN}-01",
        "traceparent:",
    ],
)
def test_what_is_not_recorded_or_cannot_be_read_is_passed_over(line: str) -> None:
    assert sampled_in([block(line)], 10) == []


def test_no_more_are_found_than_asked_for() -> None:
    blocks = [block(f"traceparent: 00-{TRACE}-{SPAN}-01")] * 5
    assert [position for position, _ in sampled_in(blocks, 3)] == [0, 1, 2]
