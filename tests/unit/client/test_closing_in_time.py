"""Whatever reads is closed within the client's timeout if no server answers any more, however many
streams it reads, and whatever it has asked before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from jetstream_client import AsyncClient, JetstreamError, Message
from jetstream_client.transport.data_connection import Fetched
from jetstream_client.transport.grpc_calls import LostCallError
from jetstream_protocol.generated import api_pb2, cursors_pb2, groups_pb2
from jetstream_protocol.generated import dataplane_pb2 as data_pb
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.client.batches import batch_bytes

TIMEOUT_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""A commit is waited for a little longer than its call; then a member leaves."""
STREAMS = 20
RECORDS = 10
SESSION_SECONDS = 300.0


class Server:
    """Answers at once, until it is silent."""

    def __init__(self) -> None:
        self.is_silent = False
        self.revision = 0

    async def attempt(self, request: Any, address: str, share: float, *_: object) -> Any:
        if self.is_silent:
            await asyncio.sleep(share)
            raise LostCallError(f"{address} did not answer in time")
        answer: Any = getattr(self, type(request).__name__.removesuffix("Request"))(request)
        if isinstance(request, groups_pb2.GroupHeartbeatRequest):
            await asyncio.sleep(request.wait_ms / 1000)
        return answer

    def DescribeCluster(self, request: Any) -> Any:
        return api_pb2.DescribeClusterResponse()

    def DescribeStream(self, request: Any) -> Any:
        number = request.stream.id or int(request.stream.name.rpartition("-")[2])
        stream = api_pb2.Stream(id=number, name=f"s-{number}", subject=f"s-{number}")
        description = api_pb2.StreamDescription(stream=stream)
        return api_pb2.DescribeStreamResponse(description=description)

    def ListOffsets(self, request: Any) -> Any:
        result = api_pb2.ListOffsetsResponse.Result
        found = [result(stream_id=query.stream.id, offset=0) for query in request.queries]
        return api_pb2.ListOffsetsResponse(results=found)

    def ListCursors(self, request: Any) -> Any:
        return cursors_pb2.ListCursorsResponse()

    def CommitCursors(self, request: Any) -> Any:
        results = []
        for commit in request.commits:
            self.revision += 1
            cursor = cursors_pb2.Cursor(
                name=commit.name,
                stream_id=commit.stream.id,
                offset=commit.offset,
                owner=commit.owner,
                revision=self.revision,
            )
            results.append(cursors_pb2.CommitCursorsResponse.Result(cursor=cursor))
        return cursors_pb2.CommitCursorsResponse(results=results)

    def GroupHeartbeat(self, request: Any) -> Any:
        assigned = range(1, STREAMS + 1)
        return groups_pb2.GroupHeartbeatResponse(generation=1, assigned=assigned)

    def LeaveGroup(self, request: Any) -> Any:
        return groups_pb2.LeaveGroupResponse()


class Data:
    """Ten records of each stream."""

    async def fetch(self, request: Any, *_: Any, **__: Any) -> Fetched:
        data = b""
        if request.offset < RECORDS:
            data = batch_bytes([b"%d" % each for each in range(RECORDS)])
        else:
            await asyncio.sleep(request.wait_ms_max / 1000)
        head = data_pb.DataFetchResponse(stream_id=request.stream.id, high_watermark=RECORDS)
        return Fetched(head, bytearray(data), "node:1")

    async def close(self) -> None: ...


async def consumers(client: AsyncClient) -> None:
    """A thousand programs have one consumer, some have many."""
    for number in range(1, STREAMS + 1):
        consumer = client.consume(f"s-{number}", cursor="c")
        for _ in range(3):
            await anext(consumer)


async def member(client: AsyncClient) -> None:
    consumer = client.consume_group("s", "g", session_timeout=SESSION_SECONDS)
    for _ in range(STREAMS * RECORDS):
        await anext(consumer)


async def everything(client: AsyncClient) -> None:
    await consumers(client)
    await member(client)


Reads: TypeAlias = Callable[[AsyncClient], Awaitable[None]]


def client_of(server: Server) -> AsyncClient:
    client = AsyncClient("node:1", timeout=TIMEOUT_SECONDS)
    client._control._attempt = server.attempt  # type: ignore[method-assign]
    client._reader._data = Data()  # type: ignore[assignment]
    return client


@pytest.mark.parametrize("reads", [consumers, member, everything])
@pytest.mark.parametrize("silent_for", [0.0, 0.5, 1.5, 5.0])
def test_a_client_without_a_server_is_closed_in_the_time_of_one_call(
    reads: Reads, silent_for: float
) -> None:
    """Also while the commits of each second wait for an answer already."""

    async def main() -> None:
        server = Server()
        client = client_of(server)
        await reads(client)
        await asyncio.sleep(1.5)
        for consumer in [*client._consumers, *client._group_consumers]:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(consumer)
        server.is_silent = True
        await asyncio.sleep(silent_for)
        began = asyncio.get_running_loop().time()
        await client.aclose()
        took = asyncio.get_running_loop().time() - began
        assert took <= TIMEOUT_SECONDS + GRACE_SECONDS

    run_in_virtual_time(main())


@pytest.mark.parametrize("silent_for", [0.0, 0.5, 1.5, 5.0])
@pytest.mark.parametrize(
    "way", [{"group": "g", "session_timeout": SESSION_SECONDS}, {"cursor": "c"}]
)
def test_a_processing_without_a_server_ends_in_the_time_of_one_call(
    way: dict[str, Any], silent_for: float
) -> None:
    async def main() -> None:
        server, stop = Server(), asyncio.Event()
        client = client_of(server)
        handled, all_done = list[int](), asyncio.Event()
        wanted = STREAMS * RECORDS if "group" in way else RECORDS

        async def handle(message: Message) -> None:
            handled.append(message.offset)
            if len(handled) == wanted:
                all_done.set()

        source = "s" if "group" in way else "s-1"
        running = asyncio.ensure_future(
            client.process(source, handle, stop_event=stop, handle_signals=False, **way)
        )
        await all_done.wait()
        server.is_silent = True
        await asyncio.sleep(silent_for)
        began = asyncio.get_running_loop().time()
        stop.set()
        with suppress(JetstreamError):
            await running
        took = asyncio.get_running_loop().time() - began
        assert took <= TIMEOUT_SECONDS + GRACE_SECONDS
        await client.aclose()

    run_in_virtual_time(main())


def test_a_commit_by_hand_does_not_wait_for_the_end_of_another_call() -> None:
    async def main() -> None:
        server = Server()
        client = client_of(server)
        readers = [client.consume(f"s-{each}", cursor="c", auto_commit=False) for each in (1, 2)]
        for consumer in readers:
            await anext(consumer)
        server.is_silent = True
        first = asyncio.ensure_future(readers[0].commit())
        await asyncio.sleep(TIMEOUT_SECONDS / 2)
        began = asyncio.get_running_loop().time()
        with pytest.raises(JetstreamError):
            await readers[1].commit()
        assert asyncio.get_running_loop().time() - began <= TIMEOUT_SECONDS + GRACE_SECONDS
        await asyncio.gather(first, return_exceptions=True)
        server.is_silent = False
        await readers[1].commit()
        assert readers[1].committed == 1
        await client.aclose()

    run_in_virtual_time(main())
