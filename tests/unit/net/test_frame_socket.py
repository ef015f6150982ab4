"""Frames over a real socket pair: tails come whole, whichever way they are sent."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from jetstream_protocol import frames
from jetstream_protocol.errors import StorageError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.segment import Segment
from jetstream_server.net import frame_socket
from jetstream_server.net.frame_connection import UnreadableSliceError
from jetstream_server.net.frame_socket import COPIED_BYTES_MAX, TURN_BYTES, FrameSocket, decode_head
from tests.support.loops import eventually

Both = Callable[[FrameSocket, FrameSocket], Awaitable[None]]


def over_a_pair(scenario: Both) -> None:
    """Run it with both ends of a connection."""

    async def main() -> None:
        ends = [FrameSocket(end, frames.RESPONSE_BYTES_MAX, OsDisk()) for end in _tcp_pair()]
        try:
            await scenario(ends[0], ends[1])
        finally:
            for end in ends:
                end.close()

    uvloop.run(asyncio.wait_for(main(), 60))


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def slice_of(path: Path, position: int, length: int) -> LogSlice:
    return LogSlice(str(path), position, length, 0, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(random.Random(1).randbytes(3 * TURN_BYTES))
    return path


@pytest.mark.parametrize(
    "lengths",
    [(1,), (700, 1, 90), (COPIED_BYTES_MAX,), (COPIED_BYTES_MAX + 1,), (2 * TURN_BYTES + 5, 8)],
)
def test_a_tail_arrives_as_it_lies_in_the_files(file: Path, lengths: tuple[int, ...]) -> None:
    content = file.read_bytes()

    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        slices = [slice_of(file, 100 * n, length) for n, length in enumerate(lengths)]
        head = pb.Records(parts=[pb.Records.Part(length=length) for length in lengths])
        sending = asyncio.ensure_future(sender.send_slices(Kind.RECORDS, 7, head, slices))
        frame = await receiver.read_any(Kind.RECORDS)
        assert frame.correlation == 7
        assert decode_head(frame, pb.Records) == head
        tail = b"".join(content[100 * n : 100 * n + length] for n, length in enumerate(lengths))
        assert frame.tail == tail
        await sending
        # Nothing is left over: the next frame is read from its start.
        await sender.send(Kind.RECORDS, 8, pb.Records())
        assert (await receiver.read_frame(Kind.RECORDS, pb.Records))[0] == 8

    over_a_pair(scenario)


def descriptors_of(path: Path) -> int:
    """How many descriptors this process has of that file."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.samefile(link, path) for link in links if os.path.exists(link))


def test_an_answer_of_many_slices_that_nobody_reads_holds_one_descriptor(file: Path) -> None:
    slices = [slice_of(file, 0, COPIED_BYTES_MAX) for _ in range(500)]

    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        receiver.pause_reading()
        sending = asyncio.ensure_future(sender.send_slices(Kind.RECORDS, 7, pb.Records(), slices))
        await eventually(lambda: sender._unsent() > 0)
        assert descriptors_of(file) == 1
        receiver.resume_reading()
        frame = await receiver.read_any(Kind.RECORDS)
        assert frame.tail == 500 * file.read_bytes()[:COPIED_BYTES_MAX]
        await sending
        assert descriptors_of(file) == 0

    over_a_pair(scenario)


