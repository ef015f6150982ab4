"""Fetches that wait at the data plane: without a task, woken together, answered as ever."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol import frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.replication.replica import Replica
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving import long_poll
from jetstream_server.serving.dataplane import connection as connections
from jetstream_server.serving.long_poll import FetchPosition, LongPoll
from tests.support.access import open_to_all
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop
from tests.unit.serving.data_plane_port import RULE, House, data_plane, values


class Reads:
    """Counts the looks at a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = Replica.read

        def counting(replica: Replica, *arguments: Any, **more: Any) -> Any:
            self.count += 1
            return read(replica, *arguments, **more)

        monkeypatch.setattr(Replica, "read", counting)


@on_virtual_loop
async def test_a_fetch_that_waits_has_no_task(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        tasks = len(asyncio.all_tasks())
        for correlation in range(20):
            await client.send(correlation)
        await port.waits(20)
        assert len(asyncio.all_tasks()) == tasks
        port.node.append(port.replica, b"a")
        for correlation in range(20):
            number, _, tail = await client.receive()
            assert (number, values(tail)) == (correlation, [b"a"])
        assert port.fetches.times.fetches == 20


@on_virtual_loop
async def test_fetches_that_wait_at_the_same_place_share_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "TURN_SECONDS", 60.0)  # All of them in one turn.
    async with data_plane(tmp_path) as port:
        clients = [await port.connect() for _ in range(30)]
        for number, client in enumerate(clients):
            await client.send(100 + number, bytes_max=1000)
        await port.waits(30)
        reads = Reads(monkeypatch)
        port.node.append(port.replica, b"a", b"b")
        for number, client in enumerate(clients):
            correlation, head, tail = await client.receive()
            assert (correlation, head.high_watermark) == (100 + number, 2)
            assert values(tail) == [b"a", b"b"]
        assert reads.count == 1
        assert port.fetches.waiting == 0


@on_virtual_loop
async def test_fetches_that_want_something_else_share_nothing(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, b"a" * 1000)
        client = await port.connect()
        first = len(port.replica.log.pread(port.replica.read(0, 1 << 20)))  # type: ignore[arg-type]
        await client.send(1, offset=1)
        await client.send(2, offset=0, bytes_min=first + 1)
        await client.send(3, offset=0, bytes_min=first + 1, bytes_max=first + 2)
        await client.send(4, offset=1, bytes_min=1 << 20)
        await port.waits(4)
        port.node.append(port.replica, b"b" * 1000)
        answers = {}
        for _ in range(3):
            correlation, _, tail = await client.receive()
            answers[correlation] = [value[:1] for value in values(tail) if value]
        assert answers == {1: [b"b"], 2: [b"a", b"b"], 3: [b"a"]}
        assert port.fetches.waiting == 1


@on_virtual_loop
async def test_nothing_is_shared_between_two_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second commit comes between two turns."""
    monkeypatch.setattr(long_poll, "TURN_SECONDS", 0.0)  # One fetch each turn.
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation in range(3):
            await client.send(correlation)
        await port.waits(3)
        port.node.append(port.replica, b"a")
        loop = asyncio.get_running_loop()
        loop.call_soon(port.node.append, port.replica, b"b")
        found = [values((await client.receive())[2]) for _ in range(3)]
        assert found == [[b"a"], [b"a", b"b"], [b"a", b"b"]]
        port.node.append(port.replica, b"c")
        await client.send(3)
        assert values((await client.receive())[2]) == [b"a", b"b", b"c"]


@on_virtual_loop
async def test_what_others_found_is_not_sent_once_it_is_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two that were woken together waits for more, and meanwhile the records are removed."""
    monkeypatch.setattr(long_poll, "TURN_SECONDS", 60.0)  # Both in one turn.
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        await client.send(1, bytes_min=1000, wait_ms_max=800)
        await client.send(2)
        await port.waits(2)
        port.node.append(port.replica, b"secret")
        correlation, _, tail = await client.receive()
        assert (correlation, values(tail)) == (2, [b"secret"])
        log = port.replica.log
        log.seal()
        log.flush()
        log.begin_advance(1)
        log.finish_advance()
        correlation, head, tail = await client.receive()
        assert (correlation, head.error.code, tail) == (1, "offset_out_of_range", b"")


@on_virtual_loop
async def test_woken_fetches_leave_the_loop_to_others_after_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "TURN_SECONDS", 0.0)
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all())
    order: list[int] = []
    loop = asyncio.get_running_loop()

    def answer(_: object) -> None:
        order.append(1)
        loop.call_soon(order.append, 2)

    def refuse(error: Exception) -> None:
        raise error

    for _ in range(3):
        fetches.begin(replica, position(wait_ms_max=60_000), ANONYMOUS, answer, refuse)
    node.append(replica, b"a")
    assert order == [], "nothing is answered within the commit"
    await eventually(lambda: len(order) == 6)
    assert order == [1, 2] * 3


