"""Too many calls, or too many half sent: the connection with most of them is ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence

import grpc
import pytest
from grpc import aio

from jetstream_protocol.errors import TooManyRequestsError
from jetstream_server.serving.grpc import call_limiter as module
from jetstream_server.serving.grpc.call_limiter import CallLimiter, Connection, connections
from jetstream_server.serving.grpc.close_peer import close_peer
from tests.fuzz import http2
from tests.fuzz.http2 import END_HEADERS, FrameType, frame
from tests.support.loops import eventually, on_loop


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "HALF_SENT_SECONDS", 0.05)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """What channelz says."""
    known: list[Connection] = []
    monkeypatch.setattr(module, "connections", lambda start_id: (list(known), 0))
    return known


async def _calls(callers: CallLimiter, count: int, *, received: bool) -> list[asyncio.Task[None]]:
    async def call() -> None:
        callers.began()
        if received:
            callers.received()
        await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(call()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_few_calls_disturb_nobody(found: list[Connection]) -> None:
    @on_loop
    async def scenario() -> None:
        found.append(Connection("a", 1000, 1000))
        ended: list[str] = []
        callers = CallLimiter(ended.append)
        tasks = await _calls(callers, module.HALF_SENT_MAX, received=False)
        tasks += await _calls(callers, 500, received=True)
        watching = asyncio.create_task(callers.watch())
        await asyncio.sleep(0.2)
        assert ended == []
        await _end([*tasks, watching])
        assert callers.count == 0

    scenario()


def test_without_a_descriptor_to_look_with_it_looks_again(
    found: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 10)

    @on_loop
    async def scenario() -> None:
        found.extend([Connection("known", 9, 0), Connection("stranger", 9, 0)])
        ended: list[str] = []
        lacking = [OSError(errno.EMFILE, "Too many open files") for _ in range(2)]

        def close(peers: Sequence[str]) -> None:
            if lacking:
                raise lacking.pop()
            ended.extend(peers)

        callers = CallLimiter(lambda peer: close([peer]), lambda peer: peer == "known", close)
        tasks = await _calls(callers, 12, received=True)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: ended[:1] == ["stranger"] or watching.done())
        assert not watching.done()
        await _end([*tasks, watching])

    scenario()


def test_with_nearly_all_calls_taken_the_busiest_connection_is_ended(
    found: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 10)

    @on_loop
    async def scenario() -> None:
        found.extend([Connection("few", 2, 2), Connection("most", 9, 0), Connection("one", 1, 1)])
        ended: list[str] = []
        callers = CallLimiter(ended.append)
        tasks = await _calls(callers, 11, received=True)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: ended[:1] == ["most"])
        await _end([*tasks, watching])

    scenario()


def test_with_many_requests_half_sent_the_connection_with_most_of_them_is_ended(
    found: list[Connection],
) -> None:
    @on_loop
    async def scenario() -> None:
        found.extend([Connection("busy", 99, 0), Connection("slow", 40, 40)])
        ended: list[str] = []
        callers = CallLimiter(ended.append)
        tasks = await _calls(callers, module.HALF_SENT_MAX + 1, received=False)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: ended[:1] == ["slow"])
        await _end([*tasks, watching])

    scenario()


def test_connections_with_one_call_are_left_alone(
    found: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 1)

    @on_loop
    async def scenario() -> None:
        found.append(Connection("one", 1, 1))
        ended: list[str] = []
        callers = CallLimiter(ended.append)
        tasks = await _calls(callers, 5, received=True)
        watching = asyncio.create_task(callers.watch())
        await asyncio.sleep(0.1)
        assert ended == []
        await _end([*tasks, watching])

    scenario()


def test_with_nearly_all_calls_taken_strangers_make_room(
    found: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few calls each has: those of the origin that has most, and no more than needed."""
    monkeypatch.setattr(module, "CALLS_HIGH", 10)
    crowd = [f"ipv4:10.0.0.1:{number}" for number in range(4)]

    @on_loop
    async def scenario() -> None:
        found.append(Connection("ipv4:10.0.0.3:1", 9, 0))
        found.extend([Connection("ipv4:10.0.0.2:1", 2, 0), *(Connection(c, 1, 0) for c in crowd)])
        hung_up_on: list[str] = []
        ended: list[str] = []
        callers = CallLimiter(ended.append, lambda peer: "0.3" in peer, hung_up_on.extend)
        tasks = await _calls(callers, 13, received=True)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: bool(hung_up_on))
        assert hung_up_on[:3] == crowd[:3]
        assert not ended
        await _end([*tasks, watching])

    scenario()


