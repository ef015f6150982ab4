"""Readers that wait while a lossy election cuts the log and other records take their place."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol import frames
from jetstream_protocol.batch import decode_header, encode, iterate
from jetstream_protocol.errors import CorruptBatchError, DivergedError, UnavailableError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_protocol.record_filter import RecordFilter
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.segment import LogSlice
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving import filtered_fetch
from jetstream_server.serving.dataplane.connection import Connection
from jetstream_server.serving.dataplane.server import DataPlaneServer
from jetstream_server.serving.filtered_fetch import Filtered, FilteredFetches
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.reads_service import ReadsService
from jetstream_server.serving.grpc.response_memory import (
    PEER_BYTES_MAX,
    Reservation,
    ResponseMemoryLimiter,
)
from jetstream_server.serving.long_poll import FetchPosition, LongPoll
from jetstream_server.serving.reader_position import ReaderPosition, position_after
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.log_batches import batch, stamped
from tests.support.loops import eventually, on_loop
from tests.support.node import Node
from tests.support.virtual_time import connected_pair, on_virtual_loop

CALL = cast(Call, SimpleNamespace(identity=ANONYMOUS, peer="ipv4:192.0.2.1:5"))
OTHER = RecordFilter("other.>", None)
"""No record of these tests."""
ALL = RecordFilter("a.b", None)
"""All of them."""


class Readers:
    """What serves the readers of a node with one stream, which has five records."""

    def __init__(self, folder: Path, *, leads: bool = True) -> None:
        node = self.node = Node(folder / "streams", nodes=2)
        node.start()
        if not leads:
            node.create("first", "first.>", replicas=(0, 1))  # The other node leads the second one.
        self.replica = node.create(replicas=(0, 1))
        assert (self.replica.leadership is not None) == leads
        self.epoch = self.replica.stream.leader_epoch
        access = open_to_all()
        self.fetches = LongPoll(lambda: True, access)
        self.filtered = FilteredFetches(self.fetches)
        self.memory = ResponseMemoryLimiter(lambda peer: None)
        self.access = StreamAccess(access, node.cluster.registry)
        self.service = ReadsService(node.replicas, self.fetches, self.access, self.memory)
        self.grow(5)

    def grow(self, count: int) -> None:
        """That many committed records, each in a batch of its own, of the present epoch."""
        log = self.replica.log
        for _ in range(count):
            log.append(batch(b"value"), leader_epoch=self.epoch, timestamp_us=WallUs(0))
        self.replica._rose(log.log_end_offset)

    def lose(self, end: int, count: int) -> None:
        """Cut the log to `end`, and let another history of `count` records grow."""
        self.replica.log.truncate(end)
        self.replica.high_watermark = min(self.replica.high_watermark, end)
        self.epoch += 1
        self.replica.stream = replace(self.replica.stream, leader_epoch=self.epoch)
        self.grow(count)

    def consume(self, *, decode: bool) -> AsyncIterator[pb.FetchResponse]:
        ref = common_pb2.StreamRef(id=self.replica.stream.id)
        return self.service.Consume(pb.ConsumeRequest(stream=ref, decode=decode), CALL)

    async def waits_for_room(self) -> tuple[asyncio.Future[pb.FetchResponse], Reservation]:
        """A stream's second answer, of one record, that is found and waits for that memory."""
        answers = self.consume(decode=True)
        await anext(answers)
        answer = asyncio.ensure_future(_next(answers))
        await self.waits()
        held = await self.memory.reserve(CALL.peer, PEER_BYTES_MAX, None)
        self.grow(1)
        await eventually(lambda: self.fetches.waiting == 0)
        await asyncio.sleep(0)
        return answer, held

    async def waits(self) -> None:
        await eventually(lambda: self.fetches.waiting == 1)

    @asynccontextmanager
    async def data_plane(self) -> AsyncIterator[tuple[FrameSocket, Connection]]:
        """A client's end of a connection, and the server's."""
        sock, accepted = connected_pair()
        disk = OsDisk()
        server = DataPlaneServer(
            self.node.replicas, self.fetches, self.access, node_id=0, cluster_id="c", secret=b"",
            copy_turns=CopyTurns(lambda: 0, lambda: 0), monotonic_clock=lambda: MonotonicUs(0),
            disk=disk, connections_max=1, connections_per_address=1,
        )._connection(FrameSocket(accepted, frames.REQUEST_BYTES_MAX, disk))  # fmt: skip
        serving = asyncio.ensure_future(server.run())
        client = FrameSocket(sock, frames.RESPONSE_BYTES_MAX)
        try:
            await client.send(Kind.HELLO, 0, dataplane_pb2.Hello(version=frames.PROTOCOL_VERSION))
            await client.read_any(Kind.HELLO_REPLY)
            yield client, server
        finally:
            client.close()
            await serving
            disk.close()

    async def search(self, offset: int, last_epoch: int, wanted: RecordFilter = OTHER) -> Filtered:
        position = FetchPosition(offset, last_epoch, 1 << 20, 1, 5_000)
        return await self.filtered.fetch(self.replica, position, wanted, ANONYMOUS)

    @contextmanager
    def third_look_waits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[], Awaitable[None]]]:
        """Searches look at one record after the other. The third look has read, and waits for the
        end of this block. Gives a function that waits until then."""
        reads, goes_on, pread = itertools.count(1), threading.Event(), CommitLog.pread
        has_read = threading.Event()

        def read(log: CommitLog, found: LogSlice) -> bytes:
            data = pread(log, found)
            if next(reads) == 3:
                has_read.set()
                assert goes_on.wait(60)
            return data

        monkeypatch.setattr(filtered_fetch, "STEP_BYTES", 1)
        monkeypatch.setattr(CommitLog, "pread", read)
        try:
            yield lambda: eventually(has_read.is_set)
        finally:
            goes_on.set()


