"""Ctrl-C in the middle of `send`: only that record is in doubt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from jetstream_client import Client
from jetstream_client.publishing.record_accumulator import Batch, RecordAccumulator
from tests.support.server import ServerProcess


def lines_of(function: Callable[..., Any]) -> list[int]:
    """Those on which something happens, the first one included."""
    first = function.__code__.co_firstlineno
    return sorted({line for _, _, line in function.__code__.co_lines() if line and line > first})


def interrupted(call: Callable[[], object], function: Callable[..., Any], number: int) -> None:
    """Make the call, and let Ctrl-C come as `function` reaches that line, if it does."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is function.__code__:
            if event == "line" and frame.f_lineno == number:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace
        return trace if event == "call" else None

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)


POINTS = [
    pytest.param(function, number, id=f"{function.__name__}+{number - lines_of(function)[0]}")
    for function in (
        Batch.add,
        RecordAccumulator.put,
        RecordAccumulator._place_for,
        RecordAccumulator._opened,
        RecordAccumulator._announce,
        RecordAccumulator._seal,
    )
    for number in lines_of(function)
]


@pytest.mark.parametrize(("function", "number"), POINTS)
@pytest.mark.parametrize("linger", [0.0, 0.05])
def test_an_interrupted_send_costs_no_other_record(
    server: ServerProcess, function: Callable[..., Any], number: int, linger: float
) -> None:
    name = f"s{number}-{linger:g}".replace(".", "_")
    with Client(server.grpc, timeout=60) as client:
        client.create_stream(name, name)
        with client.publisher(name, linger=linger) as publisher:
            deliveries = [publisher.send(b"v0")] if number % 2 else []
            begun = len(deliveries)
            interrupted(
                lambda: deliveries.append(publisher.send(b"v1", key=b"k1", headers={"n": "1"})),
                function,
                number,
            )
            deliveries += [publisher.send(b"v%d" % at, key=b"k%d" % at) for at in (2, 3)]
            assert [delivery.exception(60.0) for delivery in deliveries] == [None] * len(deliveries)
        stored = [(message.key, message.value) for message in client.fetch(name)]
    pairs = [*[(None, b"v0")][:begun], (b"k1", b"v1"), (b"k2", b"v2"), (b"k3", b"v3")]
    assert stored in (pairs, [pair for pair in pairs if pair[1] != b"v1"])
    assert publisher.buffered_bytes == 0
