"""A leader's session with one follower, over a real socket pair: what is said, and when."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jetstream_protocol import frames
from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.clocks import MonotonicClock
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.commands import AlterStream
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.replication.core.fixed_layout import decode_answers, encode_positions
from jetstream_server.replication.core.messages import Answer, FetchRequest, Refused, length_of
from jetstream_server.replication.core.wire import (
    POSITIONS_MAX,
    part_from_proto,
    position_to_proto,
)
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.replication.drivers.leader_stream import (
    BEHIND_MAX,
    NOTICE_US,
    REFUSED_MAX,
    LeaderStream,
)
from jetstream_server.replication.replica import Replica
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import connected_pair, loop_clock, on_virtual_loop
from tests.unit.metadata.cluster import Cluster

FOLLOWER = 1


class Follower:
    """The other end: sends positions, and keeps what it is told, as (high watermark, values)."""

    def __init__(
        self, node: Node, replica: Replica, sock: socket.socket, leaders_end: FrameSocket
    ) -> None:
        self.node = node
        self.leaders_end = leaders_end
        self.replica = replica
        self.told: list[tuple[int, list[bytes | None]]] = []
        self.errors: list[str] = []
        self.layout = _layout[0]
        self.kinds: list[Kind] = []
        """Of the frames that it was sent."""
        self.has: Counter[int] = Counter()
        """How many values it was sent, by stream."""
        self.connection = FrameSocket(sock, frames.RESPONSE_BYTES_MAX)
        self.session: asyncio.Future[None] | None = None
        """The leader's end of it, as it runs."""

    async def ask(
        self, offset: int, *, flushed: int = 0, stream: StreamMetadata | None = None
    ) -> None:
        stream = stream or self.replica.stream
        last_epoch = stream.leader_epoch if offset else -1
        position = FetchRequest(
            stream.id, NodeId(FOLLOWER), 0, stream.leader_epoch, offset, last_epoch, flushed, 0
        )
        kind, head = Kind.FIXED_POSITIONS, encode_positions([position])
        if self.layout == "protobuf":
            message = pb.Positions(positions=[position_to_proto(position)])
            kind, head = Kind.POSITIONS, message.SerializeToString()
        rest = self.connection.start_encoded(kind, 0, head)
        assert rest is None

    async def listen(self) -> None:
        kinds = (Kind.RECORDS, Kind.FIXED_RECORDS)
        await self.connection.take_each(self._hear, *kinds[: 1 + (self.layout == "fixed")])

    def _hear(self, frame: Frame) -> bool:
        start, parts = 0, decoded(frame)
        self.kinds.append(Kind(frame.kind))
        for part in parts:
            if isinstance(part, Refused):
                self.errors.append(part.error.code)
                continue
            found = iterate(bytes(frame.tail[start : start + length_of(part)]))
            values = [value for batch in found for value in batch.values()]
            self.told.append((part.snapshot.high_watermark, values))
            self.has[part.request.stream_id] += len(values)
            start += length_of(part)
        return False


def decoded(frame: Frame) -> Sequence[Answer | Refused]:
    if frame.kind == Kind.FIXED_RECORDS:
        return decode_answers(frame.head, len(frame.tail), FOLLOWER, 0)
    return [part_from_proto(each, FOLLOWER, 0) for each in pb.Records.FromString(frame.head).parts]


_layout = ["protobuf"]


@pytest.fixture(autouse=True, params=["protobuf", "fixed"])
def layout(request: pytest.FixtureRequest) -> str:
    """Everything holds on connections of both layouts."""
    _layout[0] = request.param
    return _layout[0]


class AppendsOnCommit:
    """A publisher of one message at a time: the next one goes out when the last is committed."""

    def __init__(self, node: Node, values: list[bytes]) -> None:
        self.node = node
        self.values = values

    def committed(self, replica: Replica) -> None:
        if self.values:
            self.node.append(replica, self.values.pop(0), flush=False)


