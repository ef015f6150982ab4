"""Ctrl-C while a member joins, or while `process` ends: no member is left behind, whose streams
nobody reads. Sessions are long, so that their end hides nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator

import pytest

from jetstream_client import AsyncClient, Client, Message
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from tests.integration.test_publisher_interrupted import interrupted, lines_of
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess

SESSION_SECONDS = 300.0
PATIENCE_SECONDS = 60.0
STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""How often the loop turns until a call is cancelled again."""


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("work", subject="work")
        for number in range(20):
            client.publish("work", b"%d" % number)
        yield client


POINTS = [
    pytest.param(function, number, id=f"{function.__name__}+{number - lines_of(function)[0]}")
    for function in (
        LoopThread.run,
        LoopThread.begun,
        GroupConsumer.__init__,
        Client.consume_group,
    )
    for number in lines_of(function)
    if function is not LoopThread.run or number not in lines_of(function)[:4]
]
"""Before the call has begun, Python only complains that it was never awaited."""


def has_ended(client: Client, group: str) -> bool:
    """Whether nobody is a member."""
    return all(not each.members for each in client.list_groups() if each.name == group)


@pytest.mark.parametrize(("function", "number"), POINTS)
def test_an_interrupted_join_leaves_no_member_behind(
    client: Client, function: Callable[..., object], number: int, request: pytest.FixtureRequest
) -> None:
    group = request.node.callspec.id.replace("+", "-")

    def join() -> None:
        """The program never gets the member, if it is interrupted."""
        client.consume_group("work", group, session_timeout=SESSION_SECONDS)

    interrupted(join, function, number)
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not has_ended(client, group):
        assert time.monotonic() < deadline, client.describe_group(group)
        time.sleep(0.01)


@pytest.mark.parametrize("steps", STEPS)
@on_loop
async def test_a_processing_that_is_cancelled_twice_leaves_no_member_behind(
    server: ServerProcess, client: Client, steps: int
) -> None:
    handled = asyncio.Event()
    group = f"twice-{steps}"

    async def handle(message: Message) -> None:
        handled.set()

    before = asyncio.all_tasks()
    async with AsyncClient(server.grpc, timeout=60) as other:
        await other.list_groups()
        own = asyncio.all_tasks()
        processing = asyncio.ensure_future(
            other.process("work", handle, group=group, session_timeout=SESSION_SECONDS)
        )
        await handled.wait()
        processing.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        processing.cancel()
        await asyncio.gather(processing, return_exceptions=True)
        heartbeats = {task for task in asyncio.all_tasks() - own if "Membership" in repr(task)}
        assert not heartbeats
    await eventually(lambda: asyncio.all_tasks() == before)
    await eventually(lambda: has_ended(client, group))
