"""Another user of NATS sends again what a publisher has sent, with security on: nothing is stored
twice, nothing of the publisher vanishes, and NATS decides who may publish at all.

The thief may listen to everything, which docs/security.md tells operators not to allow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.msg import Msg

from jetstream_client import Client, NatsOptions
from jetstream_protocol import envelope
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.envelope import BatchEnvelope, encode_batch, encode_record
from jetstream_protocol.errors import CODES, InvalidRequestError, OutOfSequenceError
from tests.support.nats_server import NatsServer
from tests.support.secured import SecuredServer, administered

WAIT_SECONDS = 60.0
ATTEMPTS = 3
CONFIG = """
accounts {
  APP {
    users = [
      { user: jetstream, password: secret }
      { user: app, password: secret
        permissions: { publish: ["orders.>"], subscribe: ["_INBOX.>"] } }
      { user: thief, password: secret
        permissions: { publish: ["orders.>", "theirs.>"], subscribe: [">"] } }
      { user: other, password: secret, permissions: { publish: ["theirs.>"], subscribe: [">"] } }
    ]
  }
}
"""


class Stage(NamedTuple):
    nats: NatsServer
    server: SecuredServer
    token: str

    def app(self) -> Client:
        options = NatsOptions(user="app", password="secret")
        return Client(self.server.grpc, nats=self.nats.url, nats_options=options, token=self.token)

    def end(self, stream: str = "orders") -> int:
        with self.server.client(timeout=WAIT_SECONDS) as admin:
            return int(admin.offset_at(stream, "latest"))

    def values(self, stream: str = "orders") -> list[bytes | None]:
        with self.server.client(timeout=WAIT_SECONDS) as admin:
            return admin.fetch(stream).values()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with NatsServer(CONFIG) as running:
        url = running.url.replace("//", "//jetstream:secret@")
        data = tmp_path_factory.mktemp("replays") / "data"
        with administered(SecuredServer(data, "--nats", url)) as server:
            with server.client() as admin:
                admin.add_acl("user:app", "describe", stream="*")
                token = admin.create_token("user:app").text
            yield Stage(running, server, token)


@pytest.fixture
def stage(locked: Stage) -> Iterator[Stage]:
    names = ("orders", "theirs")
    with locked.server.client(timeout=WAIT_SECONDS) as admin:
        for name in names:
            admin.create_stream(name, f"{name}.>")
        yield locked
        for name in names:
            admin.delete_stream(name)


@asynccontextmanager
async def user(stage: Stage, name: str, **options: Any) -> AsyncIterator[nats.NATS]:
    client = await nats.connect(stage.nats.url, user=name, password="secret", **options)
    try:
        yield client
    finally:
        await client.close()


def heard(stage: Stage, act: Callable[[], object], count: int) -> list[bytes]:
    """What the thief hears on `orders.eu` while the publisher acts: `count` envelopes. NATS may
    lose a message: it acts again then."""

    async def listen() -> list[bytes]:
        found: asyncio.Queue[bytes] = asyncio.Queue()

        async def hear(message: Msg) -> None:
            if message.data.startswith(envelope.COOKIE):
                found.put_nowait(message.data)

        async with user(stage, "thief") as spy:
            await spy.subscribe("orders.eu", cb=hear)
            await spy.flush()
            for _ in range(ATTEMPTS):
                await asyncio.to_thread(act)
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_SECONDS):
                        return [await found.get() for _ in range(count)]
        raise AssertionError("the thief hears nothing")

    return asyncio.run(listen())


def sent_again(stage: Stage, subject: str, payload: bytes, *, inbox: str) -> dict[str, Any]:
    """The answer, on whatever inbox the envelope names."""

    async def send() -> dict[str, Any]:
        async with user(stage, "thief") as thief:
            answers = await thief.subscribe(inbox)
            await thief.flush()
            await thief.publish(subject, payload)
            found: dict[str, Any] = json.loads((await answers.next_msg(WAIT_SECONDS)).data)
            return found

    return asyncio.run(send())


def inbox_of(payload: bytes) -> str:
    found = envelope.parse(payload)
    assert found is not None
    return found.ack_inbox.decode()


def publish_batches(stage: Stage, *values: bytes) -> list[bytes]:
    """The envelopes of the batches of one publisher, one for each value."""

    def act() -> None:
        with stage.app() as client, client.publisher("orders.eu", via="nats") as publisher:
            for value in values:
                publisher.send(value).result()

    return heard(stage, act, len(values))


def under_producer(payload: bytes, producer_id: int) -> bytes:
    """The same batch as the first of another producer."""
    found = envelope.parse(payload)
    assert isinstance(found, BatchEnvelope)
    batch = EncodedBatch(bytearray(found.header), found.body, 1, 0)
    batch.set_producer(producer_id, 0)
    return encode_batch(batch, ack_inbox=b"_INBOX.thief")


def test_a_batch_sent_again_is_a_duplicate_and_after_a_restart_too(stage: Stage) -> None:
    captured = publish_batches(stage, b"1", b"2")
    assert stage.values() == [b"1", b"2"]
    for _ in range(2):
        for number, payload in enumerate(captured):
            answer = sent_again(stage, "orders.eu", payload, inbox=inbox_of(payload))
            assert answer["duplicate"] is True
            assert answer["seq"] == number + 1
        assert stage.values() == [b"1", b"2"]
        stage.server.kill()
        stage.server.start()
    [later] = publish_batches(stage, b"3")
    assert sent_again(stage, "orders.eu", later, inbox=inbox_of(later))["duplicate"] is True
    assert stage.values() == [b"1", b"2", b"3"]


def test_one_that_is_older_than_what_is_remembered_is_refused(stage: Stage) -> None:
    first, *_ = publish_batches(stage, *(b"%d" % number for number in range(7)))
    answer = sent_again(stage, "orders.eu", first, inbox=inbox_of(first))
    assert answer["error"]["err_code"] == CODES[OutOfSequenceError].nats_err_code
    assert stage.end() == 7


@pytest.mark.parametrize("subject", ["orders.us", "theirs.x"])
def test_a_batch_is_refused_on_another_subject(stage: Stage, subject: str) -> None:
    [captured] = publish_batches(stage, b"1")
    answer = sent_again(stage, subject, captured, inbox=inbox_of(captured))
    assert answer["error"]["err_code"] == CODES[InvalidRequestError].nats_err_code
    assert (stage.end("orders"), stage.end("theirs")) == (1, 0)


def test_under_another_producer_it_is_the_thiefs_own_and_hides_nothing(stage: Stage) -> None:
    """Who may publish to a subject may publish anything there."""
    with stage.app() as client, client.publisher("orders.eu", via="nats") as publisher:
        [captured] = heard(stage, lambda: publisher.send(b"1").result(), 1)
        end = stage.end()
        forged = under_producer(captured, 7)
        answer = sent_again(stage, "orders.eu", forged, inbox="_INBOX.thief")
        assert "duplicate" not in answer
        ack = publisher.send(b"2").result()
        assert (ack.offset, ack.duplicate) == (end + 1, False)
    assert stage.values()[-3:] == [b"1", b"1", b"2"]


def test_a_record_with_an_id_is_stored_once_on_its_subject(stage: Stage) -> None:
    async def publish() -> None:
        async with user(stage, "app") as app:
            answers = await app.subscribe("_INBOX.app")
            block = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
            record = encode_record(b"1", key=b"k", header_block=block, ack_inbox=b"_INBOX.app")
            await app.publish("orders.eu", record)
            assert json.loads((await answers.next_msg(WAIT_SECONDS)).data)["seq"] == 1

    [captured] = heard(stage, lambda: asyncio.run(publish()), 1)
    answer = sent_again(stage, "orders.eu", captured, inbox=inbox_of(captured))
    assert (answer["duplicate"], answer["seq"]) == (True, 1)
    answer = sent_again(stage, "orders.us", captured, inbox=inbox_of(captured))
    assert "duplicate" not in answer  # Else it would hide a message of another publisher.
    assert stage.end() == 2


def test_who_may_not_publish_there_reaches_nothing_by_an_envelope(stage: Stage) -> None:
    [captured] = publish_batches(stage, b"1")

    async def send() -> list[str]:
        refused: list[str] = []
        is_refused = asyncio.Event()

        async def note(error: Exception) -> None:
            refused.append(str(error).lower())
            is_refused.set()

        async with user(stage, "other", error_cb=note) as other, asyncio.timeout(WAIT_SECONDS):
            await other.publish("orders.eu", under_producer(captured, 7))
            await other.flush()
            await is_refused.wait()
        return refused

    assert any("permissions violation" in each for each in asyncio.run(send()))
    with stage.app() as client:
        assert client.publish("orders.eu", b"2").offset == 1
