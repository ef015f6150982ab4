"""Frames from a real socket pair, however their bytes arrive, and what ends the reading."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_server.net import frame_reader
from jetstream_server.net.frame_reader import (
    READ_BYTES,
    SHARED_SECONDS,
    TURN_BYTES,
    TURN_SECONDS,
    FrameReader,
)
from jetstream_server.net.receive_budget import ReceiveBudget
from tests.support.examples import scaled
from tests.support.loops import eventually

Scenario = Callable[[socket.socket, FrameReader], Awaitable[None]]
Plain = tuple[int, int, bytes, bytes]


def over_a_pair(scenario: Scenario) -> None:
    """Run it with a sending socket and a reader of what is sent."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = socket.create_connection(listener.getsockname())
            receiver, _ = listener.accept()
        for sock in (sender, receiver):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameReader(receiver, frames.RESPONSE_BYTES_MAX)
        try:
            await scenario(sender, reader)
        finally:
            reader.close()
            sender.close()
            receiver.close()

    uvloop.run(asyncio.wait_for(main(), 60))


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


def records(correlation: int, head: bytes, tail: bytes) -> bytes:
    return frames.encode(Kind.RECORDS, correlation, head, len(tail)) + tail


def plain(frame: Frame) -> Plain:
    return frame.kind, frame.correlation, frame.head, bytes(frame.tail)


async def closes(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


SIZES = st.one_of(st.integers(0, 40), st.sampled_from([READ_BYTES - 12, READ_BYTES, TURN_BYTES]))


@settings(max_examples=scaled(40))
@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), SIZES), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    one_by_one=st.booleans(),
)
def test_frames_arrive_whole_however_their_bytes_are_split(
    sizes: list[tuple[int, int]], cuts: list[int], one_by_one: bool
) -> None:
    source = random.Random(5)
    sent: list[Plain] = [
        (Kind.RECORDS, number, source.randbytes(head), source.randbytes(tail))
        for number, (head, tail) in enumerate(sizes)
    ]
    stream = b"".join(records(number, head, tail) for _, number, head, tail in sent)
    found: list[Plain] = []

    async def take(reader: FrameReader) -> None:
        if one_by_one:
            while True:
                found.append(plain(await reader.frame(Kind.RECORDS)))
        await reader.each(lambda frame: found.append(plain(frame)), Kind.RECORDS)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        taking = asyncio.ensure_future(take(reader))
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
            await send(sender, stream[start:stop])
            await asyncio.sleep(0)
        sender.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            await taking
        assert reader.bytes_received == len(stream)

    over_a_pair(scenario)
    assert found == sent


def test_what_arrived_before_a_reset_is_handed_out_and_the_reset_is_told() -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []
        await send(sender, records(1, b"a", b"b"))
        assert (await reader.frame(Kind.RECORDS)).correlation == 1
        taking = asyncio.ensure_future(
            reader.each(lambda frame: found.append(frame.correlation), Kind.RECORDS)
        )
        await asyncio.sleep(0.01)
        await send(sender, records(2, b"a", b"b"))
        await asyncio.sleep(0.05)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
        with pytest.raises(ConnectionResetError):
            await taking
        assert found == [2]
        with pytest.raises(ConnectionResetError):
            await reader.frame(Kind.RECORDS)

    over_a_pair(scenario)


def test_a_reset_right_after_a_frame_is_told() -> None:
    """The loop calls once for both, and not again."""

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []
        taking = asyncio.ensure_future(
            reader.each(lambda frame: found.append(frame.correlation), Kind.RECORDS)
        )
        await asyncio.sleep(0)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.send(records(1, b"a", b"b"))
        sender.close()  # Nothing of this loop runs in between.
        with pytest.raises(ConnectionResetError):
            await taking
        assert found == [1]

    over_a_pair(scenario)