@asynccontextmanager
async def followed(
    tmp_path: Path,
    *,
    listening: bool = True,
    copy_bytes_per_second: int = 0,
    clock: MonotonicClock = loop_clock,
) -> AsyncIterator[Follower]:
    """A stream with two replicas, led here, and the follower on the other node."""
    node = Node(tmp_path / "streams")
    node.cluster = Cluster(nodes=2)
    node.start()
    stream = node.cluster.create(replicas=(0, 1), config={"flush": "none"})
    node.apply()
    replica = node.replica(stream)
    sock, accepted = connected_pair()
    for each in (sock, accepted):  # Little, so that it is soon full.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
    disk = OsDisk()
    connection = FrameSocket(accepted, frames.REQUEST_BYTES_MAX, disk)
    incarnation = node.cluster.registry.nodes[replica.stream.replicas[1]].incarnation
    session = LeaderStream(
        connection, node.replicas, follower=FOLLOWER, incarnation=incarnation,
        copy_turns=CopyTurns(lambda: copy_bytes_per_second, clock), monotonic_clock=clock,
        fixed_layout=_layout[0] == "fixed",
    )  # fmt: skip
    follower = Follower(node, replica, sock, connection)
    tasks = [asyncio.ensure_future(session.run())]
    follower.session = tasks[0]
    if listening:
        tasks.append(asyncio.ensure_future(follower.listen()))
    try:
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection.close()
        follower.connection.close()
        node.replicas.close()
        disk.close()


@on_virtual_loop
async def test_records_take_a_risen_high_watermark_along(tmp_path: Path) -> None:
    async with followed(tmp_path) as follower:
        follower.replica.on_commit = AppendsOnCommit(follower.node, [b"b", b"c"]).committed
        follower.node.append(follower.replica, b"a", flush=False)
        for offset in range(4):
            await follower.ask(offset)
            await eventually(lambda asked=offset: len(follower.told) > asked)  # type: ignore[misc]
        assert follower.told == [(0, [b"a"]), (1, [b"b"]), (2, [b"c"]), (3, [])]


@on_virtual_loop
async def test_a_notice_that_is_never_due_is_looked_for_less_and_less_often(tmp_path: Path) -> None:
    """Until its time has come: a follower is told soon, whatever the pause has become."""
    now_us = MonotonicUs(0)
    looks = 0

    def clock() -> MonotonicUs:
        nonlocal looks
        looks += 1
        return now_us

    async with followed(tmp_path, clock=clock) as follower:
        follower.node.append(follower.replica, b"a", flush=False)
        await follower.ask(0)
        await eventually(lambda: follower.told == [(0, [b"a"])])
        await follower.ask(1)
        await eventually(lambda: follower.replica.high_watermark == 1)
        looks = 0
        await asyncio.sleep(0.2)
        assert 1 <= looks <= 30, "not each millisecond"
        now_us = MonotonicUs(NOTICE_US)
        await eventually(lambda: follower.told[-1] == (1, []), seconds=5.0)


@on_virtual_loop
async def test_a_segment_that_no_descriptor_is_left_for_is_refused_and_it_is_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed(tmp_path) as follower:
        reasons: list[BaseException | None] = []
        monkeypatch.setattr(
            follower.node.replicas,
            "suspect",
            lambda stream_id, offset, error: reasons.append(error.__cause__),
        )
        follower.node.append(follower.replica, b"a", flush=False)
        with no_descriptor_left():
            await follower.ask(0)
            await eventually(lambda: bool(follower.errors))
        assert follower.errors == ["unavailable"]
        await follower.ask(0)
        await eventually(lambda: follower.told == [(0, [b"a"])])
        assert [lacks_descriptors(reason) for reason in reasons] == [True]


