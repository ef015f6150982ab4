"""What a fork has of a client: copies of what its parent will hand out, and nothing goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetstream_client._loop_thread import LoopThread
from jetstream_client.processing.blocking_queue import Queue
from jetstream_client.processing.queue import AsyncQueue
from jetstream_client.publishing.deliveries import Delivery
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_client.reading.table import AsyncTable, Table
from tests.unit.client.test_queue import Server, queue_of
from tests.unit.client.test_table import Endless, table_of


def in_fork(call: Callable[[], object]) -> str:
    """What the call returns or raises there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                said = f"returned {call()!r}"
            except BaseException as error:  # noqa: BLE001  reported
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


def test_nobody_waits_there_for_an_outcome_that_comes_to_the_parent() -> None:
    delivery = Delivery(Batch(0.0, 0.0), "orders.x", 0)
    assert "made in another process" in in_fork(lambda: delivery.result(0.01))


def test_what_is_known_already_is_known_there_too() -> None:
    batch = Batch(0.0, 0.0)
    batch.future.set_exception(ValueError("known"))
    delivery = Delivery(batch, "orders.x", 0)
    assert in_fork(delivery.result) == "ValueError: known"


def test_a_queue_hands_out_no_message_there_that_the_parent_has(thread: LoopThread) -> None:
    server = Server()
    server.most = 5

    async def made() -> AsyncQueue:
        return queue_of(server)

    queue = Queue(thread, thread.run(made()))
    assert next(queue).offset == 0
    assert "made in another process" in in_fork(lambda: next(queue))
    assert next(queue).offset == 1
    queue.close()


@pytest.mark.parametrize("reads", [len, list, Table.snapshot, lambda table: table.get(b"k")])
def test_a_table_that_nothing_follows_there_says_so(
    reads: Callable[[Table[Any, Any]], object], thread: LoopThread
) -> None:
    async def made() -> AsyncTable[Any, Any]:
        table = table_of(Endless())
        await table.begin()
        return table

    table = Table(thread, thread.run(made()))
    assert not reads(table)
    assert "made in another process" in in_fork(lambda: reads(table))
    table.close()