def test_slices_of_two_segments_that_had_one_path_are_each_sent_from_their_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second was put in the place of the first after that one was opened."""
    disk = OsDisk()
    old, new = [Segment(disk, str(file.parent), 0, 1, 1, interval_bytes=4096) for _ in range(2)]
    length, before = COPIED_BYTES_MAX, file.read_bytes()
    slices = [LogSlice(str(file), 0, length, 0, 1, each) for each in (old, old, new)]
    replacement = file.with_name("replacement")
    replacement.write_bytes(after := before[::-1])

    async def swap(*place: int) -> None:
        if replacement.exists():
            old.is_gone = True
            replacement.rename(file)

    monkeypatch.setattr(frame_socket, "make_resident", swap)

    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        sending = asyncio.ensure_future(sender.send_slices(Kind.RECORDS, 7, pb.Records(), slices))
        frame = await receiver.read_any(Kind.RECORDS)
        assert frame.tail == 2 * before[:length] + after[:length]
        await sending
        with pytest.raises(UnreadableSliceError):
            await sender.send_slices(Kind.RECORDS, 8, pb.Records(), slices)

    over_a_pair(scenario)


@pytest.mark.parametrize(
    ("length", "wait"), [(100, 1), (COPIED_BYTES_MAX + 1, 1), (COPIED_BYTES_MAX + 1, 2)]
)
def test_nothing_is_sent_of_a_slice_that_is_cut_while_the_disk_is_waited_for(
    file: Path, length: int, wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its own bytes, or for those of the next slice."""
    segment = Segment(OsDisk(), str(file.parent), 0, 1, 1, interval_bytes=4096)
    slices = [LogSlice(str(file), at, length, 0, 1, segment) for at in (length, 0)]
    looked_for = []

    async def cut(*place: int) -> None:
        looked_for.append(place)
        if len(looked_for) == wait:
            segment.cuts = (length,)  # And the file grows anew.

    monkeypatch.setattr(frame_socket, "make_resident", cut)

    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        monkeypatch.setattr(sender, "read_short", lambda slices: None if slices else b"")
        with pytest.raises(UnreadableSliceError) as raised:
            await sender.send_slices(Kind.RECORDS, 0, pb.Records(), slices)
        assert raised.value.slice is slices[0]
        assert isinstance(raised.value.__cause__, FileNotFoundError)
        await sender.send(Kind.RECORDS, 2, pb.Records())
        assert (await receiver.read_frame(Kind.RECORDS, pb.Records))[0] == 2

    over_a_pair(scenario)


def test_what_is_cut_while_its_reader_is_slow_is_sent_as_zeros(file: Path) -> None:
    segment = Segment(OsDisk(), str(file.parent), 0, 1, 1, interval_bytes=4096)
    content = file.read_bytes()
    half = len(content) // 2
    slices = [LogSlice(str(file), at, half, 0, 1, segment) for at in (0, half)] * 4

    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        receiver.pause_reading()
        sending = asyncio.ensure_future(sender.send_slices(Kind.RECORDS, 7, pb.Records(), slices))
        await eventually(lambda: sender._unsent() > 0)
        segment.cuts = (half,)
        receiver.resume_reading()
        frame = await receiver.read_any(Kind.RECORDS)
        await sending
        whole = content[: 2 * half]
        assert len(frame.tail) == 4 * len(whole)
        assert frame.tail[-2 * half :] == content[:half] + bytes(half)

    over_a_pair(scenario)


@pytest.mark.parametrize("length", [100, COPIED_BYTES_MAX + 1])
def test_nothing_is_sent_of_a_file_that_has_become_shorter(file: Path, length: int) -> None:
    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        os.truncate(file, 50)
        with pytest.raises(UnreadableSliceError):
            await sender.send_slices(Kind.RECORDS, 0, pb.Records(), [slice_of(file, 0, length)])
        await sender.send(Kind.RECORDS, 2, pb.Records())
        assert (await receiver.read_frame(Kind.RECORDS, pb.Records))[0] == 2

    over_a_pair(scenario)


@pytest.mark.parametrize("length", [100, COPIED_BYTES_MAX + 1])
def test_nothing_is_sent_of_a_frame_whose_file_cannot_be_read(file: Path, length: int) -> None:
    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        slices = [slice_of(file, 0, length), slice_of(file.with_name("absent"), 0, length)]
        with pytest.raises(StorageError):
            await sender.send_slices(Kind.RECORDS, 1, pb.Records(), slices)
        await sender.send(Kind.RECORDS, 2, pb.Records())
        assert (await receiver.read_frame(Kind.RECORDS, pb.Records))[0] == 2

    over_a_pair(scenario)


def test_small_frames_that_arrive_together_are_read_one_by_one(file: Path) -> None:
    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        for correlation in range(100):
            await sender.send(Kind.POSITIONS, correlation, pb.Positions(dropped=[correlation]))
        for correlation in range(100):
            found = await receiver.read_frame(Kind.POSITIONS, pb.Positions)
            assert found == (correlation, pb.Positions(dropped=[correlation]))

    over_a_pair(scenario)


def test_a_paused_reader_is_told_that_its_connection_was_ended() -> None:
    async def scenario(sender: FrameSocket, receiver: FrameSocket) -> None:
        reading = asyncio.ensure_future(
            receiver.read_each(Kind.POSITIONS, pb.Positions, lambda head, tail: None)
        )
        await asyncio.sleep(0)
        receiver.pause_reading()
        receiver.shut_down()
        with pytest.raises(EOFError):
            async with asyncio.timeout(60):
                await reading

    over_a_pair(scenario)
