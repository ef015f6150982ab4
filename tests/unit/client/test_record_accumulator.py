"""What callers put into a buffer: batches, their bounds, their turns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import InvalidRequestError, UnavailableError
from jetstream_client._loop_thread import LoopThread
from jetstream_client.publishing.ack import Ack
from jetstream_client.publishing.deliveries import BatchDelivery, ManyResult
from jetstream_client.publishing.record_accumulator import (
    RECORD_BYTES,
    Batch,
    RecordAccumulator,
    ends_of,
)
from jetstream_client.values.records import columns_of
from jetstream_protocol.batch import Batch as Decoded


class Clock:
    now = 0.0
    woken = 0

    def __call__(self) -> float:
        return self.now

    def wake(self) -> None:
        self.woken += 1


def buffer_of(
    clock: Clock, batch_bytes: int = 100, buffer_bytes: int = 1000, linger: float = 1.0
) -> RecordAccumulator:
    return RecordAccumulator(
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        linger=linger,
        delivery_timeout=10.0,
        clock=clock,
        wake=clock.wake,
    )


def decoded(batch: Batch) -> Decoded:
    encoded = batch.encode(b"s", 0)
    encoded.stamp(0, 0, 1)
    return Decoded.decode(encoded.to_bytes())


def test_a_batch_is_taken_when_its_linger_is_over() -> None:
    clock = Clock()
    buffer = buffer_of(clock)
    buffer.put(b"1", None, b"")
    assert buffer.take(0.99) is None
    assert buffer.next_time() == 1.0
    batch = buffer.take(1.0)
    assert batch is not None
    assert decoded(batch).values() == [b"1"]
    assert buffer.take(9.0) is None
    assert buffer.next_time() is None


def test_a_batch_that_somebody_waits_for_is_taken_at_once_and_fills_until_then() -> None:
    clock = Clock()
    buffer = buffer_of(clock)
    found = buffer.put(b"1", None, b"")
    assert found is not None
    woken = clock.woken
    found[0].hurry(found[0])
    assert clock.woken == woken + 1
    buffer.put(b"2", None, b"")  # The sender has had no room yet.
    batch = buffer.take(0.0)
    assert batch is found[0]
    assert decoded(batch).values() == [b"1", b"2"]
    found[0].hurry(found[0])  # Too late to matter.
    buffer.put(b"3", None, b"")
    assert buffer.take(0.0) is None


def test_a_full_batch_is_taken_at_once_and_the_sender_is_woken() -> None:
    clock = Clock()
    buffer = buffer_of(clock, batch_bytes=2 * (RECORD_BYTES + 1))
    buffer.put(b"1", None, b"")
    assert clock.woken == 1
    places = [buffer.put(value, None, b"") for value in (b"2", b"3")]
    assert [place for _, place in filter(None, places)] == [1, 0]
    assert clock.woken == 3
    batch = buffer.take(0.0)
    assert batch is not None
    assert decoded(batch).values() == [b"1", b"2"]
    assert buffer.take(0.0) is None


def test_without_linger_every_call_is_a_batch() -> None:
    buffer = buffer_of(Clock(), linger=0.0)
    buffer.put(b"1", None, b"")
    buffer.put_many([b"2", b"3"], None, ends_of([b"2", b"3"], None), 0)
    taken = [buffer.take(0.0), buffer.take(0.0)]
    assert [len(batch) for batch in taken if batch] == [1, 2]


def test_headers_of_many_come_first_in_an_empty_batch_too() -> None:
    buffer = buffer_of(Clock(), linger=0.0)
    buffer.put_many([b"1", b"2"], None, ends_of([b"1", b"2"], None), 0, [b"block", b""])
    batch = buffer.take(0.0)
    assert batch is not None
    assert decoded(batch).header_blocks() == [b"block", b""]


def test_keys_and_headers_that_come_late_leave_the_earlier_without() -> None:
    buffer = buffer_of(Clock(), batch_bytes=1000)
    buffer.put(b"1", None, b"")
    buffer.put(b"2", b"k", b"")
    buffer.put_many([None, b"4"], None, ends_of([None, b"4"], None), 0)
    buffer.put(b"5", None, b"block")
    buffer.put_many([b"6"], [b"l"], ends_of([b"6"], [b"l"]), 0)
    buffer.put_many([b"7", b"8"], None, ends_of([b"7", b"8"], None), 0, [b"more", b""])
    buffer.seal()
    batch = buffer.take(0.0)
    assert batch is not None
    found = decoded(batch)
    assert found.values() == [b"1", b"2", None, b"4", b"5", b"6", b"7", b"8"]
    assert found.keys() == [None, b"k", None, None, None, b"l", None, None]
    assert found.header_blocks() == [b"", b"", b"", b"", b"block", b"", b"more", b""]


def test_there_is_room_again_when_a_batch_is_done() -> None:
    buffer = buffer_of(Clock(), batch_bytes=100, buffer_bytes=120)
    assert buffer.put(bytes(80), None, b"") is not None
    assert buffer.put(bytes(80), None, b"") is None
    buffer.seal()
    batch = buffer.take(0.0)
    assert batch is not None
    assert buffer.put(bytes(80), None, b"") is None
    buffer.release(batch)
    assert buffer.put(bytes(80), None, b"") is not None


def test_room_made_before_a_caller_waits_for_it_is_not_missed() -> None:
    buffer = buffer_of(Clock(), batch_bytes=100, buffer_bytes=100)
    buffer.put(bytes(80), None, b"")
    buffer.seal()
    batch = buffer.take(0.0)
    assert batch is not None
    seen = buffer.releases
    assert buffer.put(bytes(80), None, b"") is None
    assert not buffer.wait_for_release(seen, timeout=0.01)
    buffer.release(batch)
    assert buffer.wait_for_release(seen, timeout=0.0)


def test_what_waits_too_long_for_its_turn_is_taken_out() -> None:
    clock = Clock()
    buffer = buffer_of(clock)
    buffer.put(b"1", None, b"")
    buffer.seal()
    clock.now = 5.0
    buffer.put(b"2", None, b"")
    assert [len(batch) for batch in buffer.take_expired(9.9)] == []
    assert [len(batch) for batch in buffer.take_expired(10.0)] == [1]
    assert [len(batch) for batch in buffer.take_expired(15.0)] == [1]
    assert buffer.next_time() is None


def test_an_ended_buffer_gives_back_what_it_has_and_takes_nothing() -> None:
    buffer = buffer_of(Clock())
    buffer.put(b"1", None, b"")
    assert [len(batch) for batch in buffer.end(UnavailableError("over"))] == [1]
    with pytest.raises(UnavailableError, match="over"):
        buffer.put(b"2", None, b"")
    with pytest.raises(UnavailableError, match="over"):
        buffer.put_many([b"2"], None, [17], 0)


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=60),
    st.integers(80, 400),
    st.booleans(),
)
def test_many_records_are_cut_into_batches_within_bounds_and_none_is_lost(
    values: list[bytes | None], batch_bytes: int, with_keys: bool
) -> None:
    keys: list[bytes | None] | None = [b"%d" % n for n in range(len(values))] if with_keys else None
    buffer = buffer_of(Clock(), batch_bytes=batch_bytes, buffer_bytes=10**6)
    ends = ends_of(values, keys)
    start = 0
    spans = []
    while start < len(values):
        found = buffer.put_many(values, keys, ends, start)
        assert found is not None
        batch, place, stop = found
        spans.append((batch, place, start, stop))
        start = stop
    buffer.seal()
    for batch, _, _, _ in spans:
        assert batch.size <= batch_bytes
    read = {id(batch): decoded(batch) for batch, _, _, _ in spans}
    for batch, place, start, stop in spans:
        found_values = read[id(batch)].values()[place : place + stop - start]
        assert found_values == values[start:stop]
        if keys is not None:
            assert read[id(batch)].keys()[place : place + stop - start] == keys[start:stop]


def test_keys_without_values_to_match_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="1 values and 2 keys"):
        columns_of([b"1"], [b"k", b"l"])


@pytest.mark.parametrize("values", [[b"1", b"2"], ["1", "2"], ["1", b"2"]], ids=repr)
def test_values_and_keys_may_come_one_by_one(values: list[str | bytes]) -> None:
    found = columns_of((each for each in values), iter(["k", None]))
    assert found == ([b"1", b"2"], [b"k", None])
    assert columns_of(dict.fromkeys(values).keys(), None) == ([b"1", b"2"], None)


def test_one_object_is_not_taken_for_many_records() -> None:
    with pytest.raises(TypeError, match="values must be a list with one value a record"):
        columns_of({"id": 1}, None)


def test_a_record_lingers_at_most_half_of_its_delivery_timeout() -> None:
    clock = Clock()
    buffer = buffer_of(clock, linger=60.0)
    buffer.put(b"1", None, b"")
    assert buffer.next_time() == 5.0
    assert buffer.take(5.0) is not None


def test_the_offsets_of_a_split_batch_are_those_of_one_stream() -> None:
    batch = Batch(0.0, 10.0)
    batch.extend([b"a", b"b", b"c", b"d"], None)
    batch.encode(b"orders", 0)
    first, second = batch.split()
    first.acks = Ack("orders", 10, False), Ack("audit", 500, False)
    second.acks = Ack("audit", 502, False), Ack("orders", 12, False)
    first.finish(None)
    assert second.finish(None) is batch
    assert batch.runs(0, 4) == [("orders", range(10, 12)), ("orders", range(12, 14))]
    assert batch.runs(2, 2) == [("audit", range(502, 504))]


def test_a_split_batch_of_which_any_ack_is_enough_tells_the_stream_of_each_record() -> None:
    batch = Batch(0.0, 10.0)
    batch.extend([b"a", b"b", b"c"], None)
    batch.encode(b"orders", 0)
    first, second = batch.split()
    first.acks, second.acks = (Ack("orders", 10, False),), (Ack("audit", 500, False),)
    first.finish(None)
    second.finish(None)
    result = BatchDelivery(batch, "orders", 0, 3).result()
    assert list(zip(result.streams, result.offsets, strict=True)) == [
        ("orders", 10),
        ("audit", 500),
        ("audit", 501),
    ]
    many = ManyResult((result,))
    assert many.streams == list(result.streams)
    assert many.offsets == list(result.offsets)


@pytest.mark.parametrize("many", [False, True])
def test_a_signal_handler_in_the_middle_of_a_call_is_told_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """It would wait for the client's thread, which waits for the lock that this one holds."""
    buffer, thread, told = buffer_of(Clock()), LoopThread(), list[str]()

    async def flush() -> None:
        buffer.seal()

    def handler(*_: object) -> None:
        for use in (lambda: buffer.put(b"x", None, b""), lambda: thread.run(flush())):
            with pytest.raises(InvalidRequestError, match="signal handler") as raised:
                use()
            told.append(str(raised.value))

    def add(batch: Batch, *column: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        (extend if many else added)(batch, *column)

    added, extend = Batch.add, Batch.extend
    monkeypatch.setattr(Batch, "extend" if many else "add", add)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        if many:
            assert buffer.put_many([b"1"], None, ends_of([b"1"], None), 0) is not None
        else:
            assert buffer.put(b"1", None, b"") is not None
    finally:
        signal.signal(signal.SIGUSR1, before)
        monkeypatch.undo()
    assert len(told) == 2
    assert buffer.put(b"2", None, b"") is not None
    thread.run(flush())
    thread.close()
    [batch] = buffer.sealed()
    assert batch.values == [b"1", b"2"]


def test_one_that_comes_while_a_thread_waits_for_room_may_use_the_client() -> None:
    """At any place of the call: nothing is locked there."""
    for number in range(1, 30):
        buffer = buffer_of(Clock(), buffer_bytes=RECORD_BYTES + 1)
        found = buffer.put(b"1", None, b"")
        assert found is not None
        handler = Handler(number, partial(buffer.end, UnavailableError("the client is closed")))
        sys.setprofile(handler)
        try:
            is_released = buffer.wait_for_release(buffer.releases, 0.001)
        finally:
            sys.setprofile(None)
        if not handler.has_run:
            break
        assert is_released or number > 8
    assert 8 < number < 29


def test_one_that_comes_while_the_buffer_is_looked_at_is_told() -> None:
    buffer = buffer_of(Clock())
    buffer.put(b"1", None, b"")
    told = 0

    def use() -> None:
        nonlocal told
        if buffer._lock.locked():
            with pytest.raises(InvalidRequestError, match="signal handler"):
                buffer.put(b"x", None, b"")
            told += 1

    for look in (lambda: buffer.fits(1), lambda: buffer.buffered):
        for number in range(1, 20):
            sys.setprofile(Handler(number, use))
            try:
                look()
            finally:
                sys.setprofile(None)
    assert told > 1


class Handler:
    """Runs `handle` at the `number`th call, or return from one, as a signal handler would."""

    def __init__(self, number: int, handle: Callable[[], None]) -> None:
        self.left = number
        self.handle = handle
        self.has_run = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if "jetstream_client" not in frame.f_code.co_filename:
            return
        self.left -= 1
        if not self.left:
            sys.setprofile(None)
            self.has_run = True
            self.handle()
