"""`client.process` with limits of time: handlers that take too long, and servers that do not answer
while records are in hand."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest

from jetstream_client import AsyncClient, Client, Message, Output, UnavailableError
from jetstream_client.processing.threads import ABANDONED_MAX
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess

LIMIT = 1.0
"""Long enough for a handler that does nothing, also on a loaded machine."""

until = partial(eventually, seconds=60.0)


def prepare(client: Client, name: str, records: int) -> None:
    """A stream with records of two keys, and one for dead letters."""
    client.create_stream(name, f"{name}.>")
    client.create_stream(f"{name}-dead", f"dead.{name}")
    with client.publisher(f"{name}.x") as publisher:
        publisher.publish_many(
            [b"%d" % number for number in range(records)],
            [b"k%d" % (number % 2) for number in range(records)],
        )


@on_loop
async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(
    server: ServerProcess, client: Client
) -> None:
    prepare(client, "slow", 10)
    ended: list[int] = []
    attempts: list[int] = []

    async def handler(message: Message) -> Output | None:
        attempts.append(message.offset)
        if message.offset == 4:
            await asyncio.Event().wait()
        if message.offset == 5 and attempts.count(5) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return Output("dead.slow", b"it ended, but too late")
        if message.offset == 7 and attempts.count(7) == 1:
            raise TimeoutError("of its own")
        ended.append(message.offset)
        return None

    async with AsyncClient(server.grpc, timeout=60) as asynchronous:
        done = await asynchronous.process(
            "slow",
            handler,
            cursor="p",
            stop="latest",
            handler_timeout=LIMIT,
            retries=1,
            retry_delay=0.01,
            dead_letter="dead.slow",
        )
    assert (done.records, done.dead_letters, done.failures) == (9, 1, 4)
    assert [offset for offset in ended if not offset % 2] == [0, 2, 6, 8]  # The order of a key.
    assert [offset for offset in ended if offset % 2] == [1, 3, 5, 7, 9]
    [letter] = client.fetch("slow-dead")
    assert letter.headers["Dead-Letter-Offset"] == "4"
    assert letter.headers["Dead-Letter-Error"] == "builtins.TimeoutError"
    assert "longer than 1 s (handler_timeout)" in letter.headers["Dead-Letter-Error-Message"]


@on_loop
async def test_a_handler_that_holds_up_the_loop_has_failed_once_it_ends(
    server: ServerProcess, client: Client
) -> None:
    prepare(client, "holding", 2)

    def handler(message: Message) -> None:
        if message.offset == 1:
            time.sleep(LIMIT + 0.1)

    async with AsyncClient(server.grpc, timeout=60) as asynchronous:
        with pytest.raises(TimeoutError, match="handler_timeout"):
            await asynchronous.process(
                "holding", handler, cursor="p", stop="latest", handler_timeout=LIMIT, retries=0
            )
    assert client.describe_cursor("p", "holding").offset == 1


def test_a_thread_that_takes_too_long_is_left_alone_and_others_go_on(client: Client) -> None:
    prepare(client, "thread", 10)
    release = threading.Event()
    ended: list[int] = []
    late: list[int] = []

    def handler(message: Message) -> Output | None:
        if message.offset == 4:
            release.wait()
            late.append(message.offset)
            return Output("dead.thread", b"nobody publishes it")
        ended.append(message.offset)
        return None

    done = client.process(
        "thread",
        handler,
        cursor="p",
        stop="latest",
        concurrency=1,
        handler_timeout=LIMIT,
        retries=2,
        retry_delay=0.01,
        dead_letter="dead.thread",
    )
    assert (done.records, done.dead_letters, done.failures) == (9, 1, 3)
    assert sorted(ended) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert not late  # Three calls still run.
    release.set()
    deadline = time.monotonic() + 60
    while len(late) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [letter] = client.fetch("thread-dead")
    assert letter.headers["Dead-Letter-Offset"] == "4"
    assert client.describe_cursor("p", "thread").lag == 0


def test_too_many_calls_that_hang_end_it(client: Client) -> None:
    client.create_stream("hang", "hang.>")
    client.create_stream("hang-dead", "dead.hang")
    with client.publisher("hang.x") as publisher:
        publisher.publish_many([b""] * (ABANDONED_MAX + 20))
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"still run, each in its own thread"):
            client.process(
                "hang",
                lambda _: release.wait(),
                cursor="p",
                stop="latest",
                concurrency=16,
                handler_timeout=0.1,
                retries=0,
                dead_letter="dead.hang",
            )
    finally:
        release.set()
    # Those under way may be abandoned, too, before the next one begins.
    assert ABANDONED_MAX <= client.offset_at("hang-dead", "latest") < ABANDONED_MAX + 16
    assert ABANDONED_MAX <= client.describe_cursor("p", "hang").offset < ABANDONED_MAX + 16


PROGRAM = """
import sys, threading
from jetstream_client import Client
with Client(sys.argv[1]) as client:
    done = client.process("exit", lambda _: threading.Event().wait(), cursor="p", stop="latest",
        handler_timeout=0.1, retries=0, dead_letter="dead.exit")
print(done.dead_letters)
"""


def test_a_call_that_hangs_does_not_keep_the_program_from_ending(
    server: ServerProcess, client: Client
) -> None:
    prepare(client, "exit", 1)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.grpc], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


TIMEOUT = 6.0
"""Longer than a machine that others use, too, stands still."""


@pytest.mark.parametrize("how", [{"cursor": "p"}, {"group": "g", "session_timeout": 10.0}])
@on_loop
async def test_a_server_that_freezes_is_noticed_while_nothing_more_is_read(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture, how: dict[str, Any]
) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        prepare(client, "frozen", 20)
    begun: list[int] = []
    release = asyncio.Event()

    async def handler(message: Message) -> None:
        begun.append(message.offset)
        await release.wait()

    async with AsyncClient(own_server.grpc, timeout=TIMEOUT) as client:
        task = asyncio.create_task(
            client.process("frozen", handler, outstanding_max=2, retries=0, **how)
        )
        await until(lambda: len(begun) == 2)
        # The server is asked again and again, and answers: all is well.
        await asyncio.sleep(TIMEOUT / 2)
        assert not task.done()
        assert "ends:" not in caplog.text
        os.kill(own_server.pid, signal.SIGSTOP)
        await until(lambda: "ends:" in caplog.text)
        release.set()
        with pytest.raises(UnavailableError):
            await task
        assert begun == [0, 1]


def test_dead_servers_are_noticed_by_who_publishes_outputs(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        prepare(client, "gone", 20)
    with Client(own_server.grpc, timeout=TIMEOUT) as client:
        begun = threading.Event()

        def handler(message: Message) -> Output:
            begun.set()
            return Output("dead.gone", message.value)

        killing = threading.Thread(target=lambda: (begun.wait(), own_server.kill()))
        killing.start()
        try:
            with pytest.raises(UnavailableError):
                client.process("gone", handler, cursor="p", concurrency=1, outstanding_max=1)
        finally:
            begun.set()
            killing.join()
