"""What a reader at the head does with the answers that come by themselves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from jetstream_client.transport import follow as module
from jetstream_client.transport.data_connection import DataConnection
from jetstream_client.transport.follow import CREDIT_BYTES, Follow, Following
from jetstream_protocol.errors import PermissionDeniedError, UnavailableError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.support.log_batches import stamped
from tests.support.virtual_time import on_virtual_loop


class Connection:
    """Stands for a connection, and keeps what is said over it."""

    address = "here:1"
    follows = True

    def __init__(self) -> None:
        self.asked: list[pb.FollowRequest] = []
        self.credits: list[int] = []
        self.ended: list[int] = []
        self.aborted = ""

    def begin_follow(self, request: pb.FollowRequest, sink: object) -> int:
        self.asked.append(request)
        return 17 + len(self.asked)

    def credit(self, correlation: int, count: int) -> None:
        self.credits.append(count)

    def end_follow(self, correlation: int) -> None:
        self.ended.append(correlation)

    def abort(self, reason: str) -> None:
        self.aborted = reason


def follow_on(connection: Connection, offset: int = 0, **fields: Any) -> Follow:
    request = pb.DataFetchRequest(offset=offset, wait_ms_max=5000, **fields)
    return Follow(cast(DataConnection, connection), request)


def frame(tail: bytes = b"", **head: Any) -> Frame:
    return Frame(Kind.FOLLOWED, 18, pb.DataFetchResponse(**head).SerializeToString(), tail)


def at(offset: int, *values: bytes) -> bytes:
    return bytes(stamped(offset, *values))


@on_virtual_loop
async def test_all_that_has_come_is_taken_together() -> None:
    follow = follow_on(Connection(), 5)
    follow.came(frame(at(5, b"a"), high_watermark=6))
    follow.came(frame(at(6, b"b", b"c"), high_watermark=8))
    follow.came(frame(high_watermark=8, log_start_offset=2))
    found = await follow.next(0, 10)
    assert found is not None
    assert found.batches == at(5, b"a") + at(6, b"b", b"c")
    assert (found.head.high_watermark, found.head.log_start_offset, follow.end) == (8, 2, 8)


@on_virtual_loop
async def test_an_answer_without_records_is_no_news_until_the_time_is_over() -> None:
    follow = follow_on(Connection())
    follow.came(frame(high_watermark=3))
    found = await follow.next(0.01, 10)
    assert found is not None
    assert (found.batches, found.head.high_watermark) == (b"", 3)


@on_virtual_loop
async def test_with_a_filter_what_was_passed_over_is_progress() -> None:
    follow = follow_on(Connection(), 5)
    follow.came(frame(high_watermark=9, next_offset=9, last_epoch=3))
    follow.came(frame(high_watermark=9))
    found = await follow.next(10, 10)
    assert found is not None
    assert (found.head.next_offset, found.head.last_epoch, follow.end) == (9, 3, 9)
    again = await follow.next(0, 10)
    assert again is not None
    assert not again.head.HasField("next_offset")


@on_virtual_loop
async def test_credit_is_given_back_once_half_of_it_is_taken() -> None:
    connection = Connection()
    follow = follow_on(connection)
    assert connection.asked[0].credit == CREDIT_BYTES
    for offset in range(3):
        follow.came(frame(at(offset, b"a" * (CREDIT_BYTES // 4)), high_watermark=offset + 1))
        assert sum(connection.credits) == 0, "nothing is taken yet"
    found = await follow.next(0, 10)
    assert found is not None
    assert connection.credits == [len(found.batches)]


@on_virtual_loop
async def test_a_small_share_is_a_small_credit() -> None:
    connection = Connection()
    follow_on(connection, bytes_max=70_000)
    assert connection.asked[0].credit == 70_000


@on_virtual_loop
async def test_whoever_hears_the_server_says_that_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection()
    follow = follow_on(connection)
    follow.came(frame())
    assert connection.credits == []
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.0)
    follow.came(frame())
    assert connection.credits == [0]


@on_virtual_loop
async def test_what_came_before_the_end_is_taken_first() -> None:
    connection = Connection()
    follow = follow_on(connection)
    follow.came(frame(at(0, b"a"), high_watermark=1, has_ended=True))
    found = await follow.next(10, 10)
    assert found is not None
    assert found.batches
    assert await follow.next(10, 10) is None
    follow.leave()
    assert connection.ended == [], "the server knows"


@on_virtual_loop
async def test_the_first_answer_may_be_an_error_and_a_later_one_only_ends_it() -> None:
    error = common_pb2.Error(code="permission_denied", message="no")
    follow = follow_on(Connection())
    follow.came(frame(error=error))
    with pytest.raises(PermissionDeniedError):
        await follow.next(10, 10)
    follow = follow_on(Connection())
    follow.came(frame())
    follow.came(frame(error=error))
    assert await follow.next(10, 10) is None


@on_virtual_loop
async def test_a_lost_connection_ends_it_and_a_silent_server_is_given_up() -> None:
    connection = Connection()
    follow = follow_on(connection)
    waiting = asyncio.create_task(follow.next(60, 60))
    await asyncio.sleep(0)
    follow.lost()
    assert await waiting is None
    follow = follow_on(connection)
    follow.came(frame())
    with pytest.raises(UnavailableError):
        await follow.next(60, 0.05)
    assert connection.aborted


@on_virtual_loop
async def test_a_cancelled_call_loses_nothing() -> None:
    follow = follow_on(Connection())
    follow.came(frame())
    waiting = asyncio.create_task(follow.next(60, 60))
    await asyncio.sleep(0)
    waiting.cancel()
    follow.came(frame(at(0, b"a"), high_watermark=1))
    await asyncio.gather(waiting, return_exceptions=True)
    found = await follow.next(0, 10)
    assert found is not None
    assert found.batches == at(0, b"a")


def asks(offset: int, **fields: Any) -> pb.DataFetchRequest:
    return pb.DataFetchRequest(offset=offset, **{"wait_ms_max": 1000, **fields})


@on_virtual_loop
async def test_only_what_continues_is_taken_from_it() -> None:
    connection = Connection()
    reader = cast(DataConnection, connection)
    for request in (asks(4), asks(6), asks(5, refused=True)):
        following = Following()
        follow = following.begin(reader, asks(5))
        assert following.at(asks(5)) is follow
        assert following.at(request) is None
    assert len(connection.ended) == 3


@on_virtual_loop
async def test_damaged_bytes_are_taken_once_and_then_fetched() -> None:
    connection = Connection()
    following = Following()
    follow = following.begin(cast(DataConnection, connection), asks(0))
    data = bytearray(at(0, b"a"))
    data[3] ^= 1
    follow.came(frame(bytes(data), high_watermark=1))
    assert (await follow.next(0, 10)) is not None
    assert following.at(asks(0)) is None
    assert connection.ended


@on_virtual_loop
async def test_a_reader_follows_at_the_head_and_fetches_after_an_end() -> None:
    connection = Connection()
    reader = cast(DataConnection, connection)
    following = Following()
    assert following.may_begin(reader, asks(0)), "where the head is is not known yet"
    following.fetched(module.Fetched(pb.DataFetchResponse(high_watermark=10), b""))
    assert not following.may_begin(reader, asks(9))
    assert not following.may_begin(reader, asks(10, wait_ms_max=0))
    assert not following.may_begin(reader, asks(10, refused=True))
    assert following.may_begin(reader, asks(10))
    following.has_ended()
    assert not following.may_begin(reader, asks(10))
    following.fetched(module.Fetched(pb.DataFetchResponse(high_watermark=10), b""))
    assert following.may_begin(reader, asks(10))
    connection.follows = False
    assert not following.may_begin(reader, asks(10)), "the server is of an earlier release"
