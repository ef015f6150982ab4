"""What waits for a server when its client is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jetstream_client import UnavailableError, UnknownOutcomeError
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.cursors import COMMITS_MAX, Commit, Cursors
from jetstream_client.transport.streams import Streams
from jetstream_client.values.config import ClientConfig
from tests.support.loops import eventually, on_loop
from tests.support.server import free_port_base

SECONDS_MAX = 60.0
"""Nothing here waits for a time; what hangs is given up after that."""


async def called(control: ControlPlane) -> None:
    await eventually(lambda: bool(control._channels))


async def not_called_yet(_: ControlPlane) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("moment", [called, not_called_yet])
@on_loop
async def test_commits_that_wait_fail_when_the_client_is_closed(
    moment: Callable[[ControlPlane], Awaitable[None]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        control = ControlPlane(ClientConfig([f"127.0.0.1:{silent.getsockname()[1]}"], timeout=60))
        cursors = Cursors(control)
        commits = [
            asyncio.create_task(cursors.commit(Commit(name="c"))) for _ in range(COMMITS_MAX + 1)
        ]
        await moment(control)
        await cursors.close()
        await control.close()
        async with asyncio.timeout(SECONDS_MAX):
            failures = await asyncio.gather(*commits, return_exceptions=True)
    assert {type(failure) for failure in failures} == {UnknownOutcomeError}


@on_loop
async def test_commits_hear_of_any_error_of_their_call() -> None:
    class Control:
        async def call(self, *_: object, **__: object) -> None:
            raise ValueError("a fault of ours")

    broken: Any = Control()
    cursors = Cursors(broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="a fault of ours"):
            async with asyncio.timeout(SECONDS_MAX):
                await cursors.commit(Commit(name="c"))


@on_loop
async def test_a_call_that_is_to_be_tried_again_ends_with_its_client() -> None:
    nobody = f"127.0.0.1:{free_port_base(1)}"
    control = ControlPlane(ClientConfig([nobody], timeout=60, retry_on_failed_connect=True))
    call = asyncio.create_task(Streams(control).find())
    await eventually(lambda: bool(control.trouble))
    await control.close()
    with pytest.raises(UnavailableError, match="the client is closed"):
        async with asyncio.timeout(SECONDS_MAX):
            await call
    assert not control._channels
