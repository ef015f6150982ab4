"""What a publish ends with when its attempts end differently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import (
    JetstreamError,
    MessageTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    PublishResult,
    StreamReadonlyError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.publishing import plain_publisher
from jetstream_client.publishing.plain_publisher import PlainPublisher, PublishOptions
from jetstream_client.publishing.subject_routes import SubjectRoute
from jetstream_client.transport.nats import NatsInbox
from jetstream_client.values.config import ClientConfig
from jetstream_server.ingest.stream.acks import AckFormat
from tests.support.virtual_time import on_virtual_loop

SILENCE = b"silence"
NOBODY = None
ACK = b'{"stream":"orders","seq":5,"duplicate":true}'
TOO_FEW = NotEnoughReplicasError("too few replicas in sync")
PERHAPS = NotEnoughReplicasAfterAppendError("appended, not committed")


class Routes:
    """The subject feeds as many streams."""

    def __init__(self, streams: int) -> None:
        names = ("orders", "audit")[:streams]
        expected = tuple(frozenset((name,)) for name in names)
        self.route = SubjectRoute(expected, frozenset(names), duplicate_window=120.0)

    def known(self, subject: str) -> SubjectRoute:
        return self.route

    async def ask(self, subject: str) -> SubjectRoute:
        return self.route

    def forget(self, subject: str) -> None:
        pass


class Events:
    def failed(self, error: JetstreamError) -> None:
        pass


class Inbox:
    """The connection to NATS: each attempt gets the next of `answers`, then always the last."""

    is_closed = False
    is_connected = True
    why_lost = ""

    def __init__(self, publisher: PlainPublisher, answers: Sequence[object]) -> None:
        self.publisher = publisher
        self.answers = list(answers)
        self.attempts = 0

    async def publish(
        self, subject: str, payload: bytes, token: str, headers: object, deadline: float
    ) -> None:
        self.attempts += 1
        answer = self.answers[min(self.attempts, len(self.answers)) - 1]
        for said in answer if isinstance(answer, tuple) else (answer,):
            if said is not SILENCE:
                asyncio.get_running_loop().call_soon(self.publisher._on_answer, token, said)


def nack(error: JetstreamError, stream: str = "orders") -> bytes:
    return AckFormat(stream).nack_payload(error)


async def published(
    monkeypatch: pytest.MonkeyPatch, *answers: object, msg_id: str | None = "id", streams: int = 1
) -> tuple[PublishResult | JetstreamError, int]:
    """The outcome and the number of attempts."""
    monkeypatch.setattr(plain_publisher, "_REPEAT_SECONDS", 0.1)
    routes: Any = Routes(streams)
    events: Any = Events()

    async def nats_urls() -> Sequence[str]:
        raise AssertionError("it is connected")

    publisher = PlainPublisher(ClientConfig(), routes, nats_urls, lambda: "", events)
    inbox: Any = Inbox(publisher, answers)
    publisher._inbox = inbox
    options = PublishOptions(msg_id=msg_id)
    try:
        return await publisher.publish("orders.x", b"v", None, None, options, 0.8), inbox.attempts
    except JetstreamError as error:
        return error, inbox.attempts


@pytest.mark.parametrize("first", [SILENCE, nack(PERHAPS)])
@pytest.mark.parametrize("later", [nack(TOO_FEW), NOBODY, nack(StreamReadonlyError("read-only"))])
@on_virtual_loop
async def test_what_may_be_stored_stays_unknown_however_often_it_is_refused_later(
    monkeypatch: pytest.MonkeyPatch, first: bytes, later: bytes | None
) -> None:
    outcome, attempts = await published(monkeypatch, first, later)
    assert isinstance(outcome, UnknownOutcomeError)
    assert "may or may not have been stored" in str(outcome)
    assert attempts > 1


@pytest.mark.parametrize(
    "later",
    [
        NOBODY,
        (nack(TOO_FEW), nack(TOO_FEW, "audit")),
        (nack(StreamReadonlyError("read-only")), nack(TOO_FEW, "audit")),
    ],
)
@on_virtual_loop
async def test_what_one_of_two_streams_has_stored_stays_unknown_when_both_refuse_it_later(
    monkeypatch: pytest.MonkeyPatch, later: object
) -> None:
    first = (ACK, nack(TOO_FEW, "audit"))
    outcome, attempts = await published(monkeypatch, first, later, streams=2)
    assert isinstance(outcome, UnknownOutcomeError)
    assert attempts > 1


@on_virtual_loop
async def test_what_the_same_stream_always_refuses_is_refused_and_says_where_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, attempts = await published(
        monkeypatch, (ACK, nack(TOO_FEW, "audit")), (ACK, nack(TOO_FEW, "audit")), streams=2
    )
    assert type(outcome) is NotEnoughReplicasError
    assert outcome.__notes__ == ["stream 'orders' has stored the message, at offset 4"]
    assert attempts > 1


@on_virtual_loop
async def test_an_acknowledgement_ends_the_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, attempts = await published(monkeypatch, SILENCE, nack(TOO_FEW), NOBODY, ACK)
    assert isinstance(outcome, PublishResult)
    assert (outcome.offset, outcome.duplicate, attempts) == (4, True, 4)


@on_virtual_loop
async def test_what_was_only_ever_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, attempts = await published(monkeypatch, NOBODY, nack(TOO_FEW))
    assert type(outcome) is NotEnoughReplicasError
    assert attempts > 1


@pytest.mark.parametrize(
    ("streams", "whose"), [(1, "stream 'orders' has no"), (2, "its streams have no")]
)
@on_virtual_loop
async def test_that_nobody_listens_is_told_with_why_and_where_to_look(
    monkeypatch: pytest.MonkeyPatch, streams: int, whose: str
) -> None:
    outcome, attempts = await published(monkeypatch, NOBODY, streams=streams)
    assert type(outcome) is UnavailableError
    assert str(outcome) == (
        f"nobody listens on 'orders.x' at the moment: {whose} leader now that takes messages: "
        "see 'jetstream cluster health'"
    )
    assert attempts > 1


@on_virtual_loop
async def test_what_one_of_two_streams_may_have_stored_is_not_published_again_without_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = (nack(TOO_FEW), nack(PERHAPS, "audit"))
    outcome, attempts = await published(monkeypatch, both, msg_id=None, streams=2)
    assert type(outcome) is NotEnoughReplicasAfterAppendError
    assert attempts == 1


@on_virtual_loop
async def test_what_is_sent_again_does_not_wait_in_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would come once the connection is back, when the stream may have forgotten its id."""

    class Lost(Inbox):
        """It is lost after the first attempt."""

        back = asyncio.Event()

        async def publish(self, *message: Any) -> None:
            assert self.is_connected
            await super().publish(*message)
            self.is_connected = self.attempts > 1
            self.why_lost = "" if self.is_connected else "it is away"

        async def wait_until_connected(self) -> None:
            await self.back.wait()
            self.is_connected, self.why_lost = True, ""

    monkeypatch.setitem(globals(), "Inbox", Lost)
    outcome, attempts = await published(monkeypatch, nack(PERHAPS), ACK)
    assert (isinstance(outcome, UnknownOutcomeError), attempts) == (True, 1)
    Lost.back.set()
    outcome, attempts = await published(monkeypatch, nack(PERHAPS), ACK)
    assert (isinstance(outcome, PublishResult), attempts) == (True, 2)


