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
from jetstream_server.serving.grpc.call_limiter import CallLimiter, Connection
from jetstream_server.serving.grpc.close_peer import close_peer
from jetstream_server.serving.grpc.error_interceptor import ErrorInterceptor
from tests.fuzz import http2
from tests.fuzz.http2 import END_HEADERS, FrameType, frame
from tests.support.loops import eventually, on_loop


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "HALF_SENT_SECONDS", 0.05)


async def _calls(
    callers: CallLimiter, count: int, *, received: bool = True, peer: str = "a"
) -> list[asyncio.Task[None]]:
    async def call() -> None:
        callers.began(peer)
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


@on_loop
async def test_few_calls_disturb_nobody() -> None:
    ended: list[str] = []
    callers = CallLimiter(ended.append)
    tasks = await _calls(callers, module.HALF_SENT_MAX, received=False)
    tasks += await _calls(callers, 500)
    watching = asyncio.create_task(callers.watch())
    await asyncio.sleep(0.2)
    assert ended == []
    await _end([*tasks, watching])
    assert callers.count == 0
    assert callers.connections() == []


@on_loop
async def test_with_nearly_all_calls_taken_the_busiest_connection_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 10)
    ended: list[str] = []
    callers = CallLimiter(ended.append)
    tasks = await _calls(callers, 2, received=False, peer="few")
    tasks += await _calls(callers, 9, peer="most")
    tasks += await _calls(callers, 1, received=False, peer="one")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: ended[:1] == ["most"])
    await _end([*tasks, watching])


@on_loop
async def test_with_many_requests_half_sent_the_connection_with_most_of_them_is_ended() -> None:
    ended: list[str] = []
    callers = CallLimiter(ended.append)
    tasks = await _calls(callers, 99, peer="busy")
    tasks += await _calls(callers, module.HALF_SENT_MAX + 1, received=False, peer="slow")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: ended[:1] == ["slow"])
    await _end([*tasks, watching])


@on_loop
async def test_connections_with_one_call_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 1)
    ended: list[str] = []
    callers = CallLimiter(ended.append)
    tasks = [task for n in range(5) for task in await _calls(callers, 1, peer=str(n))]
    watching = asyncio.create_task(callers.watch())
    await asyncio.sleep(0.1)
    assert ended == []
    await _end([*tasks, watching])


