"""Following a leader that is silent, over a connection; the leader is a few lines here."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol import frames
from jetstream_protocol.errors import StorageError, StorageFullError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import StreamId
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.net.node_link import NodeIdentity, proofs_of
from jetstream_server.replication.core.closeness import Closeness
from jetstream_server.replication.core.follower import Append, Later
from jetstream_server.replication.core.messages import LeaderSnapshot, OutOfRange
from jetstream_server.replication.core.wire import part_to_proto
from jetstream_server.replication.drivers import fetcher
from jetstream_server.replication.drivers.fetcher import RETRY_SECONDS, Fetcher
from jetstream_server.replication.replica import Replica
from tests.support.loops import eventually
from tests.support.virtual_time import connected_pair, loop_clock, on_virtual_loop
from tests.unit.replication.cores import Log, request, stream

SILENCE_US = 300_000
IDENTITY = NodeIdentity(1, 7, "cluster", b"secret")


class Leader:
    """Greets as node 0 should, then does what the test says with each connection."""

    def __init__(self, then: Callable[[FrameSocket], object]) -> None:
        self.greeted = 0
        self._then = then

    async def serve(self, sock: socket.socket) -> None:
        connection = FrameSocket(sock, frames.REQUEST_BYTES_MAX)
        try:
            await connection.read_frame(Kind.HELLO, pb.Hello)
            nonce = bytes(32)
            hello = pb.HelloReply(node_id=0, cluster_id="cluster", nonce=nonce)
            await connection.send(Kind.HELLO_REPLY, 0, hello)
            _, node = await connection.read_frame(Kind.NODE_HELLO, pb.NodeHello)
            proof = proofs_of(NodeIdentity(1, 7, "cluster", b"secret"), nonce + node.nonce)[
                "leader"
            ]
            await connection.send(Kind.NODE_HELLO_REPLY, 0, pb.NodeHelloReply(proof=proof))
            self.greeted += 1
            await self._then(connection)  # type: ignore[misc]
        except (EOFError, OSError):
            pass
        finally:
            connection.close()


async def dialled(leader: Leader, serving: set[asyncio.Task[None]]) -> FrameSocket:
    near, far = connected_pair()
    serving.add(asyncio.create_task(leader.serve(far)))
    return FrameSocket(near, frames.RESPONSE_BYTES_MAX)


@asynccontextmanager
async def followed(leader: Leader) -> AsyncIterator[Fetcher]:
    serving: set[asyncio.Task[None]] = set()
    following = Fetcher(
        0,
        lambda: ("node-0", 1),
        IDENTITY,
        dial=lambda _: dialled(leader, serving),
        monotonic_clock=loop_clock,
        silent=lambda _: None,
    )
    try:
        yield following
    finally:
        await following.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "SILENCE_MAX_US", SILENCE_US)


@on_virtual_loop
async def test_a_leader_that_falls_silent_is_dialled_anew() -> None:
    async def say_nothing(connection: FrameSocket) -> None:
        await asyncio.sleep(60)

    leader = Leader(say_nothing)
    async with followed(leader) as following:
        following.follow(follower_of(isr=(0, 1, 2)))
        await eventually(lambda: leader.greeted == 3)


@on_virtual_loop
async def test_a_node_is_dialled_while_there_is_a_stream_to_follow() -> None:
    """Nobody else may ever be there. What is connected stays so: it may lead again."""
    connections: list[FrameSocket] = []

    async def hang_up_when_told(connection: FrameSocket) -> None:
        connections.append(connection)
        while True:
            await connection.read_frame(Kind.POSITIONS, pb.Positions)
            await connection.send(Kind.RECORDS, 0, pb.Records())

    leader = Leader(hang_up_when_told)
    async with followed(leader) as following:
        await asyncio.sleep(3 * RETRY_SECONDS)
        assert leader.greeted == 0
        following.follow(follower_of(isr=(0, 1, 2)))
        await eventually(lambda: leader.greeted == 1)
        connections[0].shut_down()
        await eventually(lambda: leader.greeted == 2)
        following.drop(1)
        await asyncio.sleep(2 * SILENCE_US / 1e6)
        assert leader.greeted == 2, "the connection is kept"
        connections[1].shut_down()
        await asyncio.sleep(2 * SILENCE_US / 1e6)
        assert leader.greeted == 2
        following.follow(follower_of(isr=(0, 1, 2)))
        await eventually(lambda: leader.greeted == 3)


@on_virtual_loop
async def test_a_leader_counts_as_silent_only_since_there_is_a_stream_to_follow() -> None:
    now_us = [0]
    silent: list[list[Replica]] = []
    following = Fetcher(
        0,
        lambda: None,  # It is not registered.
        IDENTITY,
        dial=cast(Any, None),
        monotonic_clock=lambda: now_us[0],
        silent=silent.append,
    )
    replica = follower_of(isr=(0, 1, 2))
    try:
        for us in (SILENCE_US - 1, 2 * SILENCE_US - 2):
            now_us[0] = us
            following.follow(replica)
            await asyncio.sleep(2 * SILENCE_US / 1e6)
        assert not silent
        now_us[0] = 2 * SILENCE_US
        await eventually(lambda: silent == [[replica]])
    finally:
        await following.close()


@on_virtual_loop
async def test_a_leader_whose_answer_takes_long_is_not_hung_up_on() -> None:
    async def send_slowly(connection: FrameSocket) -> None:
        head = pb.Records(parts=[pb.Records.Part(stream_id=5, length=1 << 20)])
        start = frames.encode(Kind.RECORDS, 0, head.SerializeToString(), 1 << 20)
        await connection._write(start, 0)
        for _ in range(30):  # Its tail follows, a byte at a time.
            await connection._write(b"x", 0)
            await asyncio.sleep(SILENCE_US / 5e6)
        leader.greeted += 100

    leader = Leader(send_slowly)
    async with followed(leader) as following:
        following.follow(follower_of(isr=(0, 1, 2)))
        await eventually(lambda: leader.greeted > 1)
        assert leader.greeted == 101


@on_virtual_loop
async def test_an_idle_follower_says_that_it_is_there_and_again_where_it_stands_out_of_sync() -> (
    None
):
    """Its leader may not have counted its position: the follower did not yet know that it had left
    the ISR."""
    heard: list[tuple[int, ...]] = []

    async def listen(connection: FrameSocket) -> None:
        while True:
            _, positions = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            heard.append(tuple(position.stream_id for position in positions.positions))
            await connection.send(Kind.RECORDS, 0, pb.Records())

    leader = Leader(listen)
    async with followed(leader) as following:
        following.follow(follower_of(isr=(0, 1, 2)))
        await eventually(lambda: heard.count(()) >= 2)
        following.follow(follower_of(isr=(0, 2), stream_id=9))
        await eventually(lambda: heard.count((9,)) >= 3)
        assert sum(1 in streams for streams in heard) == 1, "who is in sync need not repeat itself"
        assert leader.greeted == 1


@on_virtual_loop
async def test_what_waits_for_the_metadata_is_asked_for_again() -> None:
    """The leader has answered this position, and would not do so again by itself."""
    dropped = 0

    async def answer(connection: FrameSocket) -> None:
        nonlocal dropped
        while True:
            _, positions = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            dropped += len(positions.dropped)
            if positions.positions:
                part = OutOfRange(request(1, 5, incarnation=7), LeaderSnapshot(9, 6, 8))
                await connection.send(Kind.RECORDS, 0, pb.Records(parts=[part_to_proto(part)]))

    replica = follower_of(isr=(0, 1, 2))
    cast(Any, replica).accept = lambda *_: Later()
    async with followed(Leader(answer)) as following:
        following.follow(replica)
        await eventually(lambda: dropped >= 2)


@on_virtual_loop
async def test_an_observer_says_once_where_it_stands_and_knows_when_its_leader_is_gone() -> None:
    """Nobody waits for it to join."""
    heard: list[tuple[int, ...]] = []

    async def listen(connection: FrameSocket) -> None:
        for _ in range(4):
            _, positions = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            heard.append(tuple(position.stream_id for position in positions.positions))
            await connection.send(Kind.RECORDS, 0, pb.Records())

    leader = Leader(listen)
    async with followed(leader) as following:
        observer = follower_of(isr=(0, 2), replicas=(0, 2), observers=(1,))
        observer.closeness.heard(5, 5, 0)
        observer.closeness.reached(5)
        following.follow(observer)
        await eventually(lambda: leader.greeted == 2)
        assert sum(1 in streams for streams in heard[:4]) == 1
        assert not observer.closeness.holds(0)


@on_virtual_loop
@pytest.mark.parametrize("grows", [True, False])
async def test_what_was_appended_before_the_disk_was_full_is_to_be_flushed(grows: bool) -> None:
    accepted: list[bool] = []
    replica = follower_of(isr=(0, 1, 2))
    replica.accepted = lambda: accepted.append(True)  # type: ignore[method-assign]

    def accept(*_: object) -> None:
        replica.log.log_end_offset += grows
        raise StorageFullError("the disk is full")

    replica.accept = accept  # type: ignore[method-assign]
    sent = asyncio.Event()

    async def send(connection: FrameSocket) -> None:
        await connection.read_frame(Kind.POSITIONS, pb.Positions)
        part = pb.Records.Part(stream_id=1, leader_epoch=3, fetch_offset=5)
        await connection.send(Kind.RECORDS, 0, pb.Records(parts=[part]))
        await connection.read_frame(Kind.POSITIONS, pb.Positions)
        sent.set()
        await asyncio.sleep(60)

    async with followed(Leader(send)) as following:
        following.follow(replica)
        await sent.wait()
    assert bool(accepted) == grows


@on_virtual_loop
@pytest.mark.parametrize("changes", [True, False], ids=["its metadata changes", "time passes"])
async def test_who_has_no_room_says_so_at_once_and_until_it_has_appended(
    monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    monkeypatch.setattr(fetcher, "FULL_RETRY_SECONDS", 60.0 if changes else 0.05)
    replica = follower_of(isr=(0, 1, 2))
    replica.must_confirm_flush = False
    has_room = False

    def accept(*_: object) -> Append:
        if not has_room:
            raise StorageFullError("the disk is full")
        return Append(3, has_records=True)

    replica.accept = accept  # type: ignore[method-assign,assignment]
    said: asyncio.Queue[pb.Positions] = asyncio.Queue()

    async def answer(connection: FrameSocket) -> None:
        """As a leader does: one answer to a position, and another if the stream was dropped."""
        answered = False
        while True:
            _, positions = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            if positions.positions:
                said.put_nowait(positions)
                if not answered or positions.dropped:
                    answered = True
                    part = pb.Records.Part(stream_id=1, leader_epoch=3, fetch_offset=5)
                    await connection.send(Kind.RECORDS, 0, pb.Records(parts=[part]))

    async with followed(Leader(answer)) as following:
        following.follow(replica)
        first, told = await said.get(), await said.get()
        assert [each.positions[0].cannot_append for each in (first, told)] == [False, True]
        has_room = True
        if changes:
            following.follow(replica)
        asked, done = await said.get(), await said.get()
        assert list(asked.dropped) == [1], "the leader would not answer again"
        assert [each.positions[0].cannot_append for each in (asked, done)] == [True, False]


@on_virtual_loop
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
async def test_a_log_fails_if_it_cannot_be_read_unless_only_a_descriptor_was_missing(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A follower must read the end of its log before the first append after a clean stop."""
    monkeypatch.setattr(fetcher, "FULL_RETRY_SECONDS", 0.01)
    asked_again = asyncio.Event()
    replica = follower_of(isr=(0, 1, 2))

    def accept(*_: object) -> None:
        raise StorageError("reading 1") from OSError(error, "")

    replica.accept = accept  # type: ignore[method-assign]
    failed: list[StorageError] = []
    replica.fail = failed.append  # type: ignore[method-assign]

    async def send(connection: FrameSocket) -> None:
        await connection.read_frame(Kind.POSITIONS, pb.Positions)
        part = pb.Records.Part(stream_id=1, leader_epoch=3, fetch_offset=5)
        await connection.send(Kind.RECORDS, 0, pb.Records(parts=[part]))
        while True:
            _, asked = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            if list(asked.dropped) == [1]:
                asked_again.set()

    async with followed(Leader(send)) as following:
        following.follow(replica)
        if error == errno.EMFILE:
            await asked_again.wait()
        else:
            await eventually(lambda: bool(failed))
    assert bool(failed) == (error == errno.EIO)