async def _next(answers: AsyncIterator[pb.FetchResponse]) -> pb.FetchResponse:
    return await anext(answers)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("leads", [True, False])
@on_virtual_loop
async def test_a_stream_of_answers_never_goes_on_in_another_history(
    tmp_path: Path, leads: bool, decode: bool
) -> None:
    readers = Readers(tmp_path, leads=leads)
    answers = readers.consume(decode=decode)
    assert (await anext(answers)).next_offset == 5
    waiting = asyncio.ensure_future(_next(answers))
    await readers.waits()
    readers.lose(2, 6)
    with pytest.raises(DivergedError):
        await waiting


@pytest.mark.parametrize("decode", [True, False])
@on_virtual_loop
async def test_a_history_that_changes_between_two_answers_is_noticed(
    tmp_path: Path, decode: bool
) -> None:
    readers = Readers(tmp_path)
    answers = readers.consume(decode=decode)
    await anext(answers)
    readers.lose(2, 6)
    with pytest.raises(DivergedError):
        await anext(answers)


@on_virtual_loop
async def test_a_stream_of_answers_goes_on_through_new_epochs(tmp_path: Path) -> None:
    readers = Readers(tmp_path)
    answers = readers.consume(decode=True)
    await anext(answers)
    for _ in range(3):
        readers.lose(readers.replica.log.log_end_offset, 2)
        assert len((await anext(answers)).messages) == 2


@pytest.mark.parametrize("decode", [True, False])
@on_virtual_loop
async def test_a_stream_of_answers_goes_on_after_a_gap_in_which_an_epoch_begins(
    tmp_path: Path, decode: bool
) -> None:
    readers = Readers(tmp_path, leads=False)
    answers = readers.consume(decode=decode)
    assert (await anext(answers)).next_offset == 5
    readers.epoch += 1
    readers.replica.log.epochs.assign(readers.epoch, 7)  # Its first records were compacted away.
    after = encode([b"value"], b"a.b", after_gap=True)
    after.stamp(9, readers.epoch, 0)
    readers.replica.log.append_replica(after.to_bytes(), gaps_below=9)
    readers.grow(1)
    assert (await anext(answers)).next_offset == 11


@on_virtual_loop
async def test_records_that_are_replaced_while_their_answer_waits_for_room_are_not_sent(
    tmp_path: Path,
) -> None:
    readers = Readers(tmp_path)
    waiting, held = await readers.waits_for_room()
    readers.lose(2, 6)
    readers.memory.release(held)
    with pytest.raises(DivergedError):
        await waiting


@on_virtual_loop
async def test_records_that_are_cut_off_while_their_answer_waits_for_room_are_not_sent(
    tmp_path: Path,
) -> None:
    readers = Readers(tmp_path, leads=False)
    waiting, held = await readers.waits_for_room()
    readers.lose(5, 2)
    readers.replica.high_watermark = 5  # The new record is not committed yet.
    readers.memory.release(held)
    with pytest.raises(UnavailableError):
        await waiting


@on_virtual_loop
async def test_too_few_records_are_answered_as_they_are_when_the_wait_ends(tmp_path: Path) -> None:
    readers = Readers(tmp_path, leads=False)
    position = FetchPosition(0, -1, 1 << 20, 1 << 20, 300)
    fetching = asyncio.ensure_future(readers.fetches.fetch(readers.replica, position, ANONYMOUS))
    await readers.waits()
    readers.replica.log.truncate(2)
    readers.replica.high_watermark = 2
    found = await fetching
    assert found is not None
    assert found.next_offset == 2


