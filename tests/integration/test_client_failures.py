"""Ordinary failures: what a program that uses the SDK is told, when, and that nothing else is said.

Programs are processes of their own: what asyncio, gRPC and nats-py would say past them is on
standard error, and that is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jetstream_client
from jetstream_client import (
    AsyncClient,
    Client,
    ClientConfig,
    ConnectionEvent,
    InvalidRequestError,
    JetstreamError,
    UnavailableError,
)
from jetstream_client.cli.main import run
from tests.support.fork_server import fork_server
from tests.support.lateness import Lateness
from tests.support.loops import on_loop
from tests.support.server import ServerProcess, free_port_base, running_server

PATIENCE = 1.0
LATE = 0.9
"""By how much a timeout may be late; one that is taken twice is later than that."""
HUNG_SECONDS = 3600.0
"""Of what is said at once: no test waits for so long."""


def program(code: str, *arguments: str, warnings: str = "error") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", code, *arguments],
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Its standard output, after a line on its standard input. Nothing is on standard error, and it
    has not failed."""
    with process:
        stdout, stderr = process.communicate("\n", timeout=120)
    assert (stderr, process.returncode) == ("", 0)
    return stdout


# What others say past us.

SENDING = """
import asyncio, select, sys
from jetstream_client import AsyncClient, Client, JetstreamError
def tell(error):
    print(type(error).__module__, type(error).__name__, flush=True)
with Client(sys.argv[1], timeout=60) as client:
    client.create_stream("sent", "sent.>")
with Client(sys.argv[1], timeout=1) as client:
    try:
        with client.publisher("sent.x", delivery_timeout=1.5) as publisher:
            print("sending", flush=True)
            while not select.select([sys.stdin], [], [], 0.001)[0]:
                publisher.send(b"x" * 100)
            publisher.send(b"The server has ended.")
    except JetstreamError as error:
        tell(error)
async def main():
    async with AsyncClient(sys.argv[1], timeout=1) as client:
        tasks = [asyncio.ensure_future(client.publish("sent.x", b"1")) for _ in range(100)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        tell(outcomes[0])
asyncio.run(main())
"""


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_server_that_ends_under_a_publisher_is_an_error_of_ours_and_no_more(
    own_server: ServerProcess, ending: str
) -> None:
    own_server.start()
    process = program(SENDING, own_server.grpc)
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    time.sleep(0.5)
    getattr(own_server, ending)()
    for line in ended(process).splitlines():
        assert line.startswith("jetstream_protocol.errors ")


def test_who_waits_for_an_answer_is_told_that_nats_is_lost(own_server: ServerProcess) -> None:
    own_server.start()
    is_lost = threading.Event()

    def note(event: ConnectionEvent) -> None:
        if event.kind == "nats":
            is_lost.set()

    with Client(own_server.grpc, timeout=60, disconnected_cb=note) as client:
        client.create_stream("told", "told.>")
        client.publish("told.x", b"1")
        with client.publisher("told.x", delivery_timeout=1.0) as publisher:
            own_server.kill()
            assert is_lost.wait(60)
            lost = r"the connection to NATS at nats://127.0.0.1:\d+ is lost: "
            with pytest.raises(JetstreamError, match=lost):
                publisher.send(b"2").result()
            with pytest.raises(JetstreamError, match=lost):
                client.publish("told.x", b"2", timeout=1.0)