def position(offset: int = 0, **fields: int) -> FetchPosition:
    defaults: dict[str, int] = {"bytes_max": 0, "bytes_min": 0, "wait_ms_max": 0, **fields}
    return FetchPosition.checked(offset=offset, last_epoch=None, **defaults)


@on_virtual_loop
async def test_a_fault_in_one_fetch_is_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all())
    heard: list[object] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    for answer in (fail, heard.append):
        fetches.begin(replica, position(wait_ms_max=60_000), ANONYMOUS, answer, heard.append)
    node.append(replica, b"a")
    await eventually(lambda: len(heard) == 2)
    assert isinstance(heard[0], ZeroDivisionError)
    assert fetches.waiting == 0


@on_virtual_loop
async def test_an_empty_answer_comes_after_the_time_and_a_deletion_at_once(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        begun = asyncio.get_running_loop().time()
        await client.send(1, wait_ms_max=200)
        correlation, head, tail = await client.receive()
        assert (correlation, tail, head.HasField("error")) == (1, b"", False)
        assert asyncio.get_running_loop().time() - begun > 0.19
        await client.send(2)
        await port.waits(1)
        port.node.delete(port.replica)
        correlation, head, _ = await client.receive()
        assert (correlation, head.error.code) == (2, "stream_not_found")
        assert port.fetches.waiting == 0


@on_virtual_loop
async def test_who_loses_the_right_is_told_while_waiting(tmp_path: Path) -> None:
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await client.send(5)
        await port.waits(1)
        house.access.changed()
        await asyncio.sleep(0.02)
        assert port.fetches.waiting == 1, "the right is still there"
        house.state = house.state.without_rule(RULE.id)
        house.access.changed()
        correlation, head, _ = await client.receive()
        assert (correlation, head.error.code) == (5, "permission_denied")
        assert port.fetches.waiting == 0
        port.node.append(port.replica, b"a")
        await client.send(6)
        assert (await client.receive())[1].error.code == "permission_denied"


@on_virtual_loop
async def test_who_loses_the_right_with_the_commit_gets_no_record(tmp_path: Path) -> None:
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await client.send(5)
        await port.waits(1)
        port.node.append(port.replica, b"secret")
        house.state = house.state.without_rule(RULE.id)
        house.access.changed()
        correlation, head, tail = await client.receive()
        assert (correlation, head.error.code, tail) == (5, "permission_denied", b"")


@on_virtual_loop
async def test_who_loses_the_right_before_its_look_gets_no_record(tmp_path: Path) -> None:
    """The change is not told to those who wait; only what was decided before is void."""
    house = House()
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        await client.send(5)
        await port.waits(1)
        house.access._waits.check_again = lambda: None  # type: ignore[method-assign]
        port.node.append(port.replica, b"secret")
        house.state = house.state.without_rule(RULE.id)
        house.access.changed()
        correlation, head, tail = await client.receive()
        assert (correlation, head.error.code, tail) == (5, "permission_denied", b"")


@on_virtual_loop
async def test_waiting_fetches_are_counted_and_the_count_goes_down(tmp_path: Path) -> None:
    house = House(requests=3)
    async with data_plane(tmp_path, house.access) as port:
        clients = [await port.connect(), await port.connect()]
        for correlation in range(3):
            await clients[0].send(correlation)
        await port.waits(3)
        await clients[1].send(3)
        correlation, head, _ = await clients[1].receive()
        assert (correlation, head.error.code) == (3, "too_many_requests")
        clients[0].sock.close()
        await port.waits(0)
        await clients[1].send(4)
        await port.waits(1)
        port.node.append(port.replica, b"a")
        assert values((await clients[1].receive())[2]) == [b"a"]
        for correlation in range(3):
            await clients[1].send(correlation, offset=1)
        await port.waits(3)


@on_virtual_loop
async def test_a_paced_reader_waits_for_its_rate(tmp_path: Path) -> None:
    house = House(bytes_per_second=5000)
    async with data_plane(tmp_path, house.access) as port:
        client = await port.connect()
        begun = asyncio.get_running_loop().time()
        for offset in range(4):
            await client.send(offset, offset=offset)
            await port.waits(1)
            port.node.append(port.replica, os.urandom(2500))
            assert len((await client.receive())[2]) > 2500
        assert asyncio.get_running_loop().time() - begun > 0.4


@on_virtual_loop
async def test_a_connection_serves_64_at_a_time_and_then_the_next(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation in range(connections.PENDING_MAX + 6):
            await client.send(correlation, bytes_min=1 if correlation < 3 else 1000)
        await port.waits(connections.PENDING_MAX)
        await asyncio.sleep(0.05)
        assert port.fetches.waiting == connections.PENDING_MAX
        port.node.append(port.replica, b"a")
        assert [(await client.receive())[0] for _ in range(3)] == [0, 1, 2]
        await port.waits(connections.PENDING_MAX)
        port.node.append(port.replica, b"b" * 1000)
        got = {(await client.receive())[0] for _ in range(connections.PENDING_MAX + 3)}
        assert got == set(range(3, connections.PENDING_MAX + 6))


@on_virtual_loop
async def test_who_leaves_with_all_its_fetches_waiting_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    async with data_plane(tmp_path) as port:
        client = await port.connect()
        for correlation in range(connections.PENDING_MAX):
            await client.send(correlation)
        await port.waits(connections.PENDING_MAX)
        await asyncio.sleep(0.2)
        assert port.fetches.waiting == connections.PENDING_MAX, "it is still there"
        client.sock.close()
        await port.waits(0)
        await eventually(lambda: port.server.connection_count == 0)


@on_virtual_loop
async def test_the_hello_of_a_node_is_not_taken_while_a_fetch_waits(tmp_path: Path) -> None:
    hello = frames.encode(Kind.NODE_HELLO, 9, pb.NodeHello(node_id=1).SerializeToString())
    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, b"a")
        client = await port.connect()
        await client.send(1)
        assert (await client.receive())[0] == 1
        await client.write(hello)
        assert (await client.receive())[0] == 9, "it was taken: the answer refuses the proof"
        client = await port.connect()
        await client.send(2, offset=1)
        await port.waits(1)
        await client.write(hello)
        with pytest.raises((EOFError, ConnectionError)):
            await client.receive()
        await port.waits(0)


@on_virtual_loop
async def test_answers_come_whole_and_in_turn_to_a_client_that_reads_slowly(
    tmp_path: Path,
) -> None:
    sent = [os.urandom(20_000) for _ in range(12)]
    async with data_plane(tmp_path) as port:
        client = await port.connect(buffer=4096)
        for value in sent:
            port.node.append(port.replica, value)
        for offset in range(12):
            await client.send(offset, offset=offset, bytes_max=1)
        await client.send(12, offset=12)
        await asyncio.sleep(0.1)
        port.node.append(port.replica, b"last")
        await asyncio.sleep(0.1)
        for correlation, value in enumerate([*sent, b"last"]):
            number, _, tail = await client.receive()
            assert (number, values(tail)) == (correlation, [value])


@on_virtual_loop
async def test_nothing_is_sent_in_the_middle_of_an_answer_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another answer waits for its turn when the file of a long one cannot be sent any more."""
    sendfile, calls = os.sendfile, iter([10_000, 0])

    def fail(out: int, file: int, position: int, count: int) -> int:
        allowed = next(calls, None)
        if allowed is None:
            raise OSError(errno.ENOMEM, "no memory")
        if allowed == 0:
            raise BlockingIOError
        return sendfile(out, file, position, min(count, allowed))

    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, os.urandom(100_000))
        port.node.append(port.replica, b"next")
        client = await port.connect()
        monkeypatch.setattr(os, "sendfile", fail)
        await client.send(1, offset=0, bytes_max=1)
        await client.send(2, offset=1)
        data = b""
        with suppress(ConnectionError):
            while chunk := await asyncio.get_running_loop().sock_recv(client.sock, 1 << 20):
                data += chunk
        await eventually(lambda: port.server.connection_count == 0)
        assert len(data) > 10_000
        assert b"next" not in data


@on_virtual_loop
async def test_a_client_that_takes_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, os.urandom(20_000))
        client = await port.connect(buffer=4096)
        for correlation in range(30):
            await client.send(correlation)
        await client.send(30, offset=1)
        await port.waits(1)
        client.sock.close()
        await eventually(lambda: port.server.connection_count == 0)
        assert port.fetches.waiting == 0


@on_virtual_loop
async def test_a_file_that_cannot_be_read_when_a_fetch_is_woken_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    async with data_plane(tmp_path) as port:
        port.node.append(port.replica, b"a")
        monkeypatch.setattr(
            port.node.replicas, "suspect", lambda _, offset, error: looked_at.append(offset)
        )
        client = await port.connect()
        await client.send(1, offset=1)
        await port.waits(1)
        port.node.append(port.replica, b"b")
        found = port.replica.read(1, 1000)
        assert found is not None
        os.truncate(found.path, 10)
        _, head, tail = await client.receive()
        assert (head.error.code, head.error.retriable, tail) == ("unavailable", True, b"")
        assert looked_at == [1]
        await client.send(2, offset=2, wait_ms_max=0)
        assert not (await client.receive())[1].HasField("error")
