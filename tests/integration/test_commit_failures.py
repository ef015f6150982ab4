"""Commits that fail for good: whoever reads hears of it, at the next record or at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    Message,
    PreconditionFailedError,
    QuotaExceededError,
)
from jetstream_client.reading import consumer as consumers
from tests.support.loops import eventually, on_loop
from tests.support.secured import SecuredServer, secured_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    data = tmp_path_factory.mktemp("limited") / "data"
    with secured_server(data, cursors_per_principal=1) as running:
        with running.client() as admin:
            admin.create_stream("orders", "orders", group="all")
            with admin.publisher("orders") as publisher:
                publisher.publish_many([b"%d" % number for number in range(10)])
            admin.add_acl("*", ["read", "commit"], stream="orders", subject=">")
        yield running


@pytest.fixture
def token(server: SecuredServer, request: pytest.FixtureRequest) -> str:
    """Of a principal that has as many cursors as it may."""
    with server.client() as admin:
        token = admin.create_token(f"user:{abs(hash(request.node.name))}").text
    with server.client(token) as client:
        client.commit_cursor(request.node.name[:60], "orders", 0)
    return token


@pytest.fixture
def client(server: SecuredServer, token: str) -> Iterator[Client]:
    with server.client(token) as client:
        yield client


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last commit is tried."""
    monkeypatch.setattr(consumers.AsyncConsumer, "checkpoint", _last_only)


class Held:
    """Checkpoints that begin when they are let."""

    def __init__(self) -> None:
        self.is_let = False

    async def checkpoint(self, consumer: consumers.AsyncConsumer) -> None:
        if self.is_let:
            await _checkpoint(consumer)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(consumers, "CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(consumers.AsyncConsumer, "checkpoint", lambda own: held.checkpoint(own))
    return held


_checkpoint = consumers.AsyncConsumer.checkpoint


async def _last_only(consumer: consumers.AsyncConsumer) -> None:
    if consumer._checkpoints is None:
        await _checkpoint(consumer)


def read_one(client: Client, cursor: str = "another") -> None:
    with client.consume("orders", cursor=cursor) as consumer:
        next(consumer)


class TestTheEnd:
    def test_a_block_without_an_error_does_not_end_as_if_it_were_committed(
        self, client: Client, late: None
    ) -> None:
        with pytest.raises(QuotaExceededError, match="cursors_per_principal"):
            read_one(client)
        with (
            pytest.raises(QuotaExceededError),
            client.consume_group("all", "another") as member,
        ):
            next(member)
        consumer = client.consume("orders", cursor="another")
        with pytest.raises(QuotaExceededError):
            consumer.close()
        consumer.close()

    def test_a_checkpoint_that_failed_in_the_block_is_told_at_its_end(
        self, client: Client, held: Held
    ) -> None:
        def read_alone() -> None:
            with client.consume("orders", cursor="x") as consumer:
                next(consumer)
                held.is_let = True
                wait_until_failed(consumer._consumer)

        def read_as_a_member() -> None:
            with client.consume_group("all", "x") as member:
                next(member)
                held.is_let = True
                wait_until_failed(member._consumer.parts[0].consumer)

        for read in (read_alone, read_as_a_member):
            held.is_let = False
            with pytest.raises(QuotaExceededError):
                read()

    def test_the_error_of_the_block_stays_and_the_commit_s_is_logged(
        self, client: Client, late: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ZeroDivisionError), client.consume("orders", cursor="x") as consumer:
            _ = next(consumer).offset // 0
        with pytest.raises(ZeroDivisionError), client.consume_group("all", "x") as member:
            _ = next(member).offset // 0
        failures = [each for each in caplog.messages if "cursors_per_principal" in each]
        assert len(failures) == 2

    def test_closing_the_client_closes_everything_and_tells(
        self, server: SecuredServer, token: str, late: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = server.client(token)
        consumer = client.consume("orders", cursor="x")
        with pytest.raises(QuotaExceededError):
            client.close()
        assert not client._thread.is_running
        assert consumer._consumer._closed
        client.close()

        def fail() -> None:
            with server.client(token) as client:
                consumer = client.consume("orders", cursor="x")
                _ = next(consumer).offset // 0

        with pytest.raises(ZeroDivisionError):
            fail()
        assert any("not closed in good order" in each for each in caplog.messages)

    @on_loop
    async def test_an_asynchronous_client_alike(
        self, server: SecuredServer, token: str, late: None
    ) -> None:
        async with AsyncClient(server.grpc, token=token, timeout=60) as client:
            with pytest.raises(QuotaExceededError):
                async with client.consume("orders", cursor="x") as consumer:
                    await anext(consumer)
            with pytest.raises(QuotaExceededError):
                async with client.consume_group("all", "x") as member:
                    await anext(member)
            with pytest.raises(ZeroDivisionError):
                async with client.consume("orders", cursor="x") as consumer:
                    _ = (await anext(consumer)).offset // 0
        other = AsyncClient(server.grpc, token=token, timeout=60)
        consumer = other.consume("orders", cursor="x")
        await consumer.begin()
        with pytest.raises(QuotaExceededError):
            await other.aclose()
        await other.aclose()

    def test_processing_alike(self, client: Client) -> None:
        stop = threading.Event()

        def handle(message: Message) -> None:
            stop.set()

        with pytest.raises(QuotaExceededError):
            client.process("orders", handle, cursor="x", stop_event=stop)
        stop.clear()
        with pytest.raises(QuotaExceededError):
            client.process("all", handle, group="x", stop_event=stop)

    def test_the_second_of_two_consumers_hears_of_it(self, server: SecuredServer) -> None:
        with server.client() as admin:
            second = admin.consume("orders", cursor="shared")
            next(second), next(second)
            read_one(admin, "shared")
            with pytest.raises(PreconditionFailedError, match="one consumer at a time"):
                second.close()


class TestTheNextRecord:
    def test_records_that_were_fetched_are_not_handed_out_any_more(
        self, client: Client, held: Held
    ) -> None:
        consumer = client.consume("orders", cursor="x")
        next(consumer)
        held.is_let = True
        wait_until_failed(consumer._consumer)
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                next(consumer)
        consumer.close()  # It was told.
        held.is_let = False
        with client.consume_group("all", "x") as member:
            next(member)
            held.is_let = True
            wait_until_failed(member._consumer.parts[0].consumer)
            for _ in range(2):
                with pytest.raises(QuotaExceededError):
                    next(member)

    @on_loop
    async def test_an_asynchronous_client_alike(
        self, server: SecuredServer, token: str, held: Held
    ) -> None:
        async with AsyncClient(server.grpc, token=token, timeout=60) as client:
            async with client.consume("orders", cursor="x") as consumer:
                await anext(consumer)
                held.is_let = True
                await eventually(lambda: consumer._failure is not None)
                with pytest.raises(QuotaExceededError):
                    await anext(consumer)
            held.is_let = False
            async with client.consume_group("all", "x") as member:
                await anext(member)
                held.is_let = True
                part = member.parts[0].consumer
                await eventually(lambda: part._failure is not None)
                with pytest.raises(QuotaExceededError):
                    await anext(member)


def wait_until_failed(consumer: consumers.AsyncConsumer) -> None:
    deadline = time.monotonic() + 60
    while consumer._failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
