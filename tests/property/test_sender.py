"""The sender of a batched publisher, in virtual time, against streams and connections that fail in
any order: every record has an outcome by its delivery timeout, the outcome is true, and what can be
sent is sent at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_client import JetstreamError, UnavailableError, UnknownOutcomeError
from jetstream_client.publishing.deliveries import BatchDelivery, Delivery
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.record_accumulator import ends_of
from jetstream_client.publishing.sender import PublisherOptions, Sender
from jetstream_client.publishing.senders import Senders
from jetstream_client.publishing.subject_routes import Place, SubjectRoute, SubjectRoutes
from jetstream_protocol.batch import Batch as Decoded
from jetstream_protocol.envelope import BatchEnvelope, parse
from jetstream_protocol.errors import (
    CODES,
    MessageTooLargeError,
    NoStreamError,
    OutOfSequenceError,
    PermissionDeniedError,
    StreamPausedError,
    StreamReadonlyError,
)
from jetstream_protocol.producer_batch import open_batch
from tests.support.examples import scaled
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.client.test_keyed_group import partitions

DELIVERY_SECONDS = 10.0
REMEMBERED = 5
LATE = 0.1
"""Who has not done within so long what it could do has not seen that it could."""
ROUTE = SubjectRoute((frozenset(["s"]),), frozenset(["s"]), frozenset(["s@s"]), (frozenset(["s"]),))


class Stored(NamedTuple):
    producer: int
    sequence: int
    first: int
    values: list[bytes | None]


class Stream:
    """The server's rules for producers' batches (docs/protocol.md, "Duplicates")."""

    def __init__(self) -> None:
        self.log: list[Stored] = []

    @property
    def values(self) -> list[bytes | None]:
        return [value for stored in self.log for value in stored.values]

    def take(self, data: Decoded) -> bytes:
        producer, sequence = data.header.producer_id, data.header.producer_sequence
        mine = [stored for stored in self.log if stored.producer == producer]
        for stored in mine[-REMEMBERED:]:
            if stored.sequence == sequence:
                assert stored.values == data.values(), "other records under the same number"
                return self.ack(stored, duplicate=True)
        begins = not mine and (sequence == 0 or sequence >= REMEMBERED)
        if not begins and sequence != (mine[-1].sequence if mine else -1) + 1:
            return nack(OutOfSequenceError("not the next"))
        self.log.append(Stored(producer, sequence, len(self.values), data.values()))
        return self.ack(self.log[-1])

    def ack(self, stored: Stored, duplicate: bool = False) -> bytes:
        count = len(stored.values)
        more = {"duplicate": True} if duplicate else {}
        return json.dumps(
            {"stream": "s", "seq": stored.first + count, "count": count, **more}
        ).encode()


def nack(error: JetstreamError) -> bytes:
    code = CODES[type(error)].nats_err_code
    said = {"code": 0, "err_code": code, "description": error.message}
    return json.dumps({"error": said, "stream": "s", "seq": 0}).encode()


class Nats:
    """The client's connection, its inbox, and what answers them. `draw` decides."""

    prefix = "_INBOX.x."
    why_lost = ""

    def __init__(self, draw: Random, fates: list[str]) -> None:
        self.draw = draw
        self.fates = fates
        self.stream = Stream()
        self.max_payload = 1 << 20
        self.connected_again = asyncio.Event()
        self.connected_again.set()
        self.waiting = False
        self.on_limit: Callable[[int], None] = lambda _: None

    # As PlainPublisher.

    class events:
        @staticmethod
        def failed(error: JetstreamError) -> None: ...

    def listen(self, on_answer: Callable[[str, bytes | None], None], on_refusal: object) -> str:
        self.answer = on_answer
        return "k"

    def forget(self, key: str) -> None: ...

    async def connected(self, deadline: float) -> Nats:
        self.waiting = not self.connected_again.is_set()
        try:
            async with asyncio.timeout_at(deadline):
                await self.connected_again.wait()
        except TimeoutError:
            raise UnavailableError("no connection; nothing was published") from None
        finally:
            self.waiting = False
        return self

    # As NatsInbox.

    async def publish(
        self, subject: str, payload: bytes, token: str, headers: object, deadline: float
    ) -> None:
        if len(payload) > self.max_payload:
            raise MessageTooLargeError(f"{len(payload)} bytes are more than {self.max_payload}")
        if not self.connected_again.is_set():
            raise UnavailableError("cannot publish to NATS")
        fate = self.draw.choice(self.fates)
        token = token.removeprefix("k")
        delay = self.draw.choice([0.0, 0.01, 0.3, 1.5, 4.0])
        if fate == "nobody":
            self.later(delay, token, None)
        elif fate == "refused":
            self.later(delay, token, nack(UnavailableError("not now")))
        elif fate == "readonly":
            self.later(0.0, token, nack(StreamReadonlyError("not any more")))
        elif fate != "lost":
            found = parse(payload)
            assert isinstance(found, BatchEnvelope)
            _, data = open_batch(found.header, found.body, b"s")
            answer = self.stream.take(data)
            if fate == "doubted":
                answer = nack(UnknownOutcomeError("perhaps"))
            if fate != "ack lost":
                self.later(delay if fate == "late" else 0.0, token, answer)

    def later(self, delay: float, token: str, payload: bytes | None) -> None:
        """Where the connection is lost meanwhile, the answer is, too."""
        connection = self.connected_again

        def arrive() -> None:
            if self.connected_again is connection and connection.is_set():
                self.answer(token, payload)

        asyncio.get_running_loop().call_later(delay, arrive)

    async def come_and_go(self, smaller: bool) -> None:
        """Lose the connection now and then; the next server may take less in one message."""
        while True:
            await asyncio.sleep(self.draw.uniform(0.1, 6.0))
            self.connected_again = asyncio.Event()
            await asyncio.sleep(self.draw.uniform(0.1, 6.0))
            if smaller:
                self.reconnect(self.draw.choice([3_000, 6_000, 1 << 20]))
            self.connected_again.set()

    def reconnect(self, max_payload: int) -> None:
        self.max_payload = max_payload
        self.on_limit(max_payload)


