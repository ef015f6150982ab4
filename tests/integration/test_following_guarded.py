"""Consumers at the head of what is encrypted, and with rights that end meanwhile: a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from jetstream_client import AsyncClient, Client, PermissionDeniedError, UnauthenticatedError
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.values.access import NewToken
from tests.integration.test_encryption import KEY, SECRET, files_with_the_secret, write_keys
from tests.support.following import Questions, some, waits
from tests.support.loops import eventually, on_loop
from tests.support.secured import SecuredServer, administered


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """Security is on, and streams are encrypted if they ask for it."""
    folder = tmp_path_factory.mktemp("guarded")
    write_keys(folder / "keys", KEY)
    server = SecuredServer(folder / "data")
    server.environment["JETSTREAM_ENCRYPTION__KEY_FILE"] = str(folder / "keys")
    server.environment["JETSTREAM_ENCRYPTION__ENABLED"] = "false"
    with administered(server):
        yield server


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client(timeout=60) as client:
        yield client


@asynccontextmanager
async def consumer_of(
    server: SecuredServer, stream: str, token: str = "", **options: str
) -> AsyncIterator[AsyncConsumer]:
    """From the present end of the stream on."""
    async with (
        AsyncClient(server.grpc, token=token or server.admin, timeout=60) as client,
        client.consume(stream, "latest", **options) as consumer,  # type: ignore[arg-type]
    ):
        yield consumer


@pytest.mark.parametrize("options", [{}, {"filter": "*.eu"}, {"key": "k"}], ids=str)
def test_encrypted_records_are_followed(
    server: SecuredServer, admin: Client, name: str, questions: Questions, options: dict[str, str]
) -> None:
    stream = admin.create_stream(name, f"{name}.>", encryption="aes-256-gcm")

    @on_loop
    async def scenario() -> None:
        async with consumer_of(server, name, **options) as consumer:
            for number in range(10):
                coming = waits(consumer)
                value = f"{SECRET} {number}"
                await asyncio.to_thread(admin.publish, f"{name}.us", "unwanted", key="other")
                await asyncio.to_thread(admin.publish, f"{name}.eu", value, key="k")
                found = await coming
                if not options:
                    found += await some(consumer, 1)
                assert found[-1] == (2 * number + 1, value.encode())

    scenario()
    assert len(questions.follows) == 1
    folder = server.data / "streams" / str(stream.id)
    assert files_with_the_secret(folder) == []


def test_encryption_that_comes_and_goes_meanwhile_costs_no_record(
    server: SecuredServer, admin: Client, name: str, questions: Questions
) -> None:
    admin.create_stream(name, f"{name}.>")

    @on_loop
    async def scenario() -> None:
        async with consumer_of(server, name) as consumer:
            for number in range(30):
                if number % 10 == 0:
                    encryption = "aes-256-gcm" if number == 10 else "node"
                    alter = admin.alter_stream
                    await asyncio.to_thread(alter, name, encryption=encryption)
                coming = waits(consumer)
                await asyncio.to_thread(admin.publish, f"{name}.x", b"%d" % number)
                assert await coming == [(number, b"%d" % number)]

    scenario()
    assert questions.follows


def reader_of(admin: Client, principal: str, stream: str) -> tuple[NewToken, int]:
    """Its token, and the rule by which it may read."""
    admin.create_stream(stream, f"{stream}.>")
    admin.add_acl(principal, "describe", stream=stream)  # Else it would not even be told why.
    rule = admin.add_acl(principal, "read", stream=stream, subject=f"{stream}.>")
    return admin.create_token(principal), rule.id


@pytest.mark.parametrize("options", [{}, {"filter": "*.eu"}], ids=str)
def test_who_loses_the_right_meanwhile_gets_no_record_more(
    server: SecuredServer, admin: Client, name: str, questions: Questions, options: dict[str, str]
) -> None:
    made, rule = reader_of(admin, f"user:{name}", name)

    @on_loop
    async def scenario() -> None:
        async with consumer_of(server, name, made.text, **options) as consumer:
            coming = waits(consumer)
            await asyncio.to_thread(admin.publish, f"{name}.eu", b"before")
            assert await coming == [(0, b"before")]
            coming = waits(consumer)
            await eventually(lambda: bool(questions.follows))
            await asyncio.to_thread(admin.remove_acl, rule)
            await asyncio.to_thread(admin.publish, f"{name}.eu", b"secret")
            with pytest.raises(PermissionDeniedError, match="may not read"):
                await coming

    scenario()
    assert len(questions.follows) == 1


def test_who_loses_its_token_meanwhile_gets_no_record_more(
    server: SecuredServer, admin: Client, name: str, questions: Questions
) -> None:
    made, _ = reader_of(admin, f"user:{name}", name)

    @on_loop
    async def scenario() -> None:
        async with consumer_of(server, name, made.text) as consumer:
            coming = waits(consumer)
            await asyncio.to_thread(admin.publish, f"{name}.x", b"before")
            assert await coming == [(0, b"before")]
            coming = waits(consumer)
            await asyncio.to_thread(admin.revoke_token, made.token.id)
            await asyncio.to_thread(admin.publish, f"{name}.x", b"secret")
            with pytest.raises(UnauthenticatedError):
                await coming

    scenario()
    assert questions.follows
