"""A client that is closed lets its processings end what they have in hand, and begin nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import pytest

from jetstream_client import AsyncClient, Client, ClientClosedError, Message, Processed
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.client import test_closing_in_time as fakes

TIMEOUT_SECONDS: Final = fakes.TIMEOUT_SECONDS
PATIENCE_SECONDS: Final = 30.0
HANDLED: Final = 3
"""At a time."""
WAYS = [{"cursor": "c"}, {"group": "g", "session_timeout": fakes.SESSION_SECONDS}]


class Server(fakes.Server):
    """committed: by stream."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[int, int] = {}

    def CommitCursors(self, request: Any) -> Any:
        for commit in request.commits:
            self.committed[commit.stream.id] = commit.offset
        return super().CommitCursors(request)


class Running:
    """A processing, and what its handlers have begun and ended; each takes so long."""

    def __init__(self, way: dict[str, Any], seconds: float) -> None:
        self.server = Server()
        self.client = fakes.client_of(self.server)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.seconds = seconds
        source = "s" if "group" in way else "s-1"
        self.task = asyncio.ensure_future(
            self.client.process(source, self.handle, concurrency=HANDLED, **way)
        )

    async def handle(self, message: Message) -> None:
        self.begun.append(message.offset)
        self.client._check_open()  # It may use its client.
        await asyncio.sleep(self.seconds)
        self.client._check_open()
        self.ended.append(message.offset)

    async def closed(self) -> float:
        began = asyncio.get_running_loop().time()
        await self.client.aclose()
        return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("way", WAYS)
def test_what_is_in_hand_is_finished_and_committed(way: dict[str, Any]) -> None:
    async def main() -> None:
        running = Running(way, 2.0)
        await asyncio.sleep(1.0)
        assert await running.closed() < 2.0
        assert len(running.begun) == len(running.ended) == HANDLED
        assert sum(running.server.committed.values()) == HANDLED
        assert await running.task == Processed(HANDLED, 0, 0)

    run_in_virtual_time(main())


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_does_not_end_holds_up_nobody(way: dict[str, Any]) -> None:
    async def main() -> None:
        running = Running(way, 1e6)
        await asyncio.sleep(1.0)
        assert await running.closed() < 1.2 * TIMEOUT_SECONDS
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        assert running.ended == []
        assert not any(running.server.committed.values())

    run_in_virtual_time(main())


def test_nor_does_a_listener_that_does_not_return() -> None:
    async def main() -> None:
        async def never(_: object) -> None:
            await asyncio.Event().wait()

        client = fakes.client_of(Server())
        member = client.consume_group("s", "g", session_timeout=300, on_revoked=never)
        await anext(member)
        async with asyncio.timeout(1.2 * TIMEOUT_SECONDS):
            await client.aclose()

    run_in_virtual_time(main())


def test_a_handler_that_closes_its_client_does_not_wait_for_itself() -> None:
    async def main() -> None:
        client = fakes.client_of(Server())
        took: list[float] = []

        async def handle(message: Message) -> None:
            began = asyncio.get_running_loop().time()
            await asyncio.create_task(client.aclose())
            took.append(asyncio.get_running_loop().time() - began)

        await client.process("s-1", handle, cursor="c", concurrency=1)
        assert took == [0.0]

    run_in_virtual_time(main())


@pytest.mark.parametrize("by_handler", [False, True])
def test_the_client_of_threads_alike(by_handler: bool) -> None:
    client, server = Client("node:1", timeout=PATIENCE_SECONDS), Server()
    inner: AsyncClient = fakes.client_of(server)
    client._client = inner
    handles, goes_on = threading.Event(), threading.Event()
    ended: list[int] = []
    found: list[object] = []

    def handle(message: Message) -> None:
        handles.set()
        if by_handler:
            client.close()
        else:
            goes_on.wait(PATIENCE_SECONDS)
        ended.append(message.offset)

    def process() -> None:
        try:
            found.append(client.process("s-1", handle, cursor="c", concurrency=1))
        except ClientClosedError as error:
            found.append(error)

    processing = threading.Thread(target=process)
    processing.start()
    assert handles.wait(PATIENCE_SECONDS)
    if not by_handler:
        threading.Timer(0.05, goes_on.set).start()
        client.close()
    processing.join(PATIENCE_SECONDS)
    assert not processing.is_alive()
    if not by_handler:
        assert (ended, found, server.committed) == ([0], [Processed(1, 0, 0)], {1: 1})