@pytest.mark.parametrize("msg_id", ["id", None])
@on_virtual_loop
async def test_the_first_attempt_does_not_wait_in_a_lost_connection_either(
    monkeypatch: pytest.MonkeyPatch, msg_id: str | None
) -> None:
    """Nothing was published, and its program hears that, and may publish it again."""

    class Lost(Inbox):
        is_connected = False
        why_lost = "it is away"

        async def wait_until_connected(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setitem(globals(), "Inbox", Lost)
    outcome, attempts = await published(monkeypatch, ACK, msg_id=msg_id)
    assert type(outcome) is UnavailableError
    assert str(outcome) == "it is away; nothing was published"
    assert attempts == 0


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
@on_virtual_loop
async def test_headers_count_for_what_nats_takes_in_one_message(spare: int, fits: bool) -> None:
    """NATS ends the connection of a client that sends more, with all that is under way on it."""
    published = []

    async def publish(*message: Any) -> None:
        published.append(message)

    headers = [("Name", "väl"), ("Other", "x")]
    whole = b"NATS/1.0\r\nName: v\xc3\xa4l\r\nOther: x\r\n\r\n" + b"payload"
    inbox = NatsInbox(lambda *_: None, lambda *_: None, Events())  # type: ignore[arg-type]
    inbox._client = SimpleNamespace(  # type: ignore[assignment]
        max_payload=len(whole) + spare, pending_data_size=0, publish=publish
    )
    sending = inbox.publish("orders.x", b"payload", "", headers, 1e9)
    if fits:
        await sending
    else:
        with pytest.raises(MessageTooLargeError, match=f"{len(whole)} bytes are more than NATS"):
            await sending
    assert len(published) == fits
