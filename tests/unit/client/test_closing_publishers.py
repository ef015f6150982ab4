"""A client that is closed sends what its open publishers hold, within its timeout."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable
from concurrent.futures import wait
from random import Random
from typing import Any, Final

import pytest

from jetstream_client import (
    AsyncClient,
    AsyncPublisher,
    Client,
    ClientClosedError,
    StreamReadonlyError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.clients import blocking_client
from jetstream_client.publishing.deliveries import Delivery
from jetstream_client.publishing.subject_routes import SubjectRoute
from jetstream_client.transport.home import Home
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from tests.property.test_sender import ROUTE, Nats, Routes
from tests.support.loops import eventually, on_loop
from tests.support.virtual_time import run_in_virtual_time

TIMEOUT_SECONDS: Final = 10.0
ERROR_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 3600.0
RECORDS: Final = 4
PATIENCE_SECONDS: Final = 60.0


class Cluster(Nats):
    """NATS and the streams behind it. fate: of all that is published."""

    timeout = TIMEOUT_SECONDS

    def __init__(self, fate: str = "stored") -> None:
        super().__init__(Random(0), [fate])
        self.home = Home()
        self.limits: set[Any] = set()
        self.listeners: dict[str, Callable[[str, bytes | None], None]] = {}
        self.listened = 0

    def listen(self, on_answer: Callable[[str, bytes | None], None], on_refusal: object) -> str:
        self.listened += 1
        self.listeners[str(self.listened)] = on_answer
        return f"k{self.listened}-"

    def forget(self, key: str) -> None:
        self.listeners.pop(key[1:-1], None)

    def answer(self, token: str, payload: bytes | None) -> None:
        number, _, rest = token.partition("-")
        if number in self.listeners:
            self.listeners[number](rest, payload)

    async def loaded(self) -> None: ...

    async def route(self, subject: str, deadline: float) -> SubjectRoute:
        return ROUTE

    async def close(self) -> None:
        self.connected_again.clear()


class Registry(Routes):
    async def close(self) -> None: ...


def client_of(cluster: Cluster) -> AsyncClient:
    client = AsyncClient("node:1", timeout=TIMEOUT_SECONDS)
    client._publisher = cluster  # type: ignore[assignment]
    client._routes = Registry()  # type: ignore[assignment]
    return client


async def held(client: AsyncClient, publishers: int = 3) -> list[Delivery]:
    """What each of them holds, and would not send for an hour."""
    made: list[AsyncPublisher[bytes]] = [
        client.publisher("s", linger=LINGER_SECONDS) for _ in range(publishers)
    ]
    return [await each.send(b"%d" % number) for number in range(RECORDS) for each in made]


class Clock:
    def __enter__(self) -> Clock:
        self._began = asyncio.get_running_loop().time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = asyncio.get_running_loop().time() - self._began


def records_lost(caplog: pytest.LogCaptureFixture) -> list[int]:
    found = [re.search(r"ends with (\d+) records", each) for each in caplog.messages]
    return [int(each[1]) for each in found if each]


async def by_aclose(client: AsyncClient) -> None:
    await client.aclose()


async def by_a_block(client: AsyncClient) -> None:
    async with client:
        pass


@pytest.mark.parametrize("close", [by_aclose, by_a_block])
def test_all_is_sent_and_nothing_is_said(close: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = Cluster()
        client = client_of(cluster)
        deliveries = await held(client)
        with Clock() as clock:
            await close(client)
        assert clock.seconds < 0.1
        assert sorted(each.result(0).offset for each in deliveries) == list(range(3 * RECORDS))
        assert not client._publishers

    run_in_virtual_time(main())
    assert not records_lost(caplog)


def test_what_is_not_acknowledged_in_time_has_an_outcome_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = Cluster("lost")
        client = client_of(cluster)
        deliveries = await held(client)
        with Clock() as clock:
            await client.aclose()
        assert clock.seconds <= TIMEOUT_SECONDS + 0.1
        for each in deliveries:
            with pytest.raises(UnknownOutcomeError, match="the client is closed"):
                each.result(0)

    run_in_virtual_time(main())
    assert records_lost(caplog) == [RECORDS] * 3


def test_what_was_never_sent_is_surely_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        client = client_of(Cluster("lost"))
        publisher: AsyncPublisher[bytes] = client.publisher("s", linger=0)
        deliveries = [await publisher.send(b"1") for _ in range(BATCHES_IN_FLIGHT_MAX + 2)]
        await client.aclose()
        failures = [each.exception(0) for each in deliveries]
        perhaps, surely_not = failures[:-2], failures[-2:]
        assert all(isinstance(each, UnknownOutcomeError) for each in perhaps)
        assert all(isinstance(each, ClientClosedError) for each in surely_not)

    run_in_virtual_time(main())
    assert records_lost(caplog) == [BATCHES_IN_FLIGHT_MAX + 2]


def test_a_block_that_fails_waits_a_second_at_most(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(client: AsyncClient) -> None:
        async with client:
            raise ZeroDivisionError

    async def main() -> None:
        for fate in ("stored", "lost"):
            client = client_of(Cluster(fate))
            deliveries = await held(client, 1)
            with Clock() as clock, pytest.raises(ZeroDivisionError):
                await fails(client)
            assert clock.seconds <= ERROR_SECONDS + 0.1
            assert all(each.done() for each in deliveries)

    run_in_virtual_time(main())
    assert records_lost(caplog) == [RECORDS]


def test_a_cancelled_task_waits_a_second_at_most_and_closing_itself_not_at_all() -> None:
    async def works(client: AsyncClient) -> None:
        async with client:
            await asyncio.sleep(3600)

    async def main() -> None:
        for work, seconds in ((works, ERROR_SECONDS), (AsyncClient.aclose, 0.0)):
            client = client_of(Cluster("lost"))
            deliveries = await held(client, 1)
            task = asyncio.ensure_future(work(client))
            await asyncio.sleep(0.5)
            task.cancel()
            with Clock() as clock:
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            assert clock.seconds <= seconds + 0.1
            assert all(each.done() for each in deliveries)

    run_in_virtual_time(main())


def test_who_closes_it_too_waits_for_what_is_being_sent() -> None:
    async def main() -> None:
        cluster = Cluster("late")
        client = client_of(cluster)
        deliveries = await held(client)
        await asyncio.gather(client.aclose(), client.aclose())
        assert all(each.exception(0) is None for each in deliveries)

    run_in_virtual_time(main())


def test_a_failure_that_nobody_has_seen_is_raised() -> None:
    async def main() -> None:
        for is_seen in (False, True):
            client = client_of(Cluster("readonly"))
            (first, *_) = await held(client, 1)
            if is_seen:
                first.add_done_callback(lambda _: None)
                await client.aclose()
            else:
                with pytest.raises(StreamReadonlyError):
                    await client.aclose()
            assert not client._publishers

    run_in_virtual_time(main())


def test_what_a_member_hands_over_as_it_leaves_is_sent() -> None:
    class Leaving:
        def __init__(self, publisher: AsyncPublisher[bytes]) -> None:
            self.publisher = publisher

        async def aclose(self) -> None:
            await asyncio.sleep(1)
            self.delivery = await self.publisher.send(b"handed over")

    async def main() -> None:
        client = client_of(Cluster())
        publisher: AsyncPublisher[bytes] = client.publisher("s")
        await publisher.begin()
        member: Any = Leaving(publisher)
        client._group_consumers.add(member)
        await client.aclose()
        assert member.delivery.result(0).offset == 0

    run_in_virtual_time(main())


def test_the_client_of_threads_alike(caplog: pytest.LogCaptureFixture) -> None:
    def made() -> tuple[Client, Any]:
        client = Client("node:1", timeout=TIMEOUT_SECONDS)
        client._client = client_of(cluster)
        return client, client.publisher("s", linger=LINGER_SECONDS)

    cluster = Cluster()
    client, publisher = made()
    with client:
        delivery = publisher.send(b"1")
    assert delivery.result(0).offset == 0
    publisher.close()
    with pytest.raises(UnavailableError, match="closed"):
        publisher.send(b"2")
    assert not records_lost(caplog)
    cluster = Cluster("lost")

    def fails() -> None:
        with client:
            deliveries.append(publisher.send(b"1"))
            raise KeyboardInterrupt

    client, publisher = made()
    deliveries: list[Delivery] = []
    with pytest.raises(KeyboardInterrupt):
        fails()
    assert isinstance(deliveries[0].exception(0), UnknownOutcomeError)
    assert records_lost(caplog) == [1]


class Hidden(Cluster):
    """The registry does not answer."""

    async def route(self, subject: str, deadline: float) -> SubjectRoute:
        await asyncio.sleep(LINGER_SECONDS)
        return ROUTE


def test_who_begins_a_publisher_that_is_closed_meanwhile_is_not_cancelled() -> None:
    async def main() -> None:
        for whose in ("client", "publisher"):
            client = client_of(Hidden())
            publisher: AsyncPublisher[bytes] = client.publisher("s")
            sending = asyncio.ensure_future(publisher.send(b"1"))
            await asyncio.sleep(0.1)
            await (client.aclose() if whose == "client" else publisher.aclose())
            (failure,) = await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(failure, ClientClosedError)

    run_in_virtual_time(main())


@pytest.mark.parametrize("where", ["route", "connection"])
@on_loop
async def test_nor_is_who_publishes_while_the_client_is_closed(where: str) -> None:
    client, is_asked, answer = AsyncClient("node:1"), asyncio.Event(), asyncio.Event()

    async def ask(*_: object) -> Any:
        is_asked.set()
        await answer.wait()

    if where == "route":
        client._routes._streams_on = ask
    else:
        client._routes = Registry()  # type: ignore[assignment]
        client._publisher._routes = client._routes
        client._publisher._connect = ask  # type: ignore[method-assign]
    publishing = asyncio.ensure_future(client.publish("s", b"1"))
    await is_asked.wait()
    await client.aclose()
    (failure,) = await asyncio.gather(publishing, return_exceptions=True)
    assert isinstance(failure, ClientClosedError)


def test_an_event_loop_that_ends_leaves_nobody_waiting() -> None:
    async def main() -> list[Delivery]:
        return await held(client_of(Cluster()), 1)

    for delivery in asyncio.run(main()):
        assert isinstance(delivery.exception(0), ClientClosedError)


def test_a_publisher_that_nobody_can_use_any_more_sends_what_it_holds() -> None:
    client = Client("node:1")
    client._client = client_of(Cluster())
    delivery = client.publisher("s", linger=LINGER_SECONDS).send(b"1")
    gc.collect()
    assert delivery.result(PATIENCE_SECONDS).offset == 0
    client._thread.run(eventually(lambda: not client._client._publishers))
    client.close()


def test_a_program_that_ends_without_closing_its_client_has_sent_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them no server answers: all are closed at a time."""
    clients: list[Client] = []
    deliveries: list[Delivery] = []
    for fate in ("stored", *["lost"] * 5):
        clients.append(Client("node:1", timeout=TIMEOUT_SECONDS))
        clients[-1]._client = client_of(Cluster(fate))
        publisher: Any = clients[-1].publisher("s", linger=LINGER_SECONDS)
        deliveries.append(publisher.send(b"1"))
    waited: list[int] = []

    def wait_for(ends: list[Any], seconds: float) -> None:
        waited.append(len(ends))
        wait(ends, PATIENCE_SECONDS)

    monkeypatch.setattr(blocking_client, "wait", wait_for)
    blocking_client._the_program_ends()
    assert len(waited) == 1
    assert waited[0] >= len(clients)
    assert deliveries[0].result(0).offset == 0
    assert {type(each.exception(0)) for each in deliveries[1:]} == {UnknownOutcomeError}
    assert records_lost(caplog) == [1] * 5
    for client in clients:
        client.close()


class Lost:
    """A connection to NATS that is lost, and ends when it is closed."""

    is_connected = False
    why_lost = "it is lost"

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    async def wait_until_connected(self) -> None:
        await self.closed.wait()

    async def close(self) -> None:
        self.closed.set()


@on_loop
async def test_who_waits_for_a_lost_connection_connects_no_client_that_is_closed() -> None:
    client, connects = AsyncClient("node:1"), list[object]()
    client._routes = Registry()  # type: ignore[assignment]
    publisher = client._publisher
    publisher._routes = client._routes
    publisher._inbox = Lost()  # type: ignore[assignment]
    publisher._connect = lambda: connects.append(1)  # type: ignore
    await publisher.loaded()
    publishing = asyncio.ensure_future(client.publish("s", b"1"))
    await asyncio.sleep(0)
    await client.aclose()
    (failure,) = await asyncio.gather(publishing, return_exceptions=True)
    assert isinstance(failure, ClientClosedError)
    assert not connects