@on_virtual_loop
async def test_what_was_just_appended_is_sent_without_reading_it(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory, to a follower that knows the layout of that frame; one at a time."""
    reads: list[int] = []

    def read_resident(self: OsDisk, path: str, position: int, length: int) -> bytearray:
        reads.append(position)
        return bytearray(self.pread(path, position, length))

    async with followed(tmp_path) as follower:
        await follower.ask(0)
        await eventually(lambda: follower.told == [(0, [])])
        monkeypatch.setattr(OsDisk, "read_resident", read_resident)
        for number, value in enumerate((b"a", b"b", b"c")):
            follower.node.append(follower.replica, value, flush=False)
            await eventually(lambda sent=number: follower.has.total() == sent + 1)  # type: ignore[misc]
            await follower.ask(number + 1)
            await eventually(lambda sent=number: follower.replica.high_watermark == sent + 1)  # type: ignore[misc]
        sent = [values for _, values in follower.told if values]
        assert sent == [[b"a"], [b"b"], [b"c"]]
        assert len(reads) == (3 if layout == "protobuf" else 0)
        is_fixed = [kind is Kind.FIXED_RECORDS for kind in follower.kinds]
        assert all(is_fixed) if layout == "fixed" else not any(is_fixed)


@on_virtual_loop
async def test_what_was_appended_while_an_answer_was_under_way_is_not_sent_twice(
    tmp_path: Path,
) -> None:
    async with followed(tmp_path) as follower:
        await follower.ask(0)
        await eventually(lambda: follower.told == [(0, [])])
        for value in (b"a", b"b", b"c"):
            follower.node.append(follower.replica, value, flush=False)
        await eventually(lambda: follower.has.total() == 1)
        await follower.ask(1)
        await eventually(lambda: follower.has.total() == 3)
        assert [values for _, values in follower.told if values] == [[b"a"], [b"b", b"c"]]


@on_virtual_loop
async def test_a_follower_whose_log_differs_is_told_so_and_sent_nothing(tmp_path: Path) -> None:
    """Its position is where the next record is appended, but under an epoch that is not known."""
    async with followed(tmp_path) as follower:
        follower.node.append(follower.replica, b"a", flush=False)
        of = follower.replica.stream
        position = FetchRequest(
            of.id, NodeId(FOLLOWER), 0, of.leader_epoch, 1, of.leader_epoch + 5, 0, 0
        )
        message = pb.Positions(positions=[position_to_proto(position)])
        await follower.connection.send(Kind.POSITIONS, 0, message)
        await eventually(lambda: bool(follower.kinds))
        follower.node.append(follower.replica, b"b", flush=False)
        await follower.ask(0)
        await eventually(lambda: follower.has.total() == 2)
        assert [values for _, values in follower.told if values] == [[b"a", b"b"]]


@on_virtual_loop
async def test_one_answer_with_records_is_under_way_at_a_time(tmp_path: Path) -> None:
    async with followed(tmp_path) as follower:
        follower.node.append(follower.replica, b"a", flush=False)
        await follower.ask(0)
        await eventually(lambda: len(follower.told) == 1)
        for value in (b"b", b"c"):
            follower.node.append(follower.replica, value, flush=False)
            await asyncio.sleep(0.01)
        await follower.ask(0, flushed=1)  # Only what is flushed differs: it is answered already.
        await asyncio.sleep(0.05)
        assert follower.told == [(0, [b"a"])]
        await follower.ask(1)
        await eventually(lambda: len(follower.told) == 2)
        assert follower.told[1] == (1, [b"b", b"c"])


@on_virtual_loop
async def test_a_waiting_follower_is_sent_what_is_appended(tmp_path: Path) -> None:
    async with followed(tmp_path) as follower:
        await follower.ask(0)
        await eventually(lambda: follower.told == [(0, [])])
        follower.node.append(follower.replica, b"a", flush=False)
        await eventually(lambda: follower.told == [(0, []), (0, [b"a"])])


@on_virtual_loop
async def test_a_follower_that_asks_for_nothing_there_is_but_reads_is_told_of_each(
    tmp_path: Path,
) -> None:
    async with followed(tmp_path) as follower:
        unknown = [pb.Positions.Position(stream_id=900 + n) for n in range(500)]
        for _ in range(4 * REFUSED_MAX // 500):
            await follower.connection.send(Kind.POSITIONS, 0, pb.Positions(positions=unknown))
        expected = 4 * REFUSED_MAX // 500 * 500
        await eventually(lambda: len(follower.errors) == expected)
        assert set(follower.errors) == {"not_leader"}


@on_virtual_loop
async def test_a_follower_that_only_talks_is_read_no_further(tmp_path: Path) -> None:
    async with followed(tmp_path, listening=False) as follower:
        message = pb.Positions(
            positions=[pb.Positions.Position(stream_id=900 + n) for n in range(500)]
        )

        async def talk() -> None:
            for _ in range(200):
                await follower.connection.send(Kind.POSITIONS, 0, message)

        talking = asyncio.ensure_future(talk())
        received = -1
        while received != follower.leaders_end.bytes_received:
            received = follower.leaders_end.bytes_received
            await asyncio.sleep(0.3)
        assert not talking.done()
        listening = asyncio.ensure_future(follower.listen())
        await eventually(lambda: len(follower.errors) == 200 * 500, 30)
        await talking
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@on_virtual_loop
async def test_a_frame_of_more_positions_than_followers_send_ends_the_session(
    tmp_path: Path,
) -> None:
    """Each is work for the leader, whose other clients wait meanwhile."""
    async with followed(tmp_path, listening=False) as follower:
        position = pb.Positions.Position(stream_id=900)
        most = pb.Positions(positions=[position] * POSITIONS_MAX)
        await follower.connection.send(Kind.POSITIONS, 0, most)
        _, records = await follower.connection.read_frame(Kind.RECORDS, pb.Records)
        assert len(records.parts) > 0
        most.positions.append(position)
        await follower.connection.send(Kind.POSITIONS, 0, most)
        assert follower.session is not None
        with pytest.raises(InvalidRequestError, match="more than 500 positions"):
            await follower.session


@on_virtual_loop
async def test_where_the_logs_part_it_is_told_once_more_how_the_leader_stands(
    tmp_path: Path,
) -> None:
    """A follower that was cut to the leader's end hears so, though there is nothing to send."""
    async with followed(tmp_path) as follower:
        follower.node.cluster.change_isr(follower.replica.stream, (0,))
        follower.node.apply()
        follower.node.append(follower.replica, b"a", flush=False)
        for offset in (5, 1):
            told = len(follower.told)
            await follower.ask(offset)
            await eventually(lambda told=told: len(follower.told) > told)


VALUE = b"x" * 100_000
PER_SECOND = 1_500_000
"""With the limit, an answer (1 MiB) takes two thirds of a second."""


async def filled(follower: Follower, values: int) -> None:
    """Values that are committed without the follower, which has left the ISR."""
    follower.node.cluster.change_isr(follower.replica.stream, (0,))
    follower.node.apply()
    for _ in range(values):
        follower.node.append(follower.replica, VALUE, flush=False)
        await asyncio.sleep(0)


async def copied(follower: Follower) -> int:
    """Ask for all that there is, as a replica does that begins anew. Returns how many answers had
    records."""
    answers = offset = 0
    while offset < follower.replica.log.log_end_offset:
        told = len(follower.told)
        await follower.ask(offset)
        await eventually(lambda told=told: any(each[1] for each in follower.told[told:]))
        offset += sum(len(each[1]) for each in follower.told[told:])
        answers += 1
    return answers


@on_virtual_loop
async def test_copies_take_as_long_as_their_limit_says(tmp_path: Path) -> None:
    async with followed(tmp_path, copy_bytes_per_second=PER_SECOND) as follower:
        await filled(follower, 24)
        begun = asyncio.get_running_loop().time()
        answers = await copied(follower)
        took = asyncio.get_running_loop().time() - begun
        # The last answer is not paid for yet.
        assert answers >= 3
        assert took >= (24 - 11) * len(VALUE) / PER_SECOND - 0.1


@on_virtual_loop
async def test_a_replica_in_sync_is_never_limited(tmp_path: Path) -> None:
    async with followed(tmp_path, copy_bytes_per_second=64 * 1024) as follower:
        begun = asyncio.get_running_loop().time()
        for _ in range(24):
            follower.node.append(follower.replica, VALUE, flush=False)
        assert await copied(follower) >= 3
        assert asyncio.get_running_loop().time() - begun < 10  # With the limit: over 20 s.


@on_virtual_loop
async def test_without_enough_replicas_in_sync_copies_are_not_limited(tmp_path: Path) -> None:
    """Publishers wait for that copy."""
    async with followed(tmp_path, copy_bytes_per_second=64 * 1024) as follower:
        await filled(follower, 24)
        stream = follower.replica.stream
        follower.node.cluster.do(
            AlterStream(
                stream_id=stream.id,
                stream_epoch=stream.stream_epoch,
                config={"min_insync_replicas": 2},
            )
        )
        follower.node.apply()
        begun = asyncio.get_running_loop().time()
        assert await copied(follower) >= 3
        assert asyncio.get_running_loop().time() - begun < 10


@on_virtual_loop
async def test_a_copy_that_has_everything_is_sent_what_is_new_at_once(tmp_path: Path) -> None:
    """An observer is never in sync, and must not lag because others are copied."""
    async with followed(tmp_path, copy_bytes_per_second=64 * 1024) as follower:
        await filled(follower, 12)
        begun = asyncio.get_running_loop().time()
        await follower.ask(12)
        for offset in range(12, 36):
            told = len(follower.told)
            follower.node.append(follower.replica, VALUE, flush=False)
            await eventually(lambda told=told: any(each[1] for each in follower.told[told:]))
            await follower.ask(offset + 1)
        assert asyncio.get_running_loop().time() - begun < 10


@on_virtual_loop
async def test_a_copy_that_begins_anew_is_limited_again(tmp_path: Path) -> None:
    async with followed(tmp_path, copy_bytes_per_second=PER_SECOND) as follower:
        await filled(follower, 24)
        await follower.ask(24)
        await asyncio.sleep(0.05)
        begun = asyncio.get_running_loop().time()
        assert await copied(follower) >= 3
        assert asyncio.get_running_loop().time() - begun >= 13 * len(VALUE) / PER_SECOND - 0.1


@on_virtual_loop
async def test_a_follower_that_falls_behind_is_limited_again(tmp_path: Path) -> None:
    """It was frozen, for example: what it lacks is as much as after a restart."""
    async with followed(tmp_path, copy_bytes_per_second=64 * 1024) as follower:
        await filled(follower, 1)
        await follower.ask(1)
        await asyncio.sleep(0.05)
        await filled(follower, 100)
        for _ in range(BEHIND_MAX + 2):
            told = len(follower.told)
            await follower.ask(follower.has[follower.replica.stream.id] + 1)
            try:
                await eventually(lambda told=told: len(follower.told) > told, 0.5)  # type: ignore[misc]
            except AssertionError:
                break
        else:
            pytest.fail("it is not limited")


@on_virtual_loop
async def test_a_stream_that_is_published_to_does_not_overtake_another(tmp_path: Path) -> None:
    async with followed(tmp_path, copy_bytes_per_second=4 * PER_SECOND) as follower:
        node, busy = follower.node, follower.replica
        await filled(follower, 200)
        created = busy.stream
        for name in ("of-the-other", "quiet"):  # They are led in turns.
            config = {"flush": "none"}
            created = node.cluster.create(name, name, replicas=(0, 1), config=config)
        node.cluster.change_isr(created, (0,))
        node.apply()
        quiet = node.replica(created)
        for _ in range(200):
            node.append(quiet, VALUE, flush=False)
            await asyncio.sleep(0)
        ids = (busy.stream.id, quiet.stream.id)
        asked = dict.fromkeys(ids, -1)
        end_at = asyncio.get_running_loop().time() + 2.0
        while asyncio.get_running_loop().time() < end_at:
            node.append(busy, b"x", flush=False)
            for replica in (busy, quiet):
                has = follower.has[replica.stream.id]
                if asked[replica.stream.id] < has:
                    asked[replica.stream.id] = has
                    await follower.ask(has, stream=replica.stream)
            await asyncio.sleep(0.001)
        most, least = max(follower.has[i] for i in ids), min(follower.has[i] for i in ids)
        assert 10 < least >= most - 2 * 11, follower.has  # Two answers at most.