class Routes:
    """failure: why no stream takes records now."""

    failure: JetstreamError | None = None

    def known(self, subject: str) -> None:
        return None

    async def ask(self, subject: str) -> SubjectRoute:
        if self.failure is not None:
            raise self.failure
        return ROUTE


class Program:
    """Puts records in, and notes when each has its outcome."""

    def __init__(self, nats: Nats, linger: float) -> None:
        self.nats = nats
        self.routes = Routes()
        self.loop = asyncio.get_running_loop()
        options = PublisherOptions(
            linger=linger, max_bytes=8_000, delivery_timeout=DELIVERY_SECONDS
        )
        self.sender = Sender(
            cast(PlainPublisher, nats),
            cast(SubjectRoutes, self.routes),
            "s",
            options,
            Place("s", ROUTE),
            nats.max_payload,
        )
        nats.on_limit = self.sender.limit
        self.deliveries: list[Delivery | BatchDelivery] = []
        self.values: list[list[bytes]] = []
        self.put_at: list[float] = []
        self.done_at: list[float | None] = []

    def put(self, count: int) -> None:
        number = len(self.deliveries)
        values = [
            b"%d.%d." % (number, at) + b"x" * self.nats.draw.choice([0, 900]) for at in range(count)
        ]
        buffer = self.sender.buffer
        if count == 1:
            found = buffer.put(values[0], None, b"")
            if found is not None:
                self.note(values, Delivery(*found[:1], "s", found[1]))
            return
        many = buffer.put_many(values, None, ends_of(values, None), 0)
        if many is not None:
            batch, place, stop = many
            self.note(values[:stop], BatchDelivery(batch, "s", place, stop))

    def note(self, values: list[bytes], delivery: Delivery | BatchDelivery) -> None:
        number = len(self.deliveries)
        self.deliveries.append(delivery)
        self.values.append(values)
        self.put_at.append(self.loop.time())
        self.done_at.append(None)

        def done(_: Any) -> None:
            self.done_at[number] = self.loop.time()

        delivery.add_done_callback(done)

    async def watch(self) -> None:
        """What is due is done, unless the connection is away."""
        due_since = None
        while True:
            sender, now = self.sender, self.loop.time()
            moments = (
                sender._in_flight.next_time(),
                sender.buffer.next_time(has_room=sender._in_flight.has_room),
            )
            is_due = any(moment is not None and moment <= now for moment in moments)
            if not is_due or self.nats.waiting:
                due_since = None
            elif due_since is None:
                due_since = now
            assert due_since is None or now - due_since < LATE, "it stands still"
            await asyncio.sleep(LATE / 4)

    def check(self) -> None:
        stored = self.nats.stream.values
        assert len(set(stored)) == len(stored), "stored twice"
        for delivery, values, put_at, done_at in zip(
            self.deliveries, self.values, self.put_at, self.done_at, strict=True
        ):
            assert done_at is not None, "no outcome"
            assert done_at <= put_at + DELIVERY_SECONDS + LATE, "an outcome too late"
            error = delivery.exception()
            if error is None:
                result = delivery.result()
                offsets = [result.offset] if isinstance(delivery, Delivery) else result.offsets
                assert [stored[offset] for offset in offsets] == values
            elif not isinstance(error, UnknownOutcomeError):
                assert not set(values) & set(stored), error


