"""`client.process` with handlers whose exceptions are no good ones: they end what others would."""

from __future__ import annotations

import sys

import pytest

from jetstream_client import AsyncClient, Client, Message
from tests.support.loops import on_loop
from tests.support.odd_errors import odd_errors
from tests.support.server import ServerProcess


def prepare(client: Client, name: str) -> None:
    """A stream with three records, and one for dead letters."""
    client.create_stream(name, f"{name}.>")
    client.create_stream(f"{name}-dead", f"dead.{name}")
    for number in range(3):
        client.publish(f"{name}.x", b"%d" % number)


def said(client: Client, name: str) -> tuple[str, str]:
    """The class and the message of the error in the only dead letter."""
    [letter] = client.fetch(f"{name}-dead")
    assert letter.value == b"1"
    headers = letter.headers
    return headers["Dead-Letter-Error"].rpartition(".")[2], headers["Dead-Letter-Error-Message"]


EXPECTED = {
    "FrozenError": "5",
    "UnspeakableError": "its text cannot be shown: ValueError",
}


@odd_errors
def test_threads_end_with_the_error_of_the_handler(
    client: Client, name: str, error: Exception
) -> None:
    prepare(client, name)

    def handler(message: Message) -> None:
        if message.value == b"1":
            raise error

    with pytest.raises(type(error)) as caught:
        client.process(name, handler, cursor="p", stop="latest", retries=0)
    assert caught.value is error
    assert client.describe_cursor("p", name).offset == 1
    done = client.process(
        name, handler, cursor="p", stop="latest", retries=1, retry_delay=0.01,
        dead_letter=f"dead.{name}",
    )  # fmt: skip
    assert (done.records, done.dead_letters, done.failures) == (1, 1, 2)
    kind, text = said(client, name)
    assert (kind, text) == (type(error).__name__, EXPECTED[kind])


def test_a_handler_that_exits_has_failed_and_the_client_goes_on(client: Client) -> None:
    prepare(client, "exits")

    def handler(message: Message) -> None:
        if message.value == b"1":
            sys.exit(3)

    with pytest.raises(RuntimeError, match="the handler raised SystemExit"):
        client.process("exits", handler, cursor="p", stop="latest", retries=0)
    assert client.describe_cursor("p", "exits").offset == 1


@odd_errors
@on_loop
async def test_coroutines_end_with_the_error_of_the_handler(
    server: ServerProcess, client: Client, name: str, error: Exception
) -> None:
    prepare(client, name)

    async def handler(message: Message) -> None:
        if message.value == b"1":
            raise error

    async with AsyncClient(server.grpc, timeout=60) as own:
        with pytest.raises(type(error)) as caught:
            await own.process(name, handler, cursor="p", stop="latest", retries=0)
        assert caught.value is error
        done = await own.process(
            name, handler, cursor="p", stop="latest", retries=1, retry_delay=0.01,
            dead_letter=f"dead.{name}", handler_timeout=30.0,
        )  # fmt: skip
        assert (done.records, done.dead_letters, done.failures) == (1, 1, 2)
    kind, text = said(client, name)
    assert (kind, text) == (type(error).__name__, EXPECTED[kind])
