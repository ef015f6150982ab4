"""Positions of streams that different nodes lead."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_client import (
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_client.reading.messages import MessageCollector
from jetstream_client.reading.reader import FetchSizer, Reader, filter_of
from jetstream_client.transport.data_connection import Fetched
from jetstream_client.values.positions import At, Last
from jetstream_protocol.batch import encode
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import WallUs
from tests.support.virtual_time import on_virtual_loop

LEADERS = {"a": "node-1:1", "b": "node-2:2", "c": "node-3:3"}


class Cluster:
    """Answers for the streams a node leads, as servers do; "" is the first node asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    async def call(self, request: Any, *, address: str | None, **_: Any) -> Any:
        node = address or "node-1:1"
        names = [query.stream.name for query in request.queries]
        self.asked.append((node, names))
        return api_pb2.ListOffsetsResponse(results=[self.result(name, node) for name in names])

    def result(self, name: str, node: str) -> api_pb2.ListOffsetsResponse.Result:
        leader = LEADERS.get(name)
        if leader is None:
            error = StreamNotFoundError(f"there is no stream {name!r}").to_proto()
        elif leader != node:
            redirect = common_pb2.NodeAddress(grpc=leader)
            error = NotLeaderError("ask the leader", redirect).to_proto()
        else:
            return api_pb2.ListOffsetsResponse.Result(offset=ord(name), leader_epoch=1)
        return api_pb2.ListOffsetsResponse.Result(error=error)


def reader_of(cluster: Cluster, timeout: float = 5.0) -> Reader:
    unused: Any = None
    control: Any = cluster
    return Reader(unused, unused, control, timeout)


@on_virtual_loop
async def test_each_leader_is_asked_for_its_own() -> None:
    cluster = Cluster()
    answers = await reader_of(cluster).list_offsets([(name, "latest") for name in "cab"])
    assert [answer.offset for answer in answers] == [ord("c"), ord("a"), ord("b")]
    assert cluster.asked == [
        ("node-1:1", ["c", "a", "b"]),
        ("node-3:3", ["c", "b"]),
        ("node-2:2", ["b"]),
    ]


@on_virtual_loop
async def test_an_error_that_stays_ends_it_at_once() -> None:
    cluster = Cluster()
    with pytest.raises(StreamNotFoundError):
        await reader_of(cluster).list_offsets([("b", "latest"), ("nowhere", "latest")])
    assert len(cluster.asked) == 1


@on_virtual_loop
async def test_nothing_asked_is_nothing_answered() -> None:
    assert await reader_of(Cluster()).list_offsets([]) == []


@on_virtual_loop
async def test_a_leader_that_is_never_found_is_unavailable_in_time() -> None:
    cluster = Cluster()
    cluster.result = lambda name, node: api_pb2.ListOffsetsResponse.Result(  # type: ignore[method-assign]
        error=UnavailableError("no leader").to_proto()
    )
    with pytest.raises(UnavailableError, match="no leader"):
        await reader_of(cluster, timeout=0.2).list_offsets([("a", "latest")])


@on_virtual_loop
async def test_an_offset_needs_no_asking() -> None:
    cluster = Cluster()
    assert await reader_of(cluster).resolve("a", 7, None) == (7, None)
    assert await reader_of(cluster).resolve("a", 7, 9) == (7, 9)
    with pytest.raises(InvalidRequestError, match=r"Last\(1\)"):
        await reader_of(cluster).resolve("a", -1, None)
    assert cluster.asked == []


@on_virtual_loop
async def test_start_and_stop_are_settled_by_one_question() -> None:
    cluster = Cluster()
    assert await reader_of(cluster).resolve("a", "earliest", "latest") == (ord("a"), ord("a"))
    assert cluster.asked == [("node-1:1", ["a", "a"])]


class LeaderlessCluster(Cluster):
    """Any node knows where a log begins. The leader is dead."""

    async def call(self, request: Any, *, address: str | None, **_: Any) -> Any:
        results = []
        for query in request.queries:
            result = api_pb2.ListOffsetsResponse.Result(offset=3, leader_epoch=1)
            if query.WhichOneof("position") != "earliest":
                redirect = common_pb2.NodeAddress(node_id=1, grpc="node-1:1")
                refusal = NotLeaderError("this node does not lead", redirect)
                result = api_pb2.ListOffsetsResponse.Result(error=refusal.to_proto())
            results.append(result)
        return api_pb2.ListOffsetsResponse(results=results)


class Replica:
    """A data plane that holds [3, 9)."""

    def __init__(self, *, gone: bool) -> None:
        self._gone = gone

    async def fetch(self, request: Any, read_from: str) -> Fetched:
        if self._gone:
            raise OffsetOutOfRangeError("gone", 3, 9)
        return Fetched(pb.DataFetchResponse(log_start_offset=3, high_watermark=9), b"")


def leaderless(*, gone: bool = False) -> Reader:
    unused: Any = None
    replica: Any = Replica(gone=gone)
    control: Any = LeaderlessCluster()
    return Reader(unused, replica, control, 0.3)


@pytest.mark.parametrize("gone", [False, True])
@on_virtual_loop
async def test_without_a_leader_the_bounds_are_those_of_the_replica_that_serves(
    gone: bool,
) -> None:
    reader = leaderless(gone=gone)
    assert await reader.resolve("a", 5, "latest", "any") == (5, 9)
    assert await reader.resolve("a", Last(2), "latest", "nearest") == (7, 9)
    assert await reader.resolve("a", "earliest", None, "leader") == (3, None)