async def ended(helpers: list[asyncio.Future[None]]) -> None:
    """End them. What one of them raised is raised here, and never by the garbage collector."""
    for helper in helpers:
        helper.cancel()
    for error in await asyncio.gather(*helpers, return_exceptions=True):
        if error is not None and not isinstance(error, asyncio.CancelledError):
            raise error


async def run(draw: Random, fates: list[str], flaky: bool, smaller: bool, linger: float) -> Program:
    nats = Nats(draw, fates)
    program = Program(nats, linger)
    helpers: list[asyncio.Future[None]] = [asyncio.ensure_future(program.watch())]
    if flaky:
        helpers.append(asyncio.ensure_future(nats.come_and_go(smaller)))
    try:
        for _ in range(draw.randrange(1, 30)):
            program.put(draw.choice([1, 1, 3, 12]))
            await asyncio.sleep(draw.choice([0.0, 0.001, 0.2, 3.0]))
        await asyncio.sleep(DELIVERY_SECONDS + 1)
    finally:
        await ended(helpers)
    await program.sender.stop(UnavailableError("over"))
    return program


FATES = ("stored", "stored", "late", "lost", "ack lost", "refused", "doubted", "nobody")


@settings(max_examples=scaled(200))
@given(
    st.randoms(use_true_random=False),
    st.lists(st.sampled_from(FATES), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.005, 1.0]),
)
def test_every_record_has_a_true_outcome_in_time_and_nothing_stands_still(
    draw: Random, fates: list[str], flaky: bool, smaller: bool, linger: float
) -> None:
    run_in_virtual_time(run(draw, fates, flaky, smaller, linger)).check()