def test_requests_half_sent_one_on_each_connection_of_strangers_are_ended(
    found: list[Connection],
) -> None:
    @on_loop
    async def scenario() -> None:
        known = [Connection(f"known{number}", 1, 1) for number in range(40)]
        found.extend([*known, *(Connection(f"ipv4:10.0.0.1:{n}", 1, 1) for n in range(40))])
        hung_up_on: list[str] = []
        ended: list[str] = []
        callers = CallLimiter(ended.append, lambda p: p.startswith("known"), hung_up_on.extend)
        tasks = await _calls(callers, 80, received=False)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: len(hung_up_on) >= 40)
        assert not [each for each in hung_up_on if each.startswith("known")]
        assert not ended
        await _end([*tasks, watching])

    scenario()


def test_a_known_connection_is_ended_only_if_no_stranger_was_met_on_any_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 10)
    stranger = [Connection("stranger", 1, 0)]
    pages = {0: ([Connection("known", 9, 0)], 1), 1: (list(stranger), 0)}
    monkeypatch.setattr(module, "connections", lambda start_id: pages[start_id])

    @on_loop
    async def scenario() -> None:
        hung_up_on: list[str] = []
        ended: list[str] = []
        callers = CallLimiter(ended.append, lambda peer: peer == "known", hung_up_on.extend)
        tasks = await _calls(callers, 11, received=True)
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: len(hung_up_on) > 2)
        assert not ended
        pages[1] = ([Connection("stranger", 0, 0)], 0)
        await eventually(lambda: ended[:1] == ["known"])
        await _end([*tasks, watching])

    scenario()


def test_calls_that_need_no_right_have_a_limit_of_their_own(
    found: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLIC_CALLS_MAX", 4)
    monkeypatch.setattr(module, "PUBLIC_CALLS_HIGH", 3)

    @on_loop
    async def scenario() -> None:
        found.append(Connection("stranger", 4, 0))
        hung_up_on: list[str] = []
        callers = CallLimiter(hung_up_on.append, lambda peer: False, hung_up_on.extend)
        refused = 0

        async def call() -> None:
            nonlocal refused
            try:
                callers.began(is_public=True)
            except TooManyRequestsError:
                refused += 1
                return
            await asyncio.get_running_loop().create_future()

        tasks = [asyncio.create_task(call()) for _ in range(6)]
        tasks += await _calls(callers, 5, received=True)
        assert refused == 2
        watching = asyncio.create_task(callers.watch())
        await eventually(lambda: hung_up_on[:1] == ["stranger"])
        await _end([*tasks, watching])
        assert callers.count == 0
        tasks = [asyncio.create_task(call()) for _ in range(4)]
        await asyncio.sleep(0)
        assert refused == 2
        await _end(tasks)

    scenario()


@on_loop
async def test_grpc_tells_how_many_calls_a_connection_has_and_it_can_be_ended() -> None:
    async def wait(request: bytes, context: object) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    server = aio.server(options=[("grpc.enable_channelz", 1)])
    handler = grpc.unary_unary_rpc_method_handler(wait, bytes, bytes)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(http2.PREFACE + http2.settings())
    for index in range(5):
        headers = frame(
            FrameType.HEADERS, END_HEADERS, 2 * index + 1, http2.call_headers(b"/a.B/C")
        )
        message = b"\0\0\0\0\x0a" + bytes(10 if index < 3 else 5)
        sock.sendall(headers + frame(FrameType.DATA, 0, 2 * index + 1, message))
    peer = f"ipv4:127.0.0.1:{sock.getsockname()[1]}"
    await eventually(lambda: Connection(peer, 5, 2) in connections(0)[0])
    assert close_peer(peer, port)
    sock.settimeout(5)
    with contextlib.suppress(ConnectionError):
        while sock.recv(65_536):
            continue
    sock.close()
    await eventually(lambda: all(each.peer != peer for each in connections(0)[0]))
    await server.stop(None)


def test_hanging_up_ends_the_one_connection_that_is_meant() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    accepted = [listener.accept()[0] for _ in clients]
    wanted = clients[1].getsockname()[1]
    assert not close_peer(f"ipv4:127.0.0.1:{wanted}", port + 1), "another port of ours"
    assert not close_peer("ipv4:127.0.0.1:1", port)
    for nonsense in ("", "unix:/x", "ipv4:", "ipv4:127.0.0.1", "ipv6:[::1]:x", "ipv4:\udcff:9"):
        assert not close_peer(nonsense, port)
    assert close_peer(f"ipv4:127.0.0.1:{wanted}", port)
    for index, client in enumerate(clients):
        client.settimeout(0.2)
        if index == 1:
            assert client.recv(1) == b""
        else:
            with pytest.raises(TimeoutError):
                client.recv(1)
    for sock in (listener, *clients, *accepted):
        sock.close()


def test_hanging_up_knows_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listener.getsockname()[1]
    client = socket.create_connection(("::1", port))
    accepted = listener.accept()[0]
    assert close_peer(f"ipv6:%5B::1%5D:{client.getsockname()[1]}", port)
    assert client.recv(1) == b""
    for sock in (listener, client, accepted):
        sock.close()