@on_loop
async def test_with_nearly_all_calls_taken_strangers_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However few calls each has: those of the origin that has most, and no more than needed."""
    monkeypatch.setattr(module, "CALLS_HIGH", 12)
    crowd = [f"ipv4:10.0.0.1:{number}" for number in range(4)]
    hung_up_on: list[str] = []
    ended: list[str] = []
    callers = CallLimiter(ended.append, lambda peer: "0.3" in peer, hung_up_on.extend)
    tasks = await _calls(callers, 9, peer="ipv4:10.0.0.3:1")
    tasks += await _calls(callers, 2, peer="ipv4:10.0.0.2:1")
    for peer in crowd:
        tasks += await _calls(callers, 1, peer=peer)
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: bool(hung_up_on))
    assert hung_up_on[:3] == crowd[:3]
    assert not ended
    await _end([*tasks, watching])


@on_loop
async def test_requests_half_sent_one_on_each_connection_of_strangers_are_ended() -> None:
    hung_up_on: list[str] = []
    ended: list[str] = []
    callers = CallLimiter(ended.append, lambda p: p.startswith("known"), hung_up_on.extend)
    tasks = []
    for number in range(40):
        tasks += await _calls(callers, 1, received=False, peer=f"known{number}")
        tasks += await _calls(callers, 1, received=False, peer=f"ipv4:10.0.0.1:{number}")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: len(hung_up_on) >= 40)
    assert not [each for each in hung_up_on if each.startswith("known")]
    assert not ended
    await _end([*tasks, watching])


@on_loop
async def test_a_known_connection_is_ended_only_if_no_stranger_has_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 8)
    hung_up_on: list[str] = []
    ended: list[str] = []
    callers = CallLimiter(ended.append, lambda peer: peer == "known", hung_up_on.extend)
    tasks = await _calls(callers, 9, peer="known")
    of_stranger = await _calls(callers, 1, peer="stranger")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: len(hung_up_on) > 2)
    assert not ended
    await _end(of_stranger)
    await eventually(lambda: ended[:1] == ["known"])
    await _end([*tasks, watching])


@on_loop
async def test_calls_that_need_no_right_have_a_limit_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PUBLIC_CALLS_MAX", 4)
    monkeypatch.setattr(module, "PUBLIC_CALLS_HIGH", 3)
    hung_up_on: list[str] = []
    callers = CallLimiter(hung_up_on.append, lambda peer: False, hung_up_on.extend)
    refused = 0

    async def call() -> None:
        nonlocal refused
        try:
            callers.began("stranger", is_public=True)
        except TooManyRequestsError:
            refused += 1
            return
        await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(call()) for _ in range(6)]
    tasks += await _calls(callers, 5, peer="stranger")
    assert refused == 2
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: hung_up_on[:1] == ["stranger"])
    await _end([*tasks, watching])
    assert callers.count == 0
    tasks = [asyncio.create_task(call()) for _ in range(4)]
    await asyncio.sleep(0)
    assert refused == 2
    await _end(tasks)


@on_loop
async def test_without_a_descriptor_to_look_with_it_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CALLS_HIGH", 10)
    ended: list[str] = []
    lacking = [OSError(errno.EMFILE, "Too many open files") for _ in range(2)]

    def close(peers: Sequence[str]) -> None:
        if lacking:
            raise lacking.pop()
        ended.extend(peers)

    callers = CallLimiter(lambda peer: close([peer]), lambda peer: peer == "known", close)
    tasks = await _calls(callers, 9, peer="known")
    tasks += await _calls(callers, 9, peer="stranger")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: ended[:1] == ["stranger"] or watching.done())
    assert not watching.done()
    await _end([*tasks, watching])


@on_loop
async def test_a_refused_call_counts_until_its_peer_has_read_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 3)
    monkeypatch.setattr(module, "CALLS_HIGH", 2)
    hung_up_on: list[str] = []
    callers = CallLimiter(hung_up_on.append, lambda peer: False, hung_up_on.extend)

    async def call() -> None:
        with contextlib.suppress(TooManyRequestsError):
            callers.began("deaf")
        await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(call()) for _ in range(5)]
    await asyncio.sleep(0)
    assert callers.connections() == [Connection("deaf", 5, 5)]
    with pytest.raises(TooManyRequestsError):
        callers.began("other")
    watching = asyncio.create_task(callers.watch())
    await eventually(lambda: "deaf" in hung_up_on)
    await _end([*tasks, watching])


@on_loop
async def test_a_call_counts_for_its_connection_before_its_request_has_come() -> None:
    async def wait(request: bytes, context: object) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    callers, called = CallLimiter(lambda peer: None), set[str]()
    server = aio.server(interceptors=[ErrorInterceptor(callers, called.add)])
    handlers = {"C": grpc.unary_unary_rpc_method_handler(wait, bytes, bytes)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = []
    with contextlib.ExitStack() as sockets:
        for whole in (3, 0):
            sock = sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            sock.sendall(http2.PREFACE + http2.settings())
            for index in range(5):
                message = b"\0\0\0\0\x0a" + bytes(10 if index < whole else 5)
                sock.sendall(
                    frame(
                        FrameType.HEADERS, END_HEADERS, 2 * index + 1, http2.call_headers(b"/a.B/C")
                    )
                    + frame(FrameType.DATA, 0, 2 * index + 1, message)
                )
            peers.append(f"ipv4:127.0.0.1:{sock.getsockname()[1]}")
        expected = [Connection(peers[0], 5, 2), Connection(peers[1], 5, 5)]
        await eventually(
            lambda: sorted(callers.connections(), key=str) == sorted(expected, key=str)
        )
        assert called == {peers[0]}, "who has not sent a request has not made a call"
        assert close_peer(peers[0], port)
        await eventually(lambda: callers.connections() == expected[1:])
    await eventually(lambda: callers.count == 0)
    await server.stop(None)


@on_loop
async def test_a_call_without_a_request_is_refused_and_one_that_is_left_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callers = CallLimiter(lambda peer: None)
    server = aio.server(interceptors=[ErrorInterceptor(callers)])

    async def answer(request: bytes, context: object) -> bytes:
        return request

    handlers = {"C": grpc.unary_unary_rpc_method_handler(answer, bytes, bytes)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_unary("/a.B/C")(iter(()))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = channel.unary_unary("/a.B/D")(b"")
        assert await unknown.code() is grpc.StatusCode.UNIMPLEMENTED
        left = channel.stream_unary("/a.B/C")()
        await left.wait_for_connection()
        await eventually(lambda: callers.count == 1)
        left.cancel()
        await eventually(lambda: callers.count == 0)
        assert await channel.unary_unary("/a.B/C")(b"x") == b"x"
    await server.stop(None)
    assert not [each for each in caplog.records if each.name.startswith("grpc")]


async def _refused(callers: CallLimiter, peer: str) -> None:
    async def call() -> None:
        callers.began(peer)
        callers.received()
        await callers.refuse()

    await asyncio.create_task(call())


@on_loop
async def test_strangers_who_go_on_calling_while_they_are_refused_are_hung_up_on() -> None:
    """Others wait behind their calls. Who waits for each refusal is not held to be one of them, nor
    who is known."""
    hung_up_on: list[str] = []
    ended: list[str] = []
    callers = CallLimiter(ended.append, lambda peer: peer == "known", hung_up_on.extend)
    for _ in range(3):
        await _refused(callers, "patient")
    crowd = [_refused(callers, "known") for _ in range(2 * module.REFUSED_MAX)]
    crowd += [_refused(callers, peer) for peer in "ab" for _ in range(module.REFUSED_MAX // 2)]
    await asyncio.gather(*crowd)
    assert not hung_up_on
    calls = await _calls(callers, 1, peer="c")
    crowd = [_refused(callers, peer) for peer in "abc" for _ in range(module.REFUSED_MAX // 2)]
    await asyncio.gather(*crowd, _refused(callers, "patient"))
    assert {*hung_up_on} >= {"a", "b"}
    assert {*hung_up_on} <= {"a", "b", "c"}
    assert not ended
    await _end(calls)
    assert callers.count == 0
