"""Whoever waits for room in a publisher's buffer hears within the delivery timeout that there is
none, also if others take all that comes free."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import pytest

from jetstream_client import AsyncPublisher, Client, UnavailableError, UnknownOutcomeError
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


def full_behind(publisher: AsyncPublisher[bytes], count: int) -> None:
    """Each record is a batch, and there is room for so many."""
    buffer: Any = publisher.senders.all[0].buffer
    put_many = buffer.put_many
    buffer.put_many = lambda *given: put_many(*given) if given[3] < count else None


OPTIONS: Final[Any] = {"delivery_timeout": TIMEOUT_SECONDS, "max_bytes": 100}
RECORDS: Final = [b"x" * 80] * 3


@pytest.mark.parametrize("count", [0, 2])
def test_who_would_add_many_is_told_that_a_part_was_added(count: int) -> None:
    """Who repeated the call would store that twice."""
    told, text = (UnknownOutcomeError, "2 of 3") if count else (UnavailableError, "full")

    async def main() -> None:
        client = client_of(Cluster())
        publisher: AsyncPublisher[bytes] = client.publisher("s", **OPTIONS)
        await publisher.begin()
        full_behind(publisher, count)
        with pytest.raises(told, match=text):
            await publisher.publish_many(RECORDS)
        await client.aclose()

    run_in_virtual_time(main())
    client = Client("node:1")
    client._client = client_of(Cluster())
    publisher: Any = client.publisher("s", **OPTIONS)
    full_behind(publisher._publisher, count)
    with pytest.raises(told, match=text):
        publisher.publish_many(RECORDS)
    client.close()
