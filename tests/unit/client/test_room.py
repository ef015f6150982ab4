"""Whoever waits for room in a publisher's buffer hears within the delivery timeout that there is
none, also if others take all that comes free."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import pytest

from jetstream_client import AsyncPublisher, Client, UnavailableError
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.client.test_closing_publishers import Cluster, client_of

TIMEOUT_SECONDS: Final = 0.3


def test_a_coroutine_for_which_others_leave_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        client = client_of(Cluster())
        publisher: AsyncPublisher[bytes] = client.publisher("s", delivery_timeout=TIMEOUT_SECONDS)
        await publisher.begin()
        (sender,) = publisher.senders.all
        monkeypatch.setattr(sender.buffer, "put", lambda *_: None)
        sending = asyncio.ensure_future(publisher.send(b"1"))
        for _ in range(20):
            await asyncio.sleep(TIMEOUT_SECONDS / 10)
            sender._tell()
        assert sending.done()
        with pytest.raises(UnavailableError, match="full"):
            await sending
        await client.aclose()

    run_in_virtual_time(main())


def test_a_thread_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("node:1")
    client._client = client_of(Cluster())
    publisher: Any = client.publisher("s", delivery_timeout=TIMEOUT_SECONDS)
    buffer = publisher._publisher.senders.all[0].buffer
    monkeypatch.setattr(buffer, "put", lambda *_: None)
    stops = threading.Event()

    def others() -> None:
        while not stops.wait(0.01):
            buffer.releases += 1

    taking = threading.Thread(target=others)
    taking.start()
    try:
        with pytest.raises(UnavailableError, match="full"):
            publisher.send(b"1")
    finally:
        stops.set()
        taking.join()
    client.close()