class CountingSocket:
    """Counts the reads of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.reads = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, length: int) -> bytes:
        self.reads += 1
        return self._sock.recv(length)


def test_a_frame_that_came_alone_is_not_followed_by_a_read_that_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_reader, "LOOK_SECONDS", 3600.0)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        counting = CountingSocket(reader._sock)  # type: ignore[arg-type]
        reader._sock = counting  # type: ignore[assignment]
        found: asyncio.Queue[Frame] = asyncio.Queue()
        taking = asyncio.ensure_future(reader.each(found.put_nowait, Kind.RECORDS))
        for number in range(20):
            await send(sender, records(number, b"a", b"b"))
            assert (await found.get()).correlation == number
        assert counting.reads == 20
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)

    over_a_pair(scenario)


def test_a_handler_that_has_enough_leaves_the_rest_to_the_next_one() -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []

        def take(frame: Frame) -> bool:
            found.append(frame.correlation)
            return len(found) % 3 == 0

        await send(sender, b"".join(records(number, b"a", b"b") for number in range(5)))
        await asyncio.sleep(0.01)
        await reader.each(take, Kind.RECORDS)
        assert found == [0, 1, 2]
        assert (await reader.frame(Kind.RECORDS)).correlation == 3
        taking = asyncio.ensure_future(reader.each(take, Kind.RECORDS))
        await eventually(lambda: found == [0, 1, 2, 4])
        await send(sender, records(5, b"a", b"b"))
        await send(sender, records(6, b"a", b"b") + records(7, b"a", b"b"))
        await taking
        assert found == [0, 1, 2, 4, 5, 6]
        assert (await reader.frame(Kind.RECORDS)).correlation == 7

    over_a_pair(scenario)


def test_an_error_of_the_handler_ends_the_reading() -> None:
    def refuse(_: Frame) -> None:
        raise InvalidRequestError("not this one")

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        await send(sender, records(1, b"", b""))
        with pytest.raises(InvalidRequestError, match="not this one"):
            await reader.each(refuse, Kind.RECORDS)

    over_a_pair(scenario)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (frames.encode(Kind.FETCH, 1, bytes(9))[: frames.PREFIX_BYTES], "kind 3"),
        (frames.encode(Kind.POSITIONS, 1, b"", 5)[: frames.PREFIX_BYTES], "tail"),
        (b"GET / HTTP/1.1\r\n", "frame"),
    ],
)
def test_what_is_not_wanted_is_refused_by_its_prefix(data: bytes, match: str) -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        await send(sender, data)
        with pytest.raises(InvalidRequestError, match=match):
            await reader.frame(Kind.POSITIONS, Kind.RECORDS)

    over_a_pair(scenario)


def test_a_paused_reader_hands_out_nothing_until_it_goes_on() -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []

        def take(frame: Frame) -> None:
            found.append(frame.correlation)
            if frame.correlation == 1:
                reader.pause()

        taking = asyncio.ensure_future(reader.each(take, Kind.RECORDS))
        await send(sender, b"".join(records(number, b"x", b"y") for number in range(3)))
        await eventually(lambda: found == [0, 1])
        await send(sender, records(3, b"x", b"y"))
        await asyncio.sleep(0.05)
        assert found == [0, 1]
        reader.resume()
        await eventually(lambda: len(found) == 4)
        assert found == [0, 1, 2, 3]
        await closes(sender)
        with pytest.raises(EOFError):
            await taking

    over_a_pair(scenario)


def test_nothing_more_is_read_while_nobody_takes_frames() -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        frame = records(7, bytes(100), bytes(1000))
        sending = asyncio.ensure_future(send(sender, frame * 20_000))
        assert (await reader.frame(Kind.RECORDS)).correlation == 7
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert reader.bytes_received <= 3 * READ_BYTES
        for _ in range(19_999):
            await reader.frame(Kind.RECORDS)
        await sending

    over_a_pair(scenario)


def test_a_frame_that_does_not_go_on_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_reader, "STALL_SECONDS", 0.1)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []
        taking = asyncio.ensure_future(
            reader.each(lambda frame: found.append(frame.correlation), Kind.RECORDS)
        )
        data = records(1, b"head", b"tail")
        await send(sender, data)
        await asyncio.sleep(0.3)  # Between two frames there may be any silence.
        await send(sender, data[:-1])
        with pytest.raises(TimeoutError):
            await taking
        assert found == [1]

    over_a_pair(scenario)


def test_frames_that_always_overlap_the_reads_are_no_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time that is too long for one frame passes after each."""
    monkeypatch.setattr(frame_reader, "STALL_SECONDS", 3600.0)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        found: list[int] = []
        taking = asyncio.ensure_future(
            reader.each(lambda frame: found.append(frame.correlation), Kind.RECORDS)
        )
        data = records(1, b"head", b"tail")
        await send(sender, data[:5])
        await eventually(lambda: reader._stall_timer is not None)
        for number in range(1, 6):
            await send(sender, data[5:] + data[:5])
            await eventually(lambda: len(found) == number and not reader._decoder.is_empty)  # noqa: B023
            reader._stalled()
        await asyncio.sleep(0)
        assert not taking.done()
        reader._stalled()
        with pytest.raises(TimeoutError):
            await taking

    over_a_pair(scenario)