def test_a_client_that_is_closed_while_nats_is_away_leaves_no_task(
    own_server: ServerProcess,
) -> None:
    own_server.start()

    async def main() -> None:
        lost = asyncio.Event()

        def note(event: ConnectionEvent) -> None:
            if event.kind == "nats":
                lost.set()

        client = AsyncClient(own_server.grpc, disconnected_cb=note)
        await client.create_stream("left", "left.>")
        await client.publish("left.x", b"1")
        await asyncio.to_thread(own_server.stop)
        await lost.wait()
        waiting = asyncio.ensure_future(client.publish("left.x", b"2"))
        await asyncio.sleep(0)
        await client.aclose()
        await asyncio.gather(waiting, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        async with asyncio.timeout(60):
            await asyncio.gather(*left, return_exceptions=True)

    asyncio.run(main())


FORKING = """
import gc, multiprocessing, os, sys
from jetstream_client import Client, InvalidRequestError
client = Client(sys.argv[1])
client.create_stream("forked", "forked.>")
publisher = client.publisher("forked.x")
publisher.send(b"1").result()
publisher.send(b"also").result()
consumer = iter(client.consume("forked"))
next(consumer)
child = os.fork()
if child == 0:
    try:
        client.list_streams()
    except InvalidRequestError as error:
        print(error, flush=True)
    try:
        print(next(consumer))
    except InvalidRequestError:
        print("no record", flush=True)
    del client, consumer, publisher
    gc.collect()
    sys.exit(0)
os.waitpid(child, 0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]), flush=True)
next(consumer)
publisher.send(b"2").result()
print(next(consumer).value, len(client.list_streams()) > 0, flush=True)
client.close()
"""


def test_a_fork_hears_of_it_in_an_error_and_not_from_grpc(server: ServerProcess) -> None:
    said = ended(program(FORKING, server.grpc, warnings="ignore"))
    first, *others = said.splitlines()
    assert "made in another process" in first
    assert others == ["no record", "[1, 2]", "b'2' True"]


CLIENTS = """
import asyncio, random, sys, threading
from jetstream_client import AsyncClient, Client
address = sys.argv[1]
def churn():
    for _ in range(10):
        clients = [Client(address), Client(address)]
        for client in clients:
            client.list_streams()
        random.shuffle(clients)
        clients[0].close()
        clients[1].list_streams()
        clients[1].close()
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with Client(address) as client:
    client.create_stream("shared", "shared.>")
async def main():
    client = AsyncClient(address)  # never closed
    await asyncio.gather(*(client.list_streams() for _ in range(20)))
    await client.publish("shared.x", b"1")
    async for _ in client.consume("shared"):
        break
for _ in range(5):
    asyncio.run(main())
left = [Client(address) for _ in range(3)]  # neither
for client in left:
    client.list_streams()
consumer = left[0].consume("shared")
next(consumer)
print("end")
"""


def test_clients_are_closed_in_any_order_or_never(server: ServerProcess) -> None:
    assert ended(program(CLIENTS, server.grpc, warnings="ignore")) == "end\n"


# Timeouts.


def in_time(wait: Callable[[], object], attempts: int = 12) -> None:
    """`wait` takes PATIENCE seconds, and hardly more than the machine is late. One that is busy may
    be later still, but not each time."""
    lateness = Lateness()
    lateness.start()
    try:
        for _ in range(attempts):
            begun = time.monotonic()
            wait()
            seconds = time.monotonic() - begun
            if seconds < PATIENCE + LATE + lateness.since(begun):
                return
    finally:
        lateness.stop()
    raise AssertionError(f"{seconds:.2f} s in place of {PATIENCE}")


def patiently(call: Callable[[], object]) -> None:
    """Until the server answers in time."""
    while True:
        with contextlib.suppress(UnavailableError):
            call()
            return


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


CALLS: list[Callable[[Client], Any]] = [
    lambda client: client.publish("a", b"", timeout=PATIENCE),
    lambda client: next(client.consume("a", patience=PATIENCE)),
    lambda client: next(client.consume("a", 0, patience=PATIENCE)),
]
CALLS_OF_A_CLIENT: list[Callable[[Client], Any]] = [
    lambda client: client.fetch("a", 0),
    lambda client: client.publisher("a").send(b""),
    lambda client: next(iter(client.consume_group("a", "g"))),
    lambda client: client.process("a", print, cursor="c"),
    lambda client: client.process("a", print, group="g"),
]
IDS = ["fetch an offset", "publisher", "group", "process a cursor", "process a group"]


@pytest.mark.parametrize("call", CALLS, ids=["publish", "consume", "consume an offset"])
def test_a_timeout_of_a_call_holds_whatever_the_client_s_is(
    silent: str, call: Callable[[Client], Any]
) -> None:
    with Client(silent, timeout=60) as client:

        def wait() -> None:
            with pytest.raises(UnavailableError):
                call(client)

        in_time(wait)


@pytest.mark.parametrize("call", CALLS_OF_A_CLIENT, ids=IDS)
def test_what_takes_several_calls_takes_a_client_s_timeout_once(
    silent: str, call: Callable[[Client], Any]
) -> None:
    # A publisher whose loop is late by the grace of its call does not hear what became of it.
    reason = f"cannot reach {silent}: it does not answer|no server answered in time"

    def wait() -> None:
        with (
            Client(silent, timeout=PATIENCE) as client,
            pytest.raises(UnavailableError, match=reason),
        ):
            call(client)

    in_time(wait)


@pytest.mark.parametrize("call", CALLS_OF_A_CLIENT, ids=IDS)
def test_every_first_call_says_at_once_that_nobody_listens(call: Callable[[Client], Any]) -> None:
    with (
        Client("127.0.0.1:1", timeout=HUNG_SECONDS) as client,
        pytest.raises(UnavailableError, match="jetstream-server --dev"),
    ):
        call(client)


def test_patience_ends_in_time_on_an_idle_stream_and_when_the_server_freezes(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("idle", "idle.>")
        client.publish("idle.x", b"1")
        consumer = client.consume("idle", patience=PATIENCE)
        patiently(lambda: next(consumer))

        def wait() -> None:
            with pytest.raises(UnavailableError):
                next(consumer)

        def publish() -> None:
            with pytest.raises(UnavailableError):
                client.publish("idle.y", b"", timeout=PATIENCE)

        in_time(wait)
        os.kill(own_server.pid, signal.SIGSTOP)
        in_time(wait)
        in_time(publish)


@pytest.mark.parametrize("command", ["stream list", "fetch a", "publish a x", "cluster status"])
def test_the_command_line_s_timeout_is_one(
    silent: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait() -> None:
        assert run([*command.split(), "--server", silent, "--timeout", str(PATIENCE)]) == 4
        said = capsys.readouterr().err
        assert said.startswith(f"error: cannot reach {silent}: it does not answer")
        assert said.count("\n") == 1

    in_time(wait)


JETSTREAM = [sys.executable, "-m", "jetstream_client"]


def test_lines_are_told_of_as_they_are_stored_and_the_first_that_is_not_ends_the_command(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("lines", "lines.>")
    options = ["--server", own_server.grpc, "--timeout", "6", "--json"]
    with fork_server.start(
        [*JETSTREAM, "publish", "lines.x", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=False,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["offset"] == 0
        os.kill(own_server.pid, signal.SIGSTOP)
        process.stdin.write(b"two\n")
        process.stdin.flush()
        assert process.wait(timeout=60) in (4, 5)
        assert process.stderr.read().endswith(b"\nerror: of the lines before it, 1 are stored\n")


def test_a_repeated_publish_that_fails_tells_how_many_are_stored(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("repeated", "repeated")
        arguments = ["publish", "repeated", "x", "-n", "1000000", "--json", "--timeout", "60"]
        with fork_server.start(
            [*JETSTREAM, *arguments, "--server", own_server.grpc],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=False,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            client.set_stream_readonly("repeated")
            offsets = {0} | {json.loads(line)["offset"] for line in process.stdout}
            assert process.wait(timeout=60) != 0
            text = process.stderr.read().decode()
        assert f"of 1000000 messages, {len(offsets)} are stored for certain" in text


def test_a_benchmark_ends_when_its_server_freezes(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc) as client:
        client.create_stream("bench", "bench.>")
        options = ["--server", own_server.grpc, "--timeout", "6"]
        with fork_server.start(
            [*JETSTREAM, "bench", "publish", "bench.x", "--messages", "1000000000", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=False,
        ) as process:
            assert process.stderr is not None
            while client.offset_at("bench", "latest") < 10_000:
                assert process.poll() is None
            os.kill(own_server.pid, signal.SIGSTOP)
            assert process.wait(timeout=60) in (4, 5)
            assert process.stderr.read().count(b"\n") == 1


# Where nobody is, or somebody else.


def test_a_refused_connection_is_said_at_once_and_what_to_try() -> None:
    with Client("127.0.0.1:1", timeout=HUNG_SECONDS) as client:
        with pytest.raises(UnavailableError, match="jetstream-server --dev"):
            client.list_streams()
        with pytest.raises(UnavailableError, match="connection refused"):
            client.publish("a", b"")


def test_who_has_met_a_server_waits_for_it_to_come_back(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=PATIENCE) as client:
        patiently(client.list_streams)
        own_server.kill()

        def wait() -> None:
            with pytest.raises(UnavailableError, match="connection refused"):
                client.list_streams()

        begun = time.monotonic()
        in_time(wait)
        assert time.monotonic() - begun > PATIENCE * 0.4


def test_who_says_so_waits_for_a_server_that_was_never_there() -> None:
    config = ClientConfig(("127.0.0.1:1",), timeout=PATIENCE, retry_on_failed_connect=True)
    with Client.from_config(config) as client:
        begun = time.monotonic()
        with pytest.raises(UnavailableError, match="connection refused"):
            client.list_streams()
        assert time.monotonic() - begun > PATIENCE * 0.4


@pytest.mark.parametrize(
    ("port", "name"), [(1, "the data plane's port"), (3, "an HTTP port"), (4, "NATS")]
)
def test_a_wrong_port_of_ours_is_named(server: ServerProcess, port: int, name: str) -> None:
    address = f"127.0.0.1:{server.port_base + port}"
    with (
        Client(address, timeout=HUNG_SECONDS) as client,
        pytest.raises(InvalidRequestError, match=f"{address} is {name}.*gRPC port"),
    ):
        client.list_streams()


@pytest.mark.parametrize(
    ("port", "name"), [(0, "the gRPC port"), (1, "the data plane's port"), (3, "an HTTP port")]
)
def test_a_port_of_ours_that_is_not_nats_is_named(
    server: ServerProcess, port: int, name: str
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("elsewhere", "elsewhere.>")
    url = f"nats://127.0.0.1:{server.port_base + port}"
    with (
        Client(server.grpc, nats=url, timeout=HUNG_SECONDS) as client,
        pytest.raises(InvalidRequestError, match=f"{url} is {name}.* not NATS"),
    ):
        client.publish("elsewhere.x", b"")


def test_nats_where_nobody_listens_is_said_at_once(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("elsewhere", "elsewhere.>")
    with (
        Client(server.grpc, nats="nats://127.0.0.1:1", timeout=HUNG_SECONDS) as client,
        pytest.raises(UnavailableError, match=r"cannot connect to NATS.*refused"),
    ):
        client.publish("elsewhere.x", b"")


def test_nats_that_is_away_is_named(tmp_path: Path) -> None:
    """The cluster names it, and it may come back: so this takes the timeout."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent_nats,
        running_server(tmp_path / "data") as server,
    ):
        url = f"nats://user:secret@127.0.0.1:{silent_nats.getsockname()[1]}"
        with Client(server.grpc, nats=url, timeout=60) as client:
            client.create_stream("away", "away.>")
            with pytest.raises(UnavailableError, match=r"NATS at nats://127.0.0.1:\d+ in time"):
                client.publish("away.x", b"", timeout=PATIENCE)


# The log.


def test_connections_lost_and_found_are_in_the_log(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jetstream_client")
    own_server.start()

    def wait_for(*words: str) -> None:
        deadline = time.monotonic() + 60
        while not any(all(word in line for word in words) for line in caplog.messages):
            assert time.monotonic() < deadline, caplog.messages
            time.sleep(0.05)

    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("logged", "logged.>")
        with client.publisher("logged.x") as publisher:
            publisher.send(b"1").result()
            consumer = client.consume("logged")
            next(consumer)
            for words in ("the node", own_server.grpc), ("connected to NATS",), ("data plane",):
                wait_for(*words)
            caplog.clear()
            own_server.kill()
            wait_for("lost NATS")
            wait_for("lost the data plane")
            delivery = publisher.send(b"2")
            wait_for("'logged.x'", "trying again")
            deadline = time.monotonic() + 60
            while len(lines := [line for line in caplog.messages if "NATS: " in line]) == len(
                set(lines)
            ):
                assert time.monotonic() < deadline, lines
                time.sleep(0.05)
            own_server.start()
            delivery.result(60)
            assert next(consumer).value == b"2"
            wait_for("'logged.x' goes on")
            wait_for("connected to NATS", "again")
            client.list_streams()
    assert {record.name for record in caplog.records} == {"jetstream_client"}
    said = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    tried = [text for text in said if text.startswith("NATS: ")]
    assert len(tried) == len(set(tried)), "an attempt to connect warns of what is known"


def test_callbacks_are_told_of_connections_and_of_errors(own_server: ServerProcess) -> None:
    """A callback runs in a thread of its own: it may use the client."""
    lost: list[ConnectionEvent] = []
    found: list[ConnectionEvent] = []
    errors: list[JetstreamError] = []
    closed: list[str] = []
    own_server.start()

    def wait_for(what: str, events: list[ConnectionEvent]) -> None:
        deadline = time.monotonic() + 60
        while {each.kind for each in events} != {"grpc", "data", "nats"}:
            assert time.monotonic() < deadline, (what, events)
            time.sleep(0.05)

    def reconnected(event: ConnectionEvent) -> None:
        assert client.list_streams()
        found.append(event)

    with Client(
        own_server.grpc,
        timeout=60,
        disconnected_cb=lost.append,
        reconnected_cb=reconnected,
        error_cb=errors.append,
        closed_cb=lambda: closed.append("closed"),
    ) as client:
        client.create_stream("told", "told.>")
        client.publish("told.x", b"1")
        consumer = client.consume("told")
        next(consumer)
        assert (lost, found, errors) == ([], [], [])
        own_server.kill()
        own_server.start()
        client.publish("told.x", b"2", msg_id="2")
        assert next(consumer).value == b"2"
        client.list_streams()
        wait_for("lost", lost)
        wait_for("found", found)
    assert all(event.reason for event in lost)
    assert {event.address for event in found if event.kind == "grpc"} == {own_server.grpc}
    assert errors
    assert {type(error).__module__ for error in errors} == {"jetstream_protocol.errors"}
    assert closed == ["closed"]


@on_loop
async def test_coroutine_functions_are_awaited_and_what_they_raise_is_logged(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    async def closed() -> None:
        await asyncio.sleep(0)
        called.append("closed")
        raise RuntimeError("a mistake of the program")

    client = AsyncClient(own_server.grpc, closed_cb=closed)
    await client.aclose()
    assert called == ["closed"]
    assert "a mistake of the program" in caplog.text


def test_the_logger_is_silent_by_default() -> None:
    handlers = logging.getLogger("jetstream_client").handlers
    assert [type(handler) for handler in handlers] == [logging.NullHandler]


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_wrong_argument_is_one_of_the_client_s(client: type) -> None:
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if name.startswith("_") or name in ("close", "aclose", "alter_cluster"):
            continue  # What alter_cluster takes are settings, which are looked up by their names.
        with pytest.raises(TypeError, match=rf"^{client.__name__}\.{name}\(\) "):
            method(None, wrong=1)


def test_private_classes_stay_inside(server: ServerProcess, tmp_path: Path) -> None:
    """What is raised is of a class that `jetstream_client` names."""
    base = free_port_base()
    errors: list[JetstreamError] = []
    for servers in (f"127.0.0.1:{base}", [f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}"]):
        with Client(servers, timeout=0.5) as client:
            for call in (client.list_streams, lambda: client.publish("a", b"")):
                with pytest.raises(JetstreamError) as caught:
                    call()
                errors.append(caught.value)
    for error in errors:
        assert getattr(jetstream_client, type(error).__name__) is type(error)
        assert error.__suppress_context__ or error.__context__ is None
