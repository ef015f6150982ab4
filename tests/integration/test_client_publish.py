"""Publishing through the SDK: whose acknowledgement is waited for, and every way it can end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jetstream_client import (
    Ack,
    AsyncClient,
    Client,
    InvalidRequestError,
    MessageTooLargeError,
    NoStreamError,
    UnavailableError,
    UnknownOutcomeError,
    UnsupportedHeaderError,
    WrongStreamError,
)
from tests.support.api import raw_nats
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server


def test_an_ack_names_stream_and_offset(client: Client) -> None:
    client.create_stream("plain", "plain.>")
    for expected in range(3):
        result = client.publish("plain.x", b"%d" % expected)
        assert (result.stream, result.offset, result.duplicate) == ("plain", expected, False)
    assert client.fetch("plain").values() == [b"0", b"1", b"2"]


def test_key_headers_and_value_arrive_as_given(client: Client) -> None:
    client.create_stream("full", "full.>")
    client.publish("full.é", "text", key="clé", headers={"source": "wéb", "tag": ["a", "b"]})
    client.publish("full.bytes", b"\x00\xff", key=b"42")
    client.publish("full.none", None, key=b"42")
    client.publish("full.empty", b"")
    first, second, tombstone, empty = client.fetch("full")
    assert (first.subject, first.key, first.value) == ("full.é", "clé".encode(), b"text")
    assert first.headers["source"] == "wéb"
    assert first.headers.get_all("tag") == ["a", "b"]
    assert (second.key, second.value) == (b"42", b"\x00\xff")
    assert (tombstone.key, tombstone.value) == (b"42", None)
    assert (empty.key, empty.value, len(empty.headers)) == (None, b"", 0)


def test_more_than_the_buffer_takes_is_published_at_once_and_in_order(
    server: ServerProcess,
) -> None:
    """Thousands wait for room, and each costs the others nothing."""
    values = [b"%06d" % number + bytes(1_000) for number in range(8_000)]

    async def scenario() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client, asyncio.timeout(240):
            await client.create_stream("bulk", "bulk")
            await asyncio.gather(*(client.publish("bulk", each, timeout=240) for each in values))
            found: list[bytes | None] = []
            while len(found) < len(values):
                found += (await client.fetch("bulk", len(found))).values()
            assert found == values
            await client.delete_stream("bulk")

    asyncio.run(scenario())


def test_where_no_stream_listens_publishing_fails_at_once(client: Client) -> None:
    with pytest.raises(NoStreamError, match=r"'void\.x'"):
        client.publish("void.x", b"lost", timeout=3600)  # No test waits for so long.


def test_a_stream_made_after_a_failed_publish_is_found(client: Client) -> None:
    with pytest.raises(NoStreamError):
        client.publish("later.x", b"1")
    client.create_stream("later", "later.>")
    assert client.publish("later.x", b"2").offset == 0


def test_a_stream_deleted_elsewhere_is_noticed(client: Client, server: ServerProcess) -> None:
    client.create_stream("going", "going.>")
    client.publish("going.x", b"1")
    with Client(server.grpc, timeout=60) as other:
        other.delete_stream("going")
    with pytest.raises(NoStreamError):
        client.publish("going.x", b"2")


def test_every_stream_on_the_subject_acknowledges(client: Client) -> None:
    client.create_stream("both-1", "both.>")
    client.create_stream("both-2", "both.x")
    result = client.publish("both.x", b"1")
    assert sorted(ack.stream for ack in result.acks) == ["both-1", "both-2"]
    assert client.publish("both.y", b"1").acks == (Ack("both-1", 1),)
    assert len(client.publish("both.x", b"1", acks="any").acks) >= 1
    named = client.publish("both.x", b"1", acks=["both-2"])
    assert "both-2" in [ack.stream for ack in named.acks]
    with pytest.raises(NoStreamError, match="elsewhere"):
        client.publish("both.x", b"1", acks=["elsewhere"])


def test_one_stream_of_a_group_stores_each_message(client: Client) -> None:
    for name in ("member-1", "member-2"):
        client.create_stream(name, "group.>", group="workers")
    results = [client.publish("group.x", b"1") for _ in range(40)]
    assert all(len(result.acks) == 1 for result in results)
    stored = [client.describe_stream(f"member-{n}").high_watermark for n in (1, 2)]
    assert sum(stored) == 40


def test_a_quiet_stream_is_not_waited_for(client: Client) -> None:
    client.create_stream("quiet", "quiet.>", acks="off")
    with pytest.raises(InvalidRequestError, match="acknowledges plain messages"):
        client.publish("quiet.x", b"refused")
    assert client.publish("quiet.x", b"kept", ack_level="none").acks == ()
    client.create_stream("loud", "quiet.>")
    assert client.publish("quiet.x", b"both").stream == "loud"
    assert client.fetch("quiet", max_wait=60.0).values()[0] == b"kept"


def test_without_acks_messages_are_stored_all_the_same(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("unacked", "unacked.>")
        for number in range(100):
            client.publish("unacked.x", b"%d" % number, ack_level="none")
    with Client(server.grpc, timeout=60) as client:
        values: list[bytes | None] = []
        while len(values) < 100:
            values += client.fetch("unacked", len(values), max_wait=60.0).values()
    assert values == [b"%d" % number for number in range(100)]


def test_a_leaders_ack_is_an_ack(client: Client) -> None:
    client.create_stream("early", "early.>")
    assert client.publish("early.x", b"1", ack_level="leader").offset == 0


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Nats-Expected-Stream": "another"}, WrongStreamError),
        ({"Nats-Rollup": "all"}, UnsupportedHeaderError),
        ({"Jetstream-Ack": "sometimes"}, InvalidRequestError),
    ],
)
def test_a_refusal_comes_as_its_class_and_nothing_is_stored(
    client: Client, headers: dict[str, str], error: type[Exception]
) -> None:
    stream = client.create_stream("refusing", "refusing.>")
    before = client.describe_stream(stream).log_end_offset
    with pytest.raises(error):
        client.publish("refusing.x", b"1", headers=headers)
    assert client.describe_stream(stream).log_end_offset == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": "\ud800"},
        {"headers": {"a b": "1"}},
        {"headers": {"a": "1\r\nInjected: 1"}},
        {"ack_level": "some"},
        {"acks": "most"},
    ],
)
def test_what_nats_would_garble_is_refused_before_it_is_sent(
    client: Client, arguments: dict[str, object]
) -> None:
    stream = client.create_stream("careful", "careful.>")
    with pytest.raises(InvalidRequestError):
        client.publish("careful.x", b"1", **arguments)  # type: ignore[arg-type]
    assert client.describe_stream(stream).log_end_offset == 0


@pytest.mark.parametrize("subject", ["", "a..b", "a b", "a.*", ">", "a\r\nPUB b 0"])
def test_what_is_no_subject_is_refused(client: Client, subject: str) -> None:
    with pytest.raises(InvalidRequestError):
        client.publish(subject, b"1")


def test_a_message_larger_than_nats_takes_is_refused(client: Client) -> None:
    client.create_stream("large", "large.>")
    with pytest.raises(MessageTooLargeError, match="1048576"):
        client.publish("large.x", bytes(1024 * 1024 + 1))
    connection = client._client._publisher._inbox
    with pytest.raises(MessageTooLargeError, match="1048576"):
        client.publish("large.x", bytes(1024 * 1024 - 10), headers={"Name": "x"})
    assert client.publish("large.x", bytes(1024 * 1024)).offset == 0
    assert client._client._publisher._inbox is connection


@on_loop
async def test_thousands_in_flight_are_each_acknowledged_once(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, in_flight_max=1000, timeout=60) as client:
        await client.create_stream("many", "many.>")
        results = await asyncio.gather(
            *[client.publish("many.x", b"%d" % number) for number in range(5000)]
        )
        assert sorted(result.offset for result in results) == list(range(5000))
        stored = {
            message.offset: message.value async for message in client.consume("many", stop="latest")
        }
        # Handed over in order, stored in order.
        assert [stored[result.offset] for result in results] == [b"%d" % n for n in range(5000)]
        assert [result.offset for result in results] == list(range(5000))


@on_loop
async def test_a_cancelled_publish_gives_its_place_to_the_next(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, in_flight_max=1, timeout=60) as client:
        await client.create_stream("places", "places.>")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            publishes = [
                asyncio.ensure_future(client.publish("places.x", b"%d" % n)) for n in range(3)
            ]
            await asyncio.sleep(0.2)
            publishes[1].cancel()  # waits for its turn
            publishes[0].cancel()  # waits for its ack
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (await publishes[2]).stream == "places"


def test_a_silent_server_leaves_the_outcome_unknown(server: ServerProcess) -> None:
    with Client(server.grpc) as client:
        client.create_stream("silent", "silent.>")
        client.publish("silent.x", b"before")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(UnknownOutcomeError, match="may or may not have been stored"):
                client.publish("silent.x", b"maybe", timeout=1.0)
            assert time.monotonic() - began > 0.9
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert client.publish("silent.x", b"after").offset >= 1


def test_what_a_server_had_before_it_died_stays_unknown_although_it_is_published_again(
    tmp_path: Path,
) -> None:
    with (
        NatsServer() as nats,
        running_server(tmp_path / "data", "--nats", nats.url) as server,
        Client(server.grpc) as client,
        ThreadPoolExecutor(1) as thread,
        raw_nats(nats.url) as listener,
    ):
        client.create_stream("doubt", "doubt.>")
        client.publish("doubt.x", b"before")
        listener.subscribe("doubt.x")
        os.kill(server.pid, signal.SIGSTOP)
        outcome = thread.submit(client.publish, "doubt.x", b"maybe", msg_id="1", timeout=4)
        assert listener.message()[1].endswith(b"maybe")
        server.kill()
        with pytest.raises(UnknownOutcomeError, match="may or may not have been stored"):
            outcome.result()


def test_closing_tells_those_who_wait_that_nothing_is_known(server: ServerProcess) -> None:
    async def publish_and_close() -> None:
        client = AsyncClient(server.grpc)
        await client.create_stream("closing", "closing.>")
        await client.publish("closing.x", b"1")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with raw_nats(server.nats) as listener:
                listener.subscribe("closing.x")
                waiting = asyncio.ensure_future(client.publish("closing.x", b"2"))
                await asyncio.to_thread(listener.message)
            await client.aclose()
            with pytest.raises(UnknownOutcomeError, match="closed"):
                await waiting
        finally:
            os.kill(server.pid, signal.SIGCONT)

    asyncio.run(publish_and_close())


def test_without_nats_nothing_is_sent(server: ServerProcess) -> None:
    with Client(server.grpc, nats="nats://user:secret@127.0.0.1:1", timeout=60) as client:
        client.create_stream("unsent", "unsent.>")
        with pytest.raises(UnavailableError, match="cannot connect to NATS") as caught:
            client.publish("unsent.x", b"1")
        assert "secret" not in str(caught.value)
        assert client.describe_stream("unsent").log_end_offset == 0


SLOW_IMPORT = """
import asyncio, sys, threading, time
from jetstream_client import AsyncClient

