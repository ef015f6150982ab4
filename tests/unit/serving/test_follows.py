"""Readers at the head follow: they are sent what is committed, and nothing else, without asking."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol import frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.replication.replica import Replica
from jetstream_server.serving import long_poll
from jetstream_server.serving.dataplane import connection as connections
from jetstream_server.serving.dataplane import follows
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.serving.data_plane_port import RULE, Client, House, Port, data_plane, values


async def begun(client: Client, correlation: int = 1, **fields: Any) -> pb.DataFetchResponse:
    """Follow an empty stream, or its end. Returns the first answer, which comes at once."""
    await client.follow(correlation, **fields)
    number, head, tail = await client.receive()
    assert (number, tail, head.has_ended, head.HasField("error")) == (
        correlation,
        b"",
        False,
        False,
    )
    return head


@on_virtual_loop
async def test_who_follows_is_sent_each_commit_without_asking_and_has_no_task(
    tmp_path: Path,
) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        tasks = len(asyncio.all_tasks())
        head = await begun(client, 7)
        assert (head.stream_id, head.high_watermark) == (port.replica.stream.id, 0)
        for number in range(20):
            port.node.append(port.replica, b"%d" % number)
            correlation, head, tail = await client.receive()
            assert (correlation, values(tail)) == (7, [b"%d" % number])
            assert (head.high_watermark, head.has_ended) == (number + 1, False)
        assert len(asyncio.all_tasks()) == tasks
        assert port.fetches.waiting == 1


@on_virtual_loop
async def test_what_is_there_already_comes_first(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, b"a", b"b")
        port.node.append(port.replica, b"c")
        client = await port.connect()
        await client.follow(1, offset=1)
        _, head, tail = await client.receive()
        assert (values(tail)[-2:], head.has_ended) == ([b"b", b"c"], False)
        port.node.append(port.replica, b"d")
        assert values((await client.receive())[2]) == [b"d"]


async def nothing_is_sent_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.01)
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        port.node.append(port.replica, b"a", flush=False)
        for _ in range(5):
            _, head, tail = await client.receive()
            assert (tail, head.high_watermark, head.has_ended) == (b"", 0, False)
        await client.follow(2)
        assert [tail for _, _, tail in [await client.receive() for _ in range(5)]] == [b""] * 5
        port.node.flushes.run()
        got = {}
        while len(got) < 2:
            correlation, head, tail = await client.receive()
            if tail:
                got[correlation] = values(tail), head.high_watermark
        assert got == {1: ([b"a"], 1), 2: ([b"a"], 1)}


@on_virtual_loop
async def test_what_is_not_committed_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """**safety** Not even when the follow looks again to say that it is there."""
    await nothing_is_sent_before_its_commit(tmp_path, monkeypatch)


@on_virtual_loop
async def test_a_server_that_sends_what_is_not_committed_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: it looks at the log's end instead of the high watermark."""

    def look(
        polls: long_poll.LongPoll, replica: Replica, position: long_poll.FetchPosition
    ) -> object:
        return replica.log.read(
            position.offset, position.bytes_max, limit_offset=replica.log.log_end_offset
        )

    monkeypatch.setattr(long_poll.LongPoll, "look", look)
    with pytest.raises(AssertionError):
        await nothing_is_sent_before_its_commit(tmp_path, monkeypatch)


