"""Callbacks that close their client or never return: they hold up neither client nor program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest

from jetstream_client import AsyncClient, Client, UnavailableError
from tests.support.loops import on_loop

SECONDS_MAX = 60.0
"""Nothing here waits for a time; what hangs is given up after that."""

NOWHERE = "127.0.0.1:1"

PROGRAM = """
import threading
from jetstream_client import Client, InvalidRequestError, UnavailableError

async def trouble():
    client._client._events.failed(UnavailableError("nobody answers"))

def close(*_):
    called.set()
    client.close()
    print("closed in the callback")
    done.set()

def hang(*_):
    called.set()
    threading.Event().wait()

called, done = threading.Event(), threading.Event()
"""
"""The beginning of a program. A thread that hangs would keep the process from ending."""

CLOSED_BY = """
client = Client("127.0.0.1:1", error_cb=close, closed_cb=lambda: print("closed_cb"))
client._thread.run(trouble())
done.wait()
"""

CLOSED_BY_CLOSED = """
client = Client("127.0.0.1:1", closed_cb=close)
client._thread.run(trouble())
client.close()
done.wait()
"""

HANGING = """
client = Client("127.0.0.1:1", error_cb=hang, closed_cb=lambda: print("closed_cb"))
client._thread.run(trouble())
called.wait()
client.close()
"""

CLOSED_BY_COROUTINE = """
async def close_in_the_loop():
    try:
        client.close()
    except InvalidRequestError as error:
        print(error.message)

client = Client("127.0.0.1:1", closed_cb=close_in_the_loop)
client._thread.run(trouble())
client.close()
"""

NEVER_CLOSED = """
client = Client("127.0.0.1:1", error_cb=hang)
client._thread.run(trouble())
called.wait()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (CLOSED_BY, ["closed_cb", "closed in the callback"]),
        (CLOSED_BY_CLOSED, ["closed in the callback"]),
        (
            CLOSED_BY_COROUTINE,
            ["a Client's own thread cannot wait for it: use AsyncClient in coroutines"],
        ),
        (HANGING, ["closed_cb"]),
        (NEVER_CLOSED, []),
    ],
    ids=["closes", "closes once more", "closes in the loop", "hangs", "hangs and is not closed"],
)
def test_a_program_ends_whatever_its_callback_does(program: str, printed: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == (printed, "", 0)


def test_threads_that_close_a_client_at_once_both_return() -> None:
    closing = threading.Barrier(2)
    failures: list[BaseException] = []

    def close() -> None:
        closing.wait()
        try:
            client.close()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    for _ in range(20):
        client = Client(NOWHERE, closed_cb=lambda: None)
        client._thread.run(asyncio.sleep(0))
        threads = [threading.Thread(target=close, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
    assert failures == []


def test_a_client_that_was_never_used_tells_once_that_it_is_closed() -> None:
    told: list[str] = []
    client = Client(NOWHERE, closed_cb=lambda: told.append("closed"))
    for _ in range(2):
        client.close()
    assert told == ["closed"]
    unused = Client(NOWHERE)
    unused.close()
    assert not unused._thread._started, "no thread was begun"


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_callback_that_exits_ends_neither_its_client_nor_the_calls_of_others(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def exit_in_the_loop(_: object) -> None:
        sys.exit(3)

    def exit_in_a_thread(_: object) -> None:
        sys.exit(3)

    async def trouble() -> None:
        client._client._events.failed(UnavailableError("nobody answers"))

    def use() -> None:
        client._thread.run(trouble())
        client.close()

    told: list[str] = []
    exits = exit_in_the_loop if is_coroutine else exit_in_a_thread
    client = Client(NOWHERE, error_cb=exits, closed_cb=lambda: told.append("closed"))
    using = threading.Thread(target=use, daemon=True)
    using.start()
    using.join(SECONDS_MAX)
    assert not using.is_alive()
    assert told == ["closed"]
    assert "the handler raised SystemExit" in caplog.text


async def in_its_own_task(client: AsyncClient) -> None:
    await client.aclose()


async def in_another_task(client: AsyncClient) -> None:
    await asyncio.create_task(client.aclose())


async def in_one_of_several_tasks(client: AsyncClient) -> None:
    await asyncio.gather(client.aclose(), asyncio.sleep(0))


@pytest.mark.parametrize(
    ("close", "expected"),
    [
        (in_its_own_task, ["closed in the callback", "closed_cb"]),
        (in_another_task, ["closed_cb", "closed in the callback"]),
        (in_one_of_several_tasks, ["closed_cb", "closed in the callback"]),
    ],
)
@on_loop
async def test_a_client_closed_by_its_own_coroutine_or_twice_tells_so_once(
    close: Callable[[AsyncClient], Awaitable[None]], expected: list[str]
) -> None:
    said: list[str] = []

    async def close_it(_: object) -> None:
        await close(client)
        said.append("closed in the callback")

    client = AsyncClient(NOWHERE, error_cb=close_it, closed_cb=lambda: said.append("closed_cb"))
    client._events.failed(UnavailableError("nobody answers"))
    calling = client._events._calling
    assert calling is not None
    async with asyncio.timeout(SECONDS_MAX):
        await calling
    await client.aclose()
    assert said == expected


@on_loop
async def test_a_callback_that_waits_for_what_was_cancelled_does_not_end_the_calls_of_others() -> (
    None
):
    told: list[str] = []
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()

    async def wait_in_vain(_: object) -> None:
        told.append("trouble")
        await gone

    client = AsyncClient(NOWHERE, error_cb=wait_in_vain, closed_cb=lambda: told.append("closed"))
    for _ in range(2):
        client._events.failed(UnavailableError("nobody answers"))
    await client.aclose()
    assert told == ["trouble", "trouble", "closed"]


@on_loop
async def test_a_coroutine_function_of_a_blocking_client_is_awaited_in_its_loop() -> None:
    said: list[str] = []

    async def told(_: object) -> None:
        await asyncio.sleep(0)
        said.append(threading.current_thread().name)

    async def trouble() -> None:
        client._client._events.failed(UnavailableError("nobody answers"))

    def use() -> None:
        client._thread.run(trouble())
        client.close()

    client = Client(NOWHERE, error_cb=told)
    await asyncio.to_thread(use)
    assert said == ["jetstream-client"]
