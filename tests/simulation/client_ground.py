"""What clients see of a cluster, on simulated time: streams, a registry, and one leader after the
other of `__cursors`, with the shipped coordinator and table of cursors.

Calls are lost, late or repeated on their way, and so are answers. A leader dies with what it had
not committed, or is deposed and does not know yet; what it appends then is never committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.transport.data_connection import Fetched
from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.errors import (
    JetstreamError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2, cursors_pb2, groups_pb2
from jetstream_protocol.generated import dataplane_pb2 as data_pb
from jetstream_protocol.generated.common_pb2 import StreamRef
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.cursors.coordinator import Coordinator
from jetstream_server.cursors.groups import Group
from jetstream_server.cursors.records import (
    GROUP_PREFIX,
    cursor_key,
    group_from_proto,
    group_key,
    group_to_proto,
)
from jetstream_server.cursors.store import COMMIT_SECONDS
from jetstream_server.cursors.table import CursorTable, Entry, Outcome, Write
from jetstream_server.serving.grpc.groups_service import _answer, _heartbeat_of
from tests.property.test_sender import Stream as PublishedStream
from tests.simulation.loop import SimulatedLoop
from tests.simulation.publish_work import MARK
from tests.simulation.queue_work import CALLS as QUEUE_CALLS

if TYPE_CHECKING:
    from tests.simulation.client_work import Clients

Said = Group | cursors_pb2.CommitCursorsRequest.Commit
SUBJECT = b"s"


class SimulatedStream(PublishedStream):
    """A stream of the group. records: the values of all that were ever in it."""

    def __init__(self, stream_id: int) -> None:
        super().__init__()
        self.id = stream_id
        self.records: list[bytes | None] = []
        self.log_start_offset = 0
        self.epoch = 0
        self.is_deleted = False
        self.has_more: list[Callable[[], None]] = []
        self._batches: list[tuple[int, bytes]] = []

    @property
    def name(self) -> str:
        return f"jobs-{self.id}"

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def take(self, data: Batch) -> bytes:
        before = len(self.log)
        ack = super().take(data)
        for stored in self.log[before:]:
            batch = encode([value or b"" for value in stored.values], SUBJECT)
            batch.stamp(stored.first, self.epoch, WallUs(0))
            self.records += stored.values
            self._batches.append((self.end_offset, batch.to_bytes()))
            self.tell()
        return ack

    def tell(self) -> None:
        """Those who wait for records look again."""
        waiting, self.has_more = self.has_more, []
        for look in waiting:
            look()

    def piece(self, offset: int, count: int) -> tuple[bytes, int]:
        """The next batches, at most so many, and the offset after them."""
        found = [each for each in self._batches if each[0] > offset][:count]
        return b"".join(data for _, data in found), found[-1][0] if found else offset


class Leader:
    """A leadership of `__cursors`: as store.py has it, with a log that is a list."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.world = ground.world
        self.loop = SimulatedLoop(self.world, "the coordinator", lambda _: None)
        self.table = CursorTable()
        self.coordinator = Coordinator(
            self._save,
            lambda _: sorted(ground.live_ids()),
            lambda: MonotonicUs(self.world.now),
        )
        self.waiting: deque[asyncio.Future[Outcome]] = deque()
        self._committed_at = 0
        self.loop.enter(self._begin)

    def _begin(self) -> None:
        log = self.ground.log
        self.table.load(range(len(log)), [key for key, _, _ in log], [value for _, value, _ in log])
        self.coordinator.load(
            group_from_proto(groups_pb2.ConsumerGroup.FromString(entry.value))
            for key, entry in self.table.committed_entries.items()
            if key.startswith(GROUP_PREFIX)
        )
        self.loop.create_task(self.coordinator.watch())

    @property
    def leads(self) -> bool:
        return self.ground.leader is self

    def deposed(self) -> None:
        """It has noticed."""
        self.coordinator.end()
        self.end()

    def end(self) -> None:
        self.ground.clients.graveyard.extend(self.loop.end())

    async def _save(self, group: Group) -> None:
        value = None if group.is_deleted else group_to_proto(group).SerializeToString()
        outcome = await self.write(Write(group_key(group.name), value), group)
        if outcome.error is not None:
            raise outcome.error

    async def write(self, write: Write, said: Said) -> Outcome:
        answer: asyncio.Future[Outcome] = self.loop.create_future()
        if self.leads:
            self._append(write, said, answer)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await answer
        except TimeoutError:
            raise UnavailableError("not committed yet, and may be later") from None

    def _append(self, write: Write, said: Said, answer: asyncio.Future[Outcome]) -> None:
        ground, world = self.ground, self.world
        plan = self.table.plan([[write]], len(ground.log))
        self.table.appended(plan)
        self.waiting.append(answer)
        if plan.keys:
            ground.log.append((write.key, write.value, said))
            ground.clients.checker.appended(ground.log)
        delay = world.between(300, 5_000)
        if world.chance(ground.slow_writes):
            delay += world.between(100_000, 7_000_000)
        self._committed_at = at = max(self._committed_at + 1, world.now + delay)
        end = len(ground.log)
        world.at(at, self.loop, self.loop.enter, self._commit, end)

    def _commit(self, end: int) -> None:
        if not self.leads:
            return
        self.ground.high_watermark = max(self.ground.high_watermark, end)
        for plan in self.table.advance(self.ground.high_watermark):
            answer = self.waiting.popleft()
            if not answer.done():
                answer.set_result(plan.answers[0][0])

    # Calls, as serving/grpc has them.

    def called(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        self.loop.create_task(self._answer(name, request, reply))

    async def _answer(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        try:
            found = await getattr(self, name)(request)
        except JetstreamError as error:
            found = error
        reply(found)

    async def GroupHeartbeat(self, request: Any) -> groups_pb2.GroupHeartbeatResponse:
        heartbeat = _heartbeat_of(request)
        return _answer(heartbeat.member, await self.coordinator.heartbeat(heartbeat))

    async def LeaveGroup(self, request: Any) -> groups_pb2.LeaveGroupResponse:
        await self.coordinator.leave(request.group, request.source, request.member_id)
        return groups_pb2.LeaveGroupResponse()

    async def ListGroups(self, request: Any) -> groups_pb2.ListGroupsResponse:
        return groups_pb2.ListGroupsResponse(groups=map(group_to_proto, self.coordinator.groups()))

    async def ListCursors(self, request: Any) -> cursors_pb2.ListCursorsResponse:
        stream = self.ground.named(request.stream)
        entry = self.table.committed_entries.get(
            cursor_key(request.name, f"{stream.name}@{stream.name}")
        )
        cursors = [] if entry is None else [_cursor(entry)]
        return cursors_pb2.ListCursorsResponse(cursors=cursors)

    async def CommitCursors(self, request: Any) -> cursors_pb2.CommitCursorsResponse:
        results = [self.commit(commit) for commit in request.commits]
        return cursors_pb2.CommitCursorsResponse(results=await asyncio.gather(*results))

    async def commit(self, commit: Any) -> cursors_pb2.CommitCursorsResponse.Result:
        try:
            outcome = await self._outcome(commit)
        except StreamNotFoundError as error:
            outcome = Outcome(None, error)
        result = cursors_pb2.CommitCursorsResponse.Result()
        if outcome.error is not None:
            result.error.CopyFrom(outcome.error.to_proto())
        if outcome.entry is not None:
            result.cursor.CopyFrom(_cursor(outcome.entry))
        return result

    async def _outcome(self, commit: Any) -> Outcome:
        stream = self.ground.named(commit.stream)
        key = cursor_key(commit.name, f"{stream.name}@{stream.name}")
        member = commit.member_id, commit.generation
        reason = self.coordinator.why_not(commit.name, stream.id, *member)
        if reason:
            return Outcome(self.table.committed_entries.get(key), PreconditionFailedError(reason))
        cursor = cursors_pb2.Cursor(
            name=commit.name,
            stream_id=stream.id,
            stream_name=stream.name,
            stream_subject=stream.name,
            offset=commit.offset,
            last_epoch=commit.last_epoch if commit.HasField("last_epoch") else None,
            owner=commit.owner,
        )
        expected = commit.expected_revision if commit.HasField("expected_revision") else None
        write = Write(key, cursor.SerializeToString(), expected)
        return await self.write(write, commit)


def _cursor(entry: Entry) -> cursors_pb2.Cursor:
    cursor = cursors_pb2.Cursor.FromString(entry.value)
    cursor.revision = entry.revision
    cursor.stream_id_now = cursor.stream_id
    return cursor


class Ground:
    """The cluster."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.world = clients.world
        self.streams: dict[int, SimulatedStream] = {}
        self.log: list[tuple[bytes, bytes | None, Said]] = []
        self.high_watermark = 0
        self.slow_writes = 0.0
        self.slow_opens_us = 0
        """So long may it take until a position is found."""
        self.leader: Leader | None = None

    def live_ids(self) -> list[int]:
        return [each.id for each in self.streams.values() if not each.is_deleted]

    def create(self) -> SimulatedStream:
        stream = SimulatedStream(len(self.streams) + 1)
        self.streams[stream.id] = stream
        return stream

    def by_name(self, name: str) -> SimulatedStream:
        """Deleted or not."""
        return next(each for each in self.streams.values() if each.name == name.partition("@")[0])

    def named(self, ref: StreamRef) -> SimulatedStream:
        for stream in self.streams.values():
            if (ref.id == stream.id or ref.name == stream.name) and not stream.is_deleted:
                return stream
        raise StreamNotFoundError(f"there is no stream {ref.id or ref.name}")

    def lead(self, *, dies: bool) -> None:
        """Another node leads `__cursors`. dies: the last one has; otherwise it notices later."""
        before, world = self.leader, self.world
        self.log = self.log[: world.between(self.high_watermark, len(self.log))]
        self.high_watermark = len(self.log)
        self.clients.checker.begins_anew(self.log)
        if before is not None:
            if dies:
                before.end()
            else:
                world.later(world.between(0, 2_000_000), before.loop, before.deposed)
        self.leader = Leader(self)

    # What arrives.

    def called(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        world = self.world
        if name == "ListOffsets" and self.slow_opens_us:
            late = world.between(0, self.slow_opens_us)
            world.later(late, None, self._called, name, request, reply)
        else:
            self._called(name, request, reply)

    def _called(self, name: str, request: Any, reply: Callable[[Any], None]) -> None:
        try:
            if name == "DescribeCluster":
                reply(api_pb2.DescribeClusterResponse())
            elif name == "DescribeStream":
                stream = self.named(request.stream)
                found = api_pb2.StreamDescription(stream=_described(stream))
                reply(api_pb2.DescribeStreamResponse(description=found))
            elif name == "ListStreams":
                reply(self._list_streams(request.feeding_subject))
            elif name == "ListOffsets":
                reply(self._list_offsets(request))
            elif name in QUEUE_CALLS:
                self.clients.queues.called(name, request, reply)
            elif self.leader is not None:
                leader = self.leader
                self.world.later(
                    0, leader.loop, leader.loop.enter, leader.called, name, request, reply
                )
        except JetstreamError as error:
            reply(error)

    def _list_streams(self, subject: str) -> api_pb2.ListStreamsResponse:
        if subject:
            found = self.clients.publishing.feeding(subject)
            return api_pb2.ListStreamsResponse(streams=found, ack_cluster=MARK)
        live = [_described(self.streams[each]) for each in self.live_ids()]
        return api_pb2.ListStreamsResponse(streams=live)

    def _list_offsets(self, request: Any) -> api_pb2.ListOffsetsResponse:
        results = []
        for query in request.queries:
            stream = self.named(query.stream)
            offset = stream.log_start_offset
            if query.HasField("latest"):
                offset = stream.end_offset
            elif query.HasField("offset"):
                offset = query.offset
            results.append(api_pb2.ListOffsetsResponse.Result(stream_id=stream.id, offset=offset))
        return api_pb2.ListOffsetsResponse(results=results)

    def fetched(
        self, stream_id: int, offset: int, until: int, reply: Callable[[Any], None]
    ) -> None:
        stream = self.streams[stream_id]
        start, end = stream.log_start_offset, stream.end_offset
        if stream.is_deleted:
            reply(StreamNotFoundError(f"stream {stream_id} was deleted"))
        elif not start <= offset <= end:
            reply(OffsetOutOfRangeError("not there", start, end))
        elif offset == end and self.world.now < until:
            waiter = partial(self.fetched, stream_id, offset, until, reply)
            stream.has_more.append(waiter)
            self.world.at(until, None, self._look_again, stream, waiter)
        else:
            head = data_pb.DataFetchResponse(
                stream_id=stream_id,
                log_start_offset=start,
                high_watermark=end,
                leader_epoch=stream.epoch,
            )
            data, _ = stream.piece(offset, self.world.between(1, 4))
            reply(Fetched(head, bytearray(data), "node-0:1"))

    def _look_again(self, stream: SimulatedStream, waiter: Callable[[], None]) -> None:
        if waiter in stream.has_more:
            stream.has_more.remove(waiter)
            waiter()


def _described(stream: SimulatedStream) -> api_pb2.Stream:
    return api_pb2.Stream(
        id=stream.id, name=stream.name, subject=stream.name, replicas=[0], leader=0, isr=[0]
    )