class AtOnce(Random):
    """Whatever comes first: answers come at once."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize("failure", [StreamPausedError("paused"), NoStreamError("deleted")])
@pytest.mark.parametrize("sends", [True, False])
def test_once_a_stream_takes_records_again_so_does_a_publisher(
    failure: JetstreamError, sends: bool
) -> None:
    """However often. It hears of that within a minute, or within a second if somebody sends."""

    async def main() -> None:
        nats = Nats(AtOnce(), ["stored"])
        program = Program(nats, linger=0.0)
        for number in range(0, 6, 2):
            program.put(1)
            await program.deliveries[number]
            program.routes.failure, nats.fates = failure, ["nobody"]
            program.put(1)
            with pytest.raises(type(failure)):
                await program.deliveries[number + 1]
            with pytest.raises(type(failure)):
                program.put(1)
            await asyncio.sleep(300)
            program.routes.failure, nats.fates = None, ["stored"]
            if sends:
                with pytest.raises(type(failure)):
                    program.put(1)
            await asyncio.sleep(1.0 if sends else 61.0)
        program.check()
        assert len(nats.stream.values) == 3
        await program.sender.stop(UnavailableError("over"))

    run_in_virtual_time(main())


def test_a_stream_that_joins_a_keyed_group_paused_stops_no_other() -> None:
    async def main() -> None:
        first, second = partitions(0, 1, of=2)
        route = SubjectRoute.of([replace(first, partitions=1)], "a.x")
        nats: Any = Nats(AtOnce(), ["stored"])
        nats.limits = set()
        senders = Senders(
            nats, cast(SubjectRoutes, Routes()), "a.x", PublisherOptions(), route, 1 << 20
        )
        paused = replace(second, paused=True)
        grown = SubjectRoute.of([first, paused], "a.x")
        assert senders._finder(0)(grown).route.names == {"g-0"}
        one, other = senders.all
        assert one.buffer.put(b"1", None, b"") is not None
        with pytest.raises(StreamPausedError):
            other.buffer.put(b"1", None, b"")
        assert (one.is_well, other.is_well) == (True, False)
        await senders.stop(UnavailableError("over"))

    run_in_virtual_time(main())


def test_an_ack_that_ends_the_last_wait_lets_the_next_batch_go() -> None:
    """Its first attempt is acknowledged while it waits, refused, for the next one."""

    async def main() -> None:
        nats = Nats(Random(1), ["lost"])
        program = Program(nats, linger=0.005)
        answers: list[tuple[str, bytes | None]] = []
        nats.later = lambda delay, token, payload: answers.append((token, payload))  # type: ignore[method-assign]
        nats.fates = ["late"]
        program.put(1)
        await asyncio.sleep(0.5)
        nats.fates = ["nobody"]
        while len(answers) < 8:  # The waits grow to half a second and more.
            if answers[-1][1] is None:
                nats.answer(*answers[-1])
            await asyncio.sleep(0.01)
        nats.answer(*answers[-1])
        program.put(1)
        nats.fates = ["stored"]
        nats.answer(*answers[0])
        await asyncio.sleep(0.1)
        assert program.done_at[0] is not None
        nats.answer(*answers[-1])
        await asyncio.sleep(0.1)
        assert program.deliveries[1].done()
        await program.sender.stop(UnavailableError("over"))

    run_in_virtual_time(main())


@pytest.mark.parametrize("count", [12, 50])
def test_batches_that_a_smaller_server_does_not_take_are_split(count: int) -> None:
    async def main() -> None:
        nats = Nats(Random(1), ["stored"])
        program = Program(nats, linger=0.005)
        nats.draw.choice = lambda options: options[-1]  # type: ignore[method-assign,assignment]
        nats.fates = ["stored"]
        nats.connected_again.clear()
        while sum(map(len, program.values)) < count:
            program.put(5)
        await asyncio.sleep(1)
        nats.reconnect(3_000)
        nats.connected_again.set()
        await asyncio.sleep(1)
        program.check()
        assert all(delivery.exception() is None for delivery in program.deliveries)
        assert nats.stream.values == [value for values in program.values for value in values]
        assert program.sender.buffer.batch_bytes < 3_000
        assert program.sender.buffer.buffered == 0
        await program.sender.stop(UnavailableError("over"))

    run_in_virtual_time(main())


def test_an_attempt_that_waits_for_a_connection_ends_with_its_batch() -> None:
    """The stream is gone meanwhile, and its publisher has been told."""

    async def main() -> None:
        nats = Nats(Random(1), ["stored"])
        program = Program(nats, linger=0.0)
        nats.connected_again.clear()
        program.put(1)
        await asyncio.sleep(0.1)
        assert nats.waiting
        sender = program.sender
        sender._settle(sender._in_flight.adopt((frozenset(["another"]),)))
        assert program.deliveries[0].done()
        nats.connected_again.set()
        await asyncio.sleep(0.1)
        assert nats.stream.values == []
        await sender.stop(UnavailableError("over"))

    run_in_virtual_time(main())


def test_each_record_fails_while_nats_forbids_the_subject_and_then_all_goes_on() -> None:
    async def main() -> None:
        nats = Nats(AtOnce(0), ["lost"])
        program = Program(nats, 0.0)
        sender = program.sender

        async def is_refused() -> bool:
            try:
                program.put(1)
                if nats.fates == ["lost"]:
                    await asyncio.sleep(0.1)
                    sender._on_refusal("s", PermissionDeniedError("NATS forbids it"))
                await program.deliveries[-1]
            except (PermissionDeniedError, UnknownOutcomeError):
                await asyncio.sleep(1.0)
                return True
            return False

        refused = [await is_refused() for _ in range(20)]
        assert all(refused)
        nats.fates = ["stored"]
        async with asyncio.timeout(60):
            while await is_refused():
                pass
        program.check()
        assert len(nats.stream.values) == 1
        await sender.stop(UnavailableError("over"))

    run_in_virtual_time(main())