@on_virtual_loop
async def test_without_a_leader_a_reader_is_told_who_is_missing_and_what_else_to_do() -> None:
    reader = leaderless()
    with pytest.raises(NotLeaderError, match=r"node 1, leader of stream 'a'.*--read-from any"):
        await reader.resolve("a", 5, "latest", "leader")
    with pytest.raises(NotLeaderError, match="offset in place of the time"):
        await reader.resolve("a", At(5), "latest", "any")


MIB = 1024 * 1024


def portions(*, start: int = 0, end: int | None = None, max_bytes: int = 8 * MIB) -> FetchSizer:
    return FetchSizer(MessageCollector("s", start, end=end), max_bytes, MIB)


def arrives(
    portions: FetchSizer, count: int, seconds: float, *, to: int, unpacked: int = 0
) -> None:
    """An answer that leads to offset `to`."""
    portions._collector.next_offset = to
    portions._collector.length_bytes += unpacked or count
    portions.came(count, seconds)


def test_answers_grow_with_the_link() -> None:
    quick = portions()
    assert quick.next_bytes() == MIB
    arrives(quick, MIB, 0.01, to=10)
    assert quick.next_bytes() == 4 * MIB
    arrives(quick, 4 * MIB, 2.0, to=50)
    assert quick.next_bytes() == MIB, "the link has become slow"


def test_a_short_answer_does_not_make_a_slow_link_quick() -> None:
    slow = portions()
    arrives(slow, 19_000, 0.04, to=10)
    assert slow.next_bytes() == MIB


def test_no_more_is_asked_for_than_memory_holds_unpacked() -> None:
    packed = portions()
    arrives(packed, MIB, 0.01, to=10, unpacked=6 * MIB)
    assert packed.next_bytes() == 2 * MIB // 6


def test_not_much_more_is_asked_for_than_the_range_has_left() -> None:
    nearly = portions(end=11_000)
    arrives(nearly, MIB, 0.01, to=10_000)
    assert MIB // 10 < nearly.next_bytes() < MIB // 4
    done = portions(end=11_000)
    arrives(done, MIB, 0.01, to=11_000)
    assert done.next_bytes() > 0


class Retained:
    """A data plane whose log begins at later and later offsets; one record fits into an answer."""

    def __init__(self, starts: list[int]) -> None:
        self._starts = starts

    async def fetch(self, request: Any, read_from: str, timeout: float) -> Fetched:
        start = self._starts.pop(0) if len(self._starts) > 1 else self._starts[0]
        if request.offset < start:
            raise OffsetOutOfRangeError("gone", start, 100)
        encoded = encode([b"x" * 100], b"a")
        encoded.stamp(request.offset, 1, WallUs(1))
        head = pb.DataFetchResponse(stream_id=1, log_start_offset=start, high_watermark=100)
        return Fetched(head, encoded.to_bytes())


class Named:
    async def name_of(self, stream: str) -> str:
        return stream


def retained(starts: list[int]) -> Reader:
    streams: Any = Named()
    data: Any = Retained(starts)
    control: Any = LeaderlessCluster()
    return Reader(streams, data, control, 0.3)


@on_virtual_loop
async def test_a_fetch_from_the_earliest_record_follows_retention_however_often_it_is_faster() -> (
    None
):
    for starts in [5], [5, 8, 13, 21], [4, 6, 50, 99]:
        first = starts[-1]
        reader = retained(starts)
        messages = await reader.fetch("a", "earliest", max_messages=1)
        assert messages.offsets() == [first]
    with pytest.raises(OffsetOutOfRangeError):
        await retained([5]).fetch("a", 3)


@on_virtual_loop
async def test_what_a_fetch_has_is_returned_when_retention_removes_the_next_record() -> None:
    for position in (3, "earliest"):
        messages = await retained([3, 3, 40]).fetch("a", position, max_messages=10)
        assert messages.offsets() == [3, 4]


class Indexing(Cluster):
    """Whose leader makes its index of subjects, for as long as anybody asks."""

    async def call(self, request: Any, *, address: str | None, **_: Any) -> Any:
        [query, *more] = request.queries
        if query.WhichOneof("position") == "last_of_subject":
            self.asked.append(("node-1:1", [query.last_of_subject]))
            error = UnavailableError("the index of its subjects is being made").to_proto()
            return api_pb2.ListOffsetsResponse(
                results=[api_pb2.ListOffsetsResponse.Result(error=error)]
            )
        assert len(more) == 1
        results = [api_pb2.ListOffsetsResponse.Result(offset=offset) for offset in (40, 100)]
        return api_pb2.ListOffsetsResponse(results=results)


@on_virtual_loop
async def test_while_an_index_is_made_the_log_is_searched_for_the_last_record_of_a_subject() -> (
    None
):
    cluster = Indexing()
    streams: Any = Named()
    data: Any = Retained([40])
    control: Any = cluster
    reader = Reader(streams, data, control, 20.0)
    found = await reader.last("a", filter_of("a", None))
    assert found is not None
    assert (found.offset, found.subject) == (99, "a")
    assert cluster.asked