def test_frames_that_take_long_to_handle_leave_the_loop_to_others_after_each() -> None:
    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        turn = 0
        handled: list[int] = []  # the loop's turn, of each frame

        def slowly(frame: Frame) -> None:
            handled.append(turn)
            time.sleep(1.5 * TURN_SECONDS)

        sending = asyncio.ensure_future(send(sender, records(1, b"", b"x" * 1_000) * 10_000))
        reading = asyncio.ensure_future(reader.each(slowly, Kind.RECORDS))
        while len(handled) < 100:
            turn += 1
            await asyncio.sleep(0)
        for task in (reading, sending):
            task.cancel()
        await asyncio.gather(reading, sending, return_exceptions=True)
        # Two where the socket was found readable, and the loop's next turn began at once.
        assert max(handled.count(each) for each in handled) <= 2
        assert len(set(handled)) > 90

    over_a_pair(scenario)


def produced(tail: bytes) -> bytes:
    return frames.encode(Kind.PRODUCE, 1, b"head", len(tail)) + tail


def test_a_long_frame_is_read_once_there_is_room_for_it() -> None:
    budget, tail = ReceiveBudget(1_000_000), random.randbytes(8_000_000)
    assert budget.take("other", 900_000, lambda: None)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        reader.budgeted(budget, "own")
        found: list[Frame] = []
        held: list[int] = []

        def take(frame: Frame) -> bool:
            held.append(budget.held)
            found.append(frame)
            return True

        sending = asyncio.create_task(send(sender, produced(tail)))
        reading = asyncio.create_task(reader.each(take, Kind.PRODUCE))
        await eventually(lambda: reader._lacks_room)
        read = reader.bytes_received
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert reader.bytes_received == read <= READ_BYTES
        budget.give("other", 900_000)
        await asyncio.gather(sending, reading)
        assert found[0].tail == tail
        assert held[0] > len(tail) - READ_BYTES
        assert budget.held == 0

    over_a_pair(scenario)


def test_a_reader_that_ends_gives_its_room_back() -> None:
    budget = ReceiveBudget(1_000_000)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        reader.budgeted(budget, "own")
        await send(sender, produced(bytes(200_000))[:100_000])
        reading = asyncio.create_task(reader.each(lambda _: False, Kind.PRODUCE))
        await eventually(lambda: budget.held > 0)
        await closes(sender)
        with pytest.raises(EOFError):
            await reading
        assert budget.held == 0

    over_a_pair(scenario)


def test_a_long_frame_that_hardly_arrives_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_reader, "STALL_SECONDS", 0.3)

    async def scenario(sender: socket.socket, reader: FrameReader) -> None:
        reader.budgeted(ReceiveBudget(1_000_000), "own")
        await send(sender, produced(bytes(200_000))[:100_000])

        async def dribble() -> None:
            while True:
                await send(sender, b"x")
                await asyncio.sleep(0.02)

        dribbling = asyncio.create_task(dribble())
        with pytest.raises(TimeoutError):
            await reader.each(lambda _: False, Kind.PRODUCE)
        dribbling.cancel()
        await asyncio.gather(dribbling, return_exceptions=True)

    over_a_pair(scenario)


def test_many_connections_together_hold_the_loop_for_little_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame takes a millisecond."""
    now = [0.0]
    monkeypatch.setattr(frame_reader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    connections, count = 40, 50

    async def main() -> None:
        pairs = [socket.socketpair() for _ in range(connections)]
        taken = [0] * connections

        async def read(at: int) -> None:
            pairs[at][1].setblocking(False)
            reader = FrameReader(pairs[at][1], frames.RESPONSE_BYTES_MAX)

            def take(_: Frame) -> bool:
                now[0] += 0.001
                taken[at] += 1
                return taken[at] == count

            await reader.each(take, Kind.RECORDS)
            reader.close()

        for sender, _ in pairs:
            sender.sendall(records(0, b"", b"") * count)
        reading = [asyncio.create_task(read(at)) for at in range(connections)]
        longest, before = 0.0, now[0]
        while sum(taken) < connections * count:
            await asyncio.sleep(0)
            longest, before = max(longest, now[0] - before), now[0]
        await asyncio.gather(*reading)
        for pair in pairs:
            for sock in pair:
                sock.close()
        assert longest <= 2 * (SHARED_SECONDS + connections * 0.001)

    uvloop.run(asyncio.wait_for(main(), 60))
