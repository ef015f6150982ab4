"""A client's life: threads, forks, closing, crashes of the server, servers that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    JetstreamError,
    StreamExistsError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.support.loops import on_loop
from tests.support.nats_peer import accept, peer
from tests.support.server import ServerProcess


def test_a_client_serves_many_threads(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client, ThreadPoolExecutor(16) as threads:
        client.create_stream("threads", "threads.>")
        results = list(
            threads.map(lambda n: client.publish("threads.x", b"%d" % n).offset, range(400))
        )
        assert sorted(results) == list(range(400))
        counts = list(threads.map(lambda _: len(client.fetch("threads")), range(16)))
        assert counts == [400] * 16


def test_a_closed_client_says_so(server: ServerProcess) -> None:
    client = Client(server.grpc)
    client.list_streams()
    client.close()
    client.close()
    for call in (client.list_streams, lambda: client.publish("a", b"")):
        with pytest.raises(InvalidRequestError, match="closed"):
            call()


@on_loop
async def test_a_closed_asynchronous_client_says_so(server: ServerProcess) -> None:
    client = AsyncClient(server.grpc)
    await client.list_streams()
    await client.aclose()
    await client.aclose()
    with pytest.raises(InvalidRequestError, match="closed"):
        await client.fetch("any")


def test_closing_ends_the_thread_and_every_socket(server: ServerProcess) -> None:
    """What it leaves behind would be a ResourceWarning here, and that an error."""
    before = threading.active_count()
    for _ in range(3):
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("sockets", "sockets.>")
            client.publish("sockets.x", b"1")
            client.consume("sockets", "latest")
    deadline = time.monotonic() + 60
    while threading.active_count() > before:  # One that has said its last may not be gone yet.
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


async def ended(before: set[asyncio.Task[Any]]) -> None:
    """Return once no other tasks than these run. Raises AssertionError."""
    deadline = asyncio.get_running_loop().time() + 60
    while left := asyncio.all_tasks() - before:
        assert asyncio.get_running_loop().time() < deadline, left
        await asyncio.sleep(0.01)


@on_loop
async def test_closing_sends_what_a_publisher_holds_that_the_program_has_let_go(
    server: ServerProcess,
) -> None:
    before = asyncio.all_tasks()
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("let-go", "let-go.>")
        delivery = await client.publisher("let-go.x", linger=60).send(b"1")
        gc.collect()
    assert (await asyncio.wait_for(delivery, 60)).offset == 0
    await ended(before)


@on_loop
async def test_a_publisher_that_is_given_up_while_it_connects_is_ended(
    server: ServerProcess,
) -> None:
    has_come, may_go_on = asyncio.Event(), asyncio.Event()

    async def hesitant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_come.set()
        await may_go_on.wait()
        await accept(reader, writer)

    async with peer(hesitant) as nats, AsyncClient(server.grpc, nats=nats, timeout=60) as client:
        await client.create_stream("given-up", "given-up.>")
        entering = asyncio.ensure_future(client.publisher("given-up.x").__aenter__())
        await has_come.wait()
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        may_go_on.set()
        await client._publisher.connected()
        assert not client._publishers


@on_loop
async def test_closing_ends_a_group_consumer_that_the_program_has_let_go(
    server: ServerProcess,
) -> None:
    before = asyncio.all_tasks()
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("left", "left.>")
        await client.publish("left.x", b"1")
        async for _ in client.consume_group("left", "leavers"):
            break
        gc.collect()
    await ended(before)
    async with AsyncClient(server.grpc, timeout=60) as client:
        assert (await client.describe_group("leavers")).members == ()


@on_loop
async def test_a_publish_that_waits_its_turn_connects_no_client_that_is_closed(
    server: ServerProcess,
) -> None:
    before = asyncio.all_tasks()
    client = AsyncClient(server.grpc, nats=server.nats, in_flight_max=1)
    await client.create_stream("turns", "turns.>")
    await client.publish("turns.x", b"0")
    publishing = [asyncio.ensure_future(client.publish("turns.x", b"1")) for _ in range(3)]
    await asyncio.sleep(0)
    await client.aclose()
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    assert isinstance(outcomes[-1], JetstreamError)
    await ended(before)


def test_an_unused_client_costs_nothing() -> None:
    before = threading.active_count()
    client = Client("127.0.0.1:1")
    assert threading.active_count() == before
    client.close()


def _in_child(client: Client, results: object) -> None:
    try:
        client.list_streams()
    except JetstreamError as error:
        results.put(f"{type(error).__name__}: {error}")  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_told_to_make_its_own_client(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.list_streams()
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(client, results))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert "InvalidRequestError: this client was made in another process" in results.get()
        assert client.list_streams() is not None


def test_a_configuration_travels_where_a_client_cannot(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        config = pickle.loads(pickle.dumps(client.config))
        with pytest.raises(TypeError, match="pickle its `config`"):
            pickle.dumps(client)
    with Client.from_config(config) as other:
        assert other.describe_cluster().cluster_id


def test_the_clients_own_thread_cannot_wait_for_itself(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:

        async def misuse() -> None:
            client.list_streams()

        with pytest.raises(InvalidRequestError, match="AsyncClient"):
            client._thread.run(misuse())


def test_an_interrupted_call_leaves_the_client_usable(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("interrupted", "interrupted.>")
        code = (
            "import signal, sys, threading, os, time\n"
            "from jetstream_client import Client\n"
            f"client = Client({server.grpc!r})\n"
            "try:\n"
            "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "    client.fetch('interrupted', 0, max_wait=30)\n"
            "except KeyboardInterrupt:\n"
            "    print(len(client.list_streams()) > 0)\n"
            "client.close()\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
        )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_importing_leaves_what_only_some_need_for_later() -> None:
    """Publishers need nats-py, and Arrow users pyarrow: both take long to import."""
    code = "import sys, jetstream_client; print('nats' in sys.modules, 'pyarrow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_a_client_outlives_its_server(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("lasting", "lasting.>")
        acknowledged = [client.publish("lasting.x", b"%d" % n).offset for n in range(50)]
        own_server.kill()
        with pytest.raises((UnknownOutcomeError, UnavailableError)):
            client.publish("lasting.x", b"maybe", timeout=0.5)
        own_server.start()
        after = client.publish("lasting.x", b"after", msg_id="after").offset
        messages = client.fetch("lasting")
        assert [messages[offset].value for offset in acknowledged] == [b"%d" % n for n in range(50)]
        assert messages[after].value == b"after"


def test_a_consumer_outlives_its_server(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("lasting", "lasting.>")
        client.publish("lasting.x", b"1")
        with client.consume("lasting") as consumer:
            assert next(consumer).value == b"1"
            own_server.kill()
            own_server.start()
            client.publish("lasting.x", b"2", msg_id="2")
            assert next(consumer).value == b"2"


@on_loop
async def test_publishers_ride_out_a_restart(own_server: ServerProcess) -> None:
    """Acknowledged means stored; the rest ends as unknown or is stored after all."""
    own_server.start()
    async with AsyncClient(own_server.grpc, timeout=60) as client:
        await client.create_stream("ride", "ride.>", flush="group")
        publishes = [
            asyncio.ensure_future(client.publish("ride.x", b"%d" % n)) for n in range(2000)
        ]
        await asyncio.sleep(0.05)
        own_server.kill()
        await asyncio.to_thread(own_server.start)
        more = [asyncio.ensure_future(client.publish("ride.x", b"more", timeout=60))]
        results = await asyncio.gather(*more)
        assert results[0].stream == "ride"
        stored = {m.offset: m.value async for m in client.consume("ride", stop="latest")}
        for number, publish in enumerate(publishes):
            if publish.done() and publish.exception() is None:
                assert stored[publish.result().offset] == b"%d" % number
            publish.cancel()
        await asyncio.gather(*publishes, return_exceptions=True)


def test_an_unreachable_server_is_unavailable_in_time() -> None:
    with Client("127.0.0.1:1", timeout=0.5) as client:
        for call in (
            client.list_streams,
            lambda: client.create_stream("a", "a"),
            lambda: client.fetch("a", 0),
            lambda: client.publish("a", b""),
        ):
            with pytest.raises(UnavailableError, match=r"cannot reach 127\.0\.0\.1:1"):
                call()


def test_one_server_of_the_list_is_enough(server: ServerProcess) -> None:
    with Client(["127.0.0.1:1", server.grpc]) as client:
        client.create_stream("enough", "enough.>")
        assert client.publish("enough.x", b"1").offset == 0
        assert len(client.fetch("enough")) == 1


def test_a_silent_server_does_not_use_up_the_time_of_the_others(server: ServerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client([address, server.grpc], timeout=8) as client:
            assert client.describe_cluster().cluster_id


def until_answered(client: Client) -> None:
    """The server may take longer than the client waits."""
    while True:
        with contextlib.suppress(UnavailableError):
            client.list_streams()
            return


def test_a_create_without_an_answer_is_unknown_and_may_be_repeated(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=1.0) as client:
        until_answered(client)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(UnknownOutcomeError, match="doing it again is safe"):
                client.create_stream("unsure", "unsure.>")
            with pytest.raises(UnavailableError):
                client.describe_stream("unsure")
        finally:
            os.kill(server.pid, signal.SIGCONT)
    with Client(server.grpc, timeout=60) as client:
        assert client.create_stream("unsure", "unsure.>").name == "unsure"
        with pytest.raises(StreamExistsError):
            client.create_stream("unsure", "unsure.>", flush="none")


def test_a_stranger_on_the_port_is_an_error_not_a_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                connection.settimeout(5)
                while connection.recv(1000):
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Client(address, timeout=1) as client, pytest.raises(JetstreamError):
            client.list_streams()
        thread.join(60)