HOUR = 3600.0
late, turned = [0.0], threading.Event()

class Slow:
    # The import takes an hour by the loop's clock, in which the loop turns.
    def find_spec(self, name, path=None, target=None):
        if name == "nats" and not late[0]:
            turned.clear()
            assert turned.wait(60), "the loop stands still"
            late[0] = HOUR

sys.meta_path.insert(0, Slow())

async def main():
    asyncio.get_running_loop().time = lambda: time.monotonic() + late[0]

    async def turn():
        while True:
            await asyncio.sleep(0.01)
            turned.set()

    turning = asyncio.create_task(turn())
    async with AsyncClient(sys.argv[1], timeout=60) as client:
        if sys.argv[2] == "plain":
            print((await client.publish("imported.x", b"v", timeout=60)).offset)
        else:
            async with client.publisher("imported.x", delivery_timeout=60) as publisher:
                print((await (await publisher.send(b"v"))).offset)
    assert late[0]
    turning.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["plain", "batched"])
def test_the_import_of_nats_py_takes_nothing_of_a_publish_s_time_and_stops_no_loop(
    how: str, server: ServerProcess, client: Client
) -> None:
    client.create_stream(f"imported-{how}", "imported.>")
    program = [sys.executable, "-c", SLOW_IMPORT, server.grpc, how]
    done = subprocess.run(program, capture_output=True, text=True)
    client.delete_stream(f"imported-{how}")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize("key", [b"\xff", b"a\nb", b" a ", b"\0", b"", b"a\r\n", "ü\n"])
@pytest.mark.parametrize("value", [b"value", None, b""])
def test_every_key_is_stored_as_a_publisher_stores_it(
    client: Client, name: str, key: bytes | str, value: bytes | None
) -> None:
    stream = re.sub(r"\W", "", name)[-40:] + os.urandom(4).hex()
    client.create_stream(stream, f"{stream}.>")
    acked = client.publish(
        f"{stream}.plain", value, key=key, headers={"X-One": "1"}, msg_id="an id"
    )
    assert acked.offset == 0
    again = client.publish(f"{stream}.plain", value, key=key, msg_id="an id")
    assert again.duplicate
    with client.publisher(f"{stream}.batched") as publisher:
        publisher.send(value, key=key, headers={"X-One": "1"})
    plain, batched = client.fetch(stream)
    wanted = key.encode() if isinstance(key, str) else key
    assert (plain.key, plain.value) == (batched.key, batched.value) == (wanted, value)
    assert plain.headers["X-One"] == batched.headers["X-One"] == "1"