@on_virtual_loop
async def test_those_at_the_head_share_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "TURN_SECONDS", 60.0)  # All of them in one turn.
    async with data_plane(tmp_path) as port:
        clients = [await port.connect() for _ in range(30)]
        for client in clients:
            await begun(client)
        count = 0
        read = Replica.read

        def counting(replica: Replica, *arguments: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            return read(replica, *arguments, **more)

        monkeypatch.setattr(Replica, "read", counting)
        for round_ in range(3):
            port.node.append(port.replica, b"a", b"b")
            for client in clients:
                _, head, tail = await client.receive()
                assert (values(tail), head.high_watermark) == ([b"a", b"b"], 2 * round_ + 2)
        assert count == 3


@on_virtual_loop
async def test_what_is_committed_during_a_rest_comes_in_one_frame(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        port.fetches._rests_until = asyncio.get_running_loop().time() + 0.2
        for number in range(5):
            port.node.append(port.replica, b"%d" % number)
            await asyncio.sleep(0)
        assert values((await client.receive())[2]) == [b"0", b"1", b"2", b"3", b"4"]


# What ends it.


@on_virtual_loop
async def test_who_lags_is_sent_one_answer_and_then_fetches(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        for _ in range(4):
            port.node.append(port.replica, os.urandom(100_000))
        client = await port.connect()
        await client.follow(1)
        correlation, head, tail = await client.receive()
        assert (correlation, head.has_ended, head.high_watermark) == (1, True, 4)
        assert 200_000 < len(tail) <= follows.FRAME_BYTES_MAX
        port.node.append(port.replica, b"a")
        await client.send(2, offset=4)
        assert (await client.receive())[0] == 2, "nothing more comes of the follow"
        assert port.fetches.waiting == 0


@on_virtual_loop
async def test_it_ends_with_its_credit_and_goes_on_with_more(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client, 1, credit=1500)
        await begun(client, 2, credit=1500)
        port.node.append(port.replica, b"a" * 1000)
        assert [(await client.receive())[1].has_ended for _ in range(2)] == [False, False]
        await client.credit(2, 1000)
        await client.send(3, offset=0, wait_ms_max=0)  # Comes after the credit.
        assert (await client.receive())[0] == 3
        port.node.append(port.replica, b"b" * 1000)
        ended = {}
        for _ in range(2):
            correlation, head, tail = await client.receive()
            assert values(tail) == [b"b" * 1000]
            ended[correlation] = head.has_ended
        assert ended == {1: True, 2: False}
        assert port.fetches.waiting == 1


@on_virtual_loop
async def test_who_wants_no_more_is_sent_no_more(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client, 1)
        await begun(client, 2)
        await client.credit(1, ends=True)
        await port.waits(1)
        port.node.append(port.replica, b"a")
        assert (await client.receive())[0] == 2
        await begun(client, 1, offset=1)  # Its name is free again.


@on_virtual_loop
async def test_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation in range(5):
            await begun(client, correlation)
        await port.waits(5)
        client.sock.close()
        await port.waits(0)
        await eventually(lambda: port.server.connection_count == 0)


@on_virtual_loop
async def test_a_reader_that_says_nothing_is_given_up_and_one_that_speaks_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(follows, "SILENT_TICKS", 3)
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await client.follow(1)
        await client.follow(2)
        heard: list[int] = []
        while True:
            correlation, head, tail = await client.receive()
            assert tail == b""
            heard.append(correlation)
            if head.HasField("error"):
                break
            await client.credit(2)
        assert (correlation, head.error.code) == (1, "unavailable")
        assert heard.count(1) >= 3, "it was told before that the server is there"
        await port.waits(1)


@on_virtual_loop
async def test_a_replica_that_may_lack_records_sends_away_whoever_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.02)
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        port.fetches._lease_held = lambda: False
        while not (head := (await client.receive())[1]).has_ended:
            pass
        assert head.out_of_sync
        await port.waits(0)


@on_virtual_loop
async def test_the_deletion_of_the_stream_ends_it(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        port.node.delete(port.replica)
        assert (await client.receive())[1].error.code == "stream_not_found"
        await port.waits(0)


@on_virtual_loop
async def test_a_purge_below_the_reader_ends_nothing_and_one_above_it_does(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        port.node.append(port.replica, b"a")
        assert values((await client.receive())[2]) == [b"a"]
        purge(port, 1)
        port.node.append(port.replica, b"b")
        assert values((await client.receive())[2]) == [b"b"]
        port.fetches._rests_until = asyncio.get_running_loop().time() + 0.2
        port.node.append(port.replica, b"secret")
        purge(port, 3)
        _, head, tail = await client.receive()
        assert (head.error.code, tail) == ("offset_out_of_range", b"")
        assert head.error.log_start_offset == 3


def purge(port: Port, below: int) -> None:
    log = port.replica.log
    log.seal()
    log.flush()
    log.begin_advance(below)
    log.finish_advance()


# Rights and quotas.


@on_virtual_loop
async def test_who_loses_the_right_is_told_at_once(tmp_path: Path) -> None:
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await begun(client)
        house.access.changed()
        port.node.append(port.replica, b"a")
        assert values((await client.receive())[2]) == [b"a"], "the right is still there"
        house.state = house.state.without_rule(RULE.id)
        house.access.changed()
        assert (await client.receive())[1].error.code == "permission_denied"
        await port.waits(0)


@pytest.mark.parametrize("is_told", [True, False])
@on_virtual_loop
async def test_who_loses_the_right_with_a_commit_gets_no_record(
    tmp_path: Path, *, is_told: bool
) -> None:
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await begun(client)
        if not is_told:
            house.access._waits.check_again = lambda: None  # type: ignore[method-assign]
        port.node.append(port.replica, b"secret")
        house.state = house.state.without_rule(RULE.id)
        house.access.changed()
        _, head, tail = await client.receive()
        assert (head.error.code, tail) == ("permission_denied", b"")


@on_virtual_loop
async def test_a_quota_that_comes_later_holds_too(tmp_path: Path) -> None:
    """Who is paced is sent the same, each answer in a task, and charged for it."""
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await begun(client)
        port.node.append(port.replica, b"a")
        assert values((await client.receive())[2]) == [b"a"]
        house.access.quotas = replace(house.access.quotas, bytes_per_second=5000)
        paced: list[int] = []
        pace = house.access.pace

        async def counting(identity: Any, stream: Any, length: int) -> None:
            paced.append(length)
            await pace(identity, stream, length)

        house.access.pace = counting  # type: ignore[method-assign]
        house.access.changed()
        for _ in range(3):
            port.node.append(port.replica, os.urandom(1000))
            tail = b""
            while not tail:
                tail = (await client.receive())[2]
        assert len([length for length in paced if length > 1000]) == 3


@on_virtual_loop
async def test_a_follow_is_one_of_the_open_requests_of_its_principal(tmp_path: Path) -> None:
    house = House(requests=2)
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await begun(client, 1)
        await begun(client, 2)
        await client.follow(3)
        assert (await client.receive())[1].error.code == "too_many_requests"
        await client.credit(2, ends=True)
        await begun(client, 4)


# Strangers.


@on_virtual_loop
async def test_a_connection_follows_so_many_streams_and_fetches_beside(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation in range(follows.FOLLOWS_MAX):
            await begun(client, correlation)
        await client.follow(100)
        assert (await client.receive())[1].error.code == "unavailable"
        await client.send(101, wait_ms_max=0)
        assert (await client.receive())[0] == 101


@on_virtual_loop
async def test_credit_for_a_follow_that_is_not_there_is_ignored(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await client.credit(77, 1000)
        await client.credit(78, ends=True)
        await begun(client)


@on_virtual_loop
async def test_an_impossible_position_is_refused(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation, fields in enumerate([{"offset": -1}, {"last_epoch": -2}]):
            await client.follow(correlation, **fields)
            number, head, _ = await client.receive()
            assert (number, head.error.code) == (correlation, "invalid_request")
        await client.follow(5, offset=1000)
        assert (await client.receive())[1].error.code == "offset_out_of_range"


@pytest.mark.parametrize("fault", ["twice", "no credit", "much credit", "more credit", "garbage"])
@on_virtual_loop
async def test_what_no_reader_says_ends_the_connection(tmp_path: Path, fault: str) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await begun(client)
        if fault == "twice":
            await client.follow(1)
        elif fault == "no credit":
            await client.follow(2, credit=0)
        elif fault == "much credit":
            await client.follow(2, credit=(1 << 32) - 1)
        elif fault == "more credit":
            await client.credit(1, follows.CREDIT_MAX)
        else:
            await client.write(frames.encode(Kind.CREDIT, 1, b"\xff\xff"))
        with pytest.raises((EOFError, ConnectionError)):
            await client.receive()
        await port.waits(0)


@on_virtual_loop
async def test_a_slow_reader_is_sent_its_credit_and_delays_nobody(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        slow, fast = await port.connect(buffer=4096), await port.connect()
        await begun(slow, credit=100_000)
        await begun(fast)
        for number in range(60):
            port.node.append(port.replica, b"%d" % number + os.urandom(10_000))
            _, head, tail = await fast.receive()
            (value,) = values(tail)
            assert value is not None
            assert value.startswith(b"%d" % number)
            assert not head.has_ended
            await fast.credit(1, len(tail))
        got = 0
        while True:
            _, head, tail = await slow.receive()
            got += len(tail)
            if head.has_ended:
                break
        assert got <= 100_000 + 11_000
        await port.waits(1)
