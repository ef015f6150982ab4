"""A client belongs to one event loop: in another one its futures would wake nobody."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jetstream_client import AsyncClient, InvalidRequestError, JetstreamError
from jetstream_client.publishing.batched_publisher import AsyncPublisher
from tests.support.server import free_port_base

Use = Callable[[AsyncClient], Awaitable[object]]


async def published(client: AsyncClient) -> None:
    async with client.publisher("orders.x") as publisher:
        await publisher.send(b"1")


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.list_streams(),
        lambda client: client.fetch("orders"),
        lambda client: client.publish("orders.x", b"1"),
        lambda client: client.publish("orders.x", b"1", via="direct"),
        published,
        lambda client: client.aclose(),
    ],
    ids=("call", "fetch", "publish", "direct", "publisher", "close"),
)
def test_a_client_that_is_used_in_another_loop_says_so(use: Use) -> None:
    client = AsyncClient(f"127.0.0.1:{free_port_base(1)}", timeout=0.1)

    async def first() -> None:
        for call in (lambda it: it.list_streams(), use):
            try:
                await call(client)
            except JetstreamError:
                pass  # Nobody is there.

    asyncio.run(first())

    async def second() -> None:
        await use(client)

    with pytest.raises(InvalidRequestError, match="first used in another event loop"):
        asyncio.run(second())


def test_what_lives_in_a_client_cannot_be_pickled_and_says_so() -> None:
    publisher: Any = AsyncPublisher.__new__(AsyncPublisher)
    with pytest.raises(TypeError, match="a AsyncPublisher cannot be pickled"):
        pickle.dumps(publisher)