@on_virtual_loop
@pytest.mark.parametrize("isr", [(0, 2), (0, 1, 2)])
async def test_a_refused_stream_is_asked_for_ever_less_often(isr: tuple[int, ...]) -> None:
    """Also one that is out of sync, whose position is repeated: each repetition is refused too."""
    refusals: dict[int, list[float]] = {1: [], 2: []}
    dropped: list[list[int]] = []

    async def refuse(connection: FrameSocket) -> None:
        while True:
            _, positions = await connection.read_frame(Kind.POSITIONS, pb.Positions)
            if any(position.stream_id == 1 for position in positions.positions):
                dropped.append(list(positions.dropped))
            for position in positions.positions:
                refusals[position.stream_id].append(asyncio.get_running_loop().time())
            parts = [
                pb.Records.Part(
                    stream_id=position.stream_id,
                    leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    error=common_pb2.Error(code="unavailable", message="cannot read"),
                )
                for position in positions.positions
            ]
            await connection.send(Kind.RECORDS, 0, pb.Records(parts=parts))

    async with followed(Leader(refuse)) as following:
        following.follow(follower_of(isr))
        following.follow(follower_of(isr, stream_id=2))
        await asyncio.sleep(4)
        for asked in refusals.values():
            pauses = [after - before for before, after in pairwise(asked)]
            assert len(pauses) >= 4, "it is asked for again"
            assert pauses[0] < 5 * RETRY_SECONDS, "soon at first"
            assert max(pauses) > 10 * RETRY_SECONDS
            assert len(asked) <= 12
        following.follow(follower_of(isr, leader_epoch=4))
        count = len(refusals[1])
        dropped.clear()
        await eventually(lambda: bool(dropped))
        assert 1 in dropped[0], "the leader is to answer the same position again"
        await eventually(lambda: len(refusals[1]) >= count + 3)
        assert refusals[1][count + 2] - refusals[1][count] < 10 * RETRY_SECONDS, "begun anew"


def follower_of(isr: tuple[int, ...], stream_id: int = 1, **fields: Any) -> Replica:
    """Node 1's replica of a stream that node 0 leads."""
    metadata = replace(stream(isr), id=StreamId(stream_id), **fields)
    return cast(
        Replica,
        SimpleNamespace(
            stream=metadata,
            position=lambda: request(1, 5, stream_id=stream_id),
            closeness=Closeness(0),
            log=Log(log_end_offset=5),
            accepted=lambda: None,
            fail=lambda error: None,
        ),
    )
