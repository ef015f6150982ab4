"""Messages that go to several leaders: what is left of a publish that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from jetstream_client.publishing.ack import Ack
from jetstream_client.publishing.direct_publisher import DirectPublisher
from tests.support.virtual_time import on_virtual_loop


@pytest.mark.parametrize("turns", range(5))
@on_virtual_loop
async def test_a_publish_that_is_cancelled_keeps_nothing_that_is_done(turns: int) -> None:
    nothing: Any = None
    publisher = DirectPublisher(nothing, nothing, nothing)
    stored = asyncio.Event()

    async def store() -> Ack:
        await stored.wait()
        return Ack("orders", 0)

    publish = asyncio.ensure_future(publisher._all_of([store(), store()], one_is_enough=False))
    for _ in range(3):
        await asyncio.sleep(0)
    stored.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    publish.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await publish
    for _ in range(3):
        await asyncio.sleep(0)
    assert not publisher._going