@pytest.mark.parametrize("cut_at", [6, 8])
@on_virtual_loop
async def test_records_that_are_replaced_while_their_answer_waits_after_others_are_not_sent(
    tmp_path: Path, cut_at: int
) -> None:
    """On the data plane. What lies below the cut is sent as it was found."""
    readers = Readers(tmp_path)
    epoch = readers.epoch
    long = batch(random.Random(1).randbytes(900_000))
    readers.replica.log.append(long, leader_epoch=epoch, timestamp_us=WallUs(0))
    readers.grow(4)
    async with readers.data_plane() as (client, server):
        client.pause_reading()
        for offset in [5] * 20 + [7]:
            request = dataplane_pb2.DataFetchRequest(
                stream=common_pb2.StreamRef(id=readers.replica.stream.id),
                offset=offset,
                last_epoch=epoch,
                bytes_max=1,
            )
            await client.send(Kind.FETCH, offset, request)
        await eventually(lambda: len(server._open) > 1)
        await asyncio.sleep(0.05)  # All of them are found, and most wait for their turn.
        readers.lose(cut_at, 4)
        client.resume_reading()
        frame = await client.read_any(Kind.FETCH_REPLY)
        while frame.correlation == 5:
            frame = await client.read_any(Kind.FETCH_REPLY)
    answer = dataplane_pb2.DataFetchResponse.FromString(frame.head)
    if cut_at == 6:
        assert answer.error.code == "diverged"
    else:
        header = decode_header(frame.tail)
        assert (header.base_offset, header.leader_epoch) == (7, epoch)


@pytest.mark.parametrize("leads", [True, False])
@on_virtual_loop
async def test_a_search_never_goes_on_in_another_history(tmp_path: Path, leads: bool) -> None:
    readers = Readers(tmp_path, leads=leads)
    searching = asyncio.ensure_future(readers.search(0, -1))
    await readers.waits()
    epoch = readers.epoch
    readers.lose(2, 6)
    found = await searching
    assert (found.slices, found.next_offset, found.last_epoch) == ([], 5, epoch)
    with pytest.raises(DivergedError):
        await readers.search(found.next_offset, found.last_epoch)


@on_virtual_loop
async def test_a_search_of_records_that_are_replaced_meanwhile_counts_for_nothing(
    tmp_path: Path,
) -> None:
    readers = Readers(tmp_path)
    epoch = readers.epoch
    readers.grow(1)
    async with readers.filtered._looking:
        searching = asyncio.ensure_future(readers.search(5, epoch))
        await asyncio.sleep(0.05)  # It is found, and waits for its turn.
        readers.lose(2, 6)
    with pytest.raises(DivergedError):
        await searching


@on_loop
async def test_records_that_are_replaced_while_a_search_looks_at_them_cost_it_only_that_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(tmp_path)
    epoch = readers.epoch
    with readers.third_look_waits(monkeypatch) as looks:
        searching = asyncio.ensure_future(readers.search(0, -1, ALL))
        await looks()
        readers.lose(1, 3)
    found = await searching
    assert [each.base_offset for each in found.slices] == [0, 1]
    assert [each.is_cut for each in found.slices] == [False, True]
    assert (found.next_offset, found.last_epoch) == (2, epoch)


@on_loop
async def test_a_search_that_begins_below_a_cut_goes_on_with_what_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the data plane."""
    readers = Readers(tmp_path)
    epoch = readers.epoch
    request = dataplane_pb2.DataFetchRequest(
        stream=common_pb2.StreamRef(id=readers.replica.stream.id), filter_subject=ALL.subject
    )
    async with readers.data_plane() as (client, _):
        with readers.third_look_waits(monkeypatch) as looks:
            await client.send(Kind.FETCH, 1, request)
            await looks()
            readers.lose(1, 3)
        frame = await client.read_any(Kind.FETCH_REPLY)
    assert not dataplane_pb2.DataFetchResponse.FromString(frame.head).HasField("error")
    headers = [each.header for each in iterate(frame.tail)]
    assert [each.base_offset for each in headers] == [0, 1, 2, 3]
    assert [each.leader_epoch for each in headers] == [epoch] + [epoch + 1] * 3


def test_a_reader_stands_after_the_last_batch_and_before_the_gap_that_follows() -> None:
    data = stamped(0, b"a", epoch=1) + stamped(1, b"b", b"c", epoch=2)
    assert position_after(data, 9) == ReaderPosition(len(data), 3, 2)
    assert position_after(data, 2) == ReaderPosition(len(data), 3, 2)
    first = decode_header(data).length
    assert position_after(data, 1) == ReaderPosition(first, 1, 1)
    assert position_after(data, 0) is None


def test_a_reader_stands_before_a_damaged_header() -> None:
    first = stamped(0, b"a", epoch=1)
    damaged = bytearray(stamped(1, b"b", epoch=2))
    damaged[20] ^= 1
    with pytest.raises(CorruptBatchError):
        decode_header(damaged)
    assert position_after(first + damaged, 9) == ReaderPosition(len(first), 1, 1)
    assert position_after(bytes(damaged), 9) is None
