"""Plain publishes, outputs and dead letters in the simulation of clients (client_work.py): the
shipped `PlainPublisher` of each client, and a NATS that loses, delays and refuses messages and
answers.

A program publishes to one subject, on which one or two streams listen, and another cluster, whose
answers look like ours; with and without message ids, which streams remember for long or not.
The members of the group that are processings publish outputs, and dead letters for records whose
handler always fails.

The checker:

* A publish has its outcome by its deadline, and a true one: what is acknowledged is stored there;
  what was refused is not stored, and will not be.
* A message is stored once in a stream, also if its program publishes it again by its id.
* A message that was given an offset has it.
* An output, and a dead letter, is stored once, whoever handles its record how often.
* A position of the group passes no record but those whose outputs, or dead letter, are stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from jetstream_client import AsyncClient, Output
from jetstream_client.processing.outputs import OFFSET, STREAM_ID
from jetstream_protocol import header_names
from jetstream_protocol.errors import (
    CODES,
    JetstreamError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import api_pb2
from tests.simulation.client_process import ClientProcess
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.client_work import Clients

SHARE = 0.4
"""Of the seeds. Drawn apart, so that the others stay as they were."""
MARK, OTHERS_MARK = "0123456789ab", "ba9876543210"
FATES = ("stored", "late", "lost", "ack lost", "refused", "doubted", "nobody")
TIMEOUTS = (0.5, 2.0, 5.0)
SHORT_SECONDS, LONG_SECONDS = 3.0, 120.0
"""For so long streams remember ids."""
CALL_SHARE = 1.05
SLACK_SECONDS = 0.4
"""A sweep finds what has timed out; a call is waited for a little longer, and says why."""
EVENTS, OUTPUTS, DEAD = "events", "out", "dead"
POISON = 11
"""Each record whose offset is 5 more than a multiple of it is one that no handler can handle."""


class Kept(NamedTuple):
    message_id: str | None
    value: bytes
    at: int


class PlainStream:
    """A stream outside of the group. ids: the offset of the last message with each."""

    def __init__(self, number: int, name: str, subject: str, window_seconds: float) -> None:
        self.number = number
        self.name = name
        self.subject = subject
        self.window_us = int(window_seconds * 1e6)
        self.log: list[Kept] = []
        self.ids: dict[str, int] = {}

    def described(self) -> api_pb2.Stream:
        config = api_pb2.StreamConfig(duplicate_window_us=self.window_us)
        return api_pb2.Stream(
            id=self.number,
            name=self.name,
            subject=self.subject,
            config=config,
            replicas=[0],
            leader=0,
            isr=[0],
        )

    def take(self, value: bytes, headers: dict[str, str], now: int) -> bytes:
        """Store it as the server does (docs/protocol.md); returns the answer."""
        message_id = headers.get(header_names.MSG_ID)
        known = None if message_id is None else self.ids.get(message_id)
        if known is not None and now - self.log[known].at < self.window_us:
            return self.answer(known, duplicate=True)
        expected = headers.get(header_names.EXPECTED_LAST_SEQUENCE)
        if expected is not None and int(expected) != len(self.log):
            return self.refusal(PreconditionFailedError(f"wrong last sequence: {len(self.log)}"))
        self.log.append(Kept(message_id, value, now))
        if message_id is not None:
            self.ids[message_id] = len(self.log) - 1
        return self.answer(len(self.log) - 1)

    def answer(self, offset: int, **more: Any) -> bytes:
        said = {"stream": self.name, "seq": offset + 1, "cluster": MARK, **more}
        return json.dumps(said).encode()

    def refusal(self, error: JetstreamError) -> bytes:
        code = CODES[type(error)].nats_err_code
        said = {"code": 0, "err_code": code, "description": error.message}
        answer = {"error": said, "stream": self.name, "seq": 0, "cluster": MARK}
        return json.dumps(answer).encode()


class SimulatedInbox:
    """In place of `NatsInbox`, of one client. Its connection comes and goes; what is published
    meanwhile waits in it, and answers are lost."""

    prefix = why_not_connected = ""
    max_payload = 1 << 20

    def __init__(self, publishing: Publishing, process: ClientProcess, client: AsyncClient) -> None:
        self.publishing = publishing
        self.process = process
        self.is_closed = False
        self.connection = 0
        self._on_answer = client._publisher._on_answer
        self._waiting: list[tuple[str, bytes, str, dict[str, str]]] = []
        self._is_away = False
        self._is_back = asyncio.Event()
        if publishing.random.random() < 0.4:
            self._later(self._goes)

    def _later(self, step: Any) -> None:
        world, loop = self.process.clients.world, self.process.loop
        world.later(self.publishing.random.randint(100_000, 6_000_000), loop, loop.enter, step)

    def _goes(self) -> None:
        if not self.process.clients.is_healed:
            self._is_away = True
            self._is_back.clear()
            self.connection += 1
            self._later(self._comes)

    def _comes(self) -> None:
        self._is_away = False
        self._is_back.set()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._leaves(*message)
        self._later(self._goes)

    @property
    def is_connected(self) -> bool:
        return not self._is_away

    @property
    def why_lost(self) -> str:
        return "the connection is lost" if self._is_away else ""

    async def wait_until_connected(self) -> None:
        while self._is_away:
            await self._is_back.wait()

    async def publish(
        self,
        subject: str,
        payload: bytes,
        token: str,
        headers: list[tuple[str, str]],
        deadline: float,
    ) -> None:
        message = subject, payload, token, dict(headers)
        if self._is_away:
            self._waiting.append(message)
        else:
            self._leaves(*message)

    def _leaves(self, subject: str, payload: bytes, token: str, headers: dict[str, str]) -> None:
        if not self.process.is_cut_off:
            self.publishing.arrives(self, subject, payload, token, headers)

    def answered(self, token: str, payload: bytes | None, delay_us: int) -> None:
        """An answer is on its way."""
        world, loop, connection = self.process.clients.world, self.process.loop, self.connection

        def arrive() -> None:
            is_heard = not (self._is_away or self.is_closed or self.process.is_cut_off)
            if is_heard and connection == self.connection:
                self._on_answer(token, payload)

        world.later(delay_us, loop, loop.enter, arrive)

    async def close(self) -> None:
        self.is_closed = True


class Publishing:
    """Of one seed."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.random = Random(f"publishes of {clients.world.seed}")
        self.is_there = self.random.random() < SHARE
        self.fates = self.random.sample(FATES, self.random.randint(1, len(FATES)))
        self.others_answer = self.random.random() < 0.3
        window = self.random.choice([SHORT_SECONDS, LONG_SECONDS])
        self.latest_us = 4_000_000 if window == LONG_SECONDS else 900_000
        """A message is late by that at most: streams cannot remember its id for longer than for its
        window."""
        names = ["events", "audit"][: self.random.choice([1, 1, 2])]
        self.events = [
            PlainStream(1001 + at, name, EVENTS, window) for at, name in enumerate(names)
        ]
        self.out = PlainStream(1003, OUTPUTS, OUTPUTS, LONG_SECONDS)
        self.dead = PlainStream(1004, DEAD, DEAD, LONG_SECONDS)
        self.streams = [*self.events, self.out, self.dead]
        self.stored: set[bytes] = set()
        """The outputs and dead letters that are stored."""
        self.programs: list[PublishingProgram] = []

    def begins(self) -> None:
        if self.is_there:
            self.programs.append(PublishingProgram(self))

    def clock(self) -> Any:
        """What the client keeps its routes by, as a context."""
        world = self.clients.world
        module = SimpleNamespace(monotonic=lambda: world.now / 1e6)
        return patch("jetstream_client.publishing.subject_routes.time", module)

    def join(self, client: AsyncClient, process: ClientProcess) -> None:
        """Connect that client to this NATS."""
        publisher = client._publisher

        async def connect() -> Any:
            inbox: Any = SimulatedInbox(self, process, client)
            publisher._inbox = inbox
            return inbox

        async def loaded() -> None: ...

        publisher._connect = connect  # type: ignore[method-assign]
        publisher.loaded = loaded  # type: ignore[method-assign]

    def feeding(self, subject: str) -> list[api_pb2.Stream]:
        return [each.described() for each in self.streams if each.subject == subject]

    def arrives(
        self,
        inbox: SimulatedInbox,
        subject: str,
        payload: bytes,
        token: str,
        headers: dict[str, str],
    ) -> None:
        """A message on its way to the streams."""
        world = self.clients.world
        token_of, _, mark = token.partition("@")
        if mark != MARK:
            raise Violation(f"token {token_of!r} does not say whose answer it waits for")
        delay_us = self.random.randint(200, 5_000)
        fates = ["stored"] if self.clients.is_healed else self.fates
        if self.random.choice(fates) == "nobody":
            inbox.answered(token, None, delay_us)
            return
        if self.others_answer:
            answer = {"stream": subject, "seq": 1, "cluster": OTHERS_MARK}
            inbox.answered(token, json.dumps(answer).encode(), delay_us)
        for stream in self.streams:
            if stream.subject == subject:
                fate = self.random.choice(fates)
                late_us = self.random.randint(100_000, self.latest_us) if fate == "late" else 0
                world.later(
                    delay_us + late_us, None, self._reaches,
                    inbox, stream, fate, payload, token, headers,
                )  # fmt: skip

    def _reaches(
        self,
        inbox: SimulatedInbox,
        stream: PlainStream,
        fate: str,
        payload: bytes,
        token: str,
        headers: dict[str, str],
    ) -> None:
        draw = self.random
        if fate in ("lost", "nobody"):
            return
        if fate == "refused":
            answer = stream.refusal(UnavailableError("not now"))
        elif fate == "doubted":
            if draw.random() < 0.5:
                self._takes(stream, payload, headers)
            answer = stream.refusal(UnknownOutcomeError("perhaps"))
        else:
            answer = self._takes(stream, payload, headers)
        if fate != "ack lost":
            slow_us = 0 if self.clients.is_healed else draw.choice([0, 0, 700_000, 3_000_000])
            inbox.answered(token, answer, slow_us + draw.randint(200, 3_000))

    def _takes(self, stream: PlainStream, payload: bytes, headers: dict[str, str]) -> bytes:
        before = len(stream.log)
        answer = stream.take(payload, headers, self.clients.world.now)
        if len(stream.log) == before:
            return answer
        self.clients.world.count(f"stored in {stream.name}")
        name = payload
        if stream is self.dead:
            name = f"dead {headers[STREAM_ID]}.{headers[OFFSET]}".encode()
            records = self.clients.records_of(int(headers[STREAM_ID]))
            self.require(payload == records[int(headers[OFFSET])], "a dead letter has changed")
        if stream in (self.out, self.dead):
            self.require(name not in self.stored, f"{name!r} is stored twice")
            self.stored.add(name)
        return answer

    # What is wrong.

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    def has_followed(self, stream_id: int, offset: int) -> bool:
        """Whether all that a processing makes of a record is stored."""
        if f"dead {stream_id}.{offset}".encode() in self.stored:
            return True
        return all(each.value in self.stored for each in outputs_of(stream_id, offset))

    def missing(self) -> str:
        """What has no outcome yet."""
        return next((f"{each} waits" for each in self.programs if each.waiting), "")

    def check(self) -> None:
        for program in self.programs:
            program.check()


def outputs_of(stream_id: int, offset: int) -> list[Output]:
    return [
        Output(OUTPUTS, f"{stream_id}.{offset}.{number}".encode())
        for number in range(1 + offset % 2)
    ]


class PublishingProgram(ClientProcess):
    """Publishes until all is healed. waiting: the publishes that have no outcome yet. refused: by
    which stream what was refused, and never doubtful."""

    def __init__(self, publishing: Publishing) -> None:
        super().__init__(publishing.clients, "the program")
        self.publishing = publishing
        self.random = publishing.random
        self.window = publishing.events[0].window_us / 1e6
        self.number = 0
        self.waiting: set[asyncio.Task[None]] = set()
        self.refused: list[tuple[PlainStream, bytes]] = []
        self.begins()

    async def _run(self, client: AsyncClient) -> None:
        draw = self.random
        while not self.clients.is_healed:
            self.number += 1
            task = self.loop.create_task(self._publish(client, self.number))
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)
            await asyncio.sleep(draw.choice([0.005, 0.1, 0.6]) * draw.random())

    async def _publish(self, client: AsyncClient, number: int) -> None:
        """Until it is known what has become of it, if the message has an id."""
        draw, names = self.random, [each.name for each in self.publishing.events]
        value = b"%d" % number
        message_id = f"m-{number}" if draw.random() < 0.5 else None
        acks: str | list[str] = draw.choice(["all", "all", "any", names[:1]])
        expected = None
        if len(names) == 1 and draw.random() < 0.2:
            expected = len(self.publishing.events[0].log) + draw.choice([0, 0, 1])
        is_doubtful = False
        for _ in range(3):
            try:
                await self._attempt(client, value, message_id, acks, expected, is_doubtful)
                return
            except UnknownOutcomeError:
                is_doubtful = True
            except JetstreamError:
                if not is_doubtful:
                    return
            if message_id is None or self.window < LONG_SECONDS:
                return

    async def _attempt(
        self,
        client: AsyncClient,
        value: bytes,
        message_id: str | None,
        acks: str | list[str],
        expected: int | None,
        is_doubtful: bool,
    ) -> None:
        """Raises what the publish does."""
        timeout = self.random.choice(TIMEOUTS)
        began = self.loop.time()
        try:
            result = await client.publish(
                EVENTS,
                value,
                msg_id=message_id,
                acks=acks,
                expected_offset=expected,
                timeout=timeout,
            )
        except JetstreamError as error:
            self.clients.world.count(f"a publish ended by {type(error).__name__}")
            if not isinstance(error, UnknownOutcomeError) and not is_doubtful:
                self._was_refused(value, acks, error)
            raise
        finally:
            took = self.loop.time() - began
            limit = timeout * CALL_SHARE + SLACK_SECONDS
            self.publishing.require(took <= limit, f"an outcome after {took:.3f} s of {timeout}")
        self.clients.world.count("published")
        for ack in result.acks:
            stream = next(each for each in self.publishing.events if each.name == ack.stream)
            is_true = ack.offset < len(stream.log) and stream.log[ack.offset].value == value
            self.publishing.require(is_true, f"acknowledged, and not stored: {value!r} in {ack}")
            given = expected in (None, ack.offset) or ack.duplicate
            self.publishing.require(given, f"{value!r} got {ack.offset}, not {expected}")

    def _was_refused(self, value: bytes, acks: str | Sequence[str], error: JetstreamError) -> None:
        """By each stream that was to answer, but those that the error says have stored it."""
        notes = " ".join(getattr(error, "__notes__", ()))
        for stream in self.publishing.events:
            is_asked = isinstance(acks, str) or stream.name in acks
            if is_asked and f"stream {stream.name!r} has stored" not in notes:
                self.refused.append((stream, value))

    def check(self) -> None:
        require = self.publishing.require
        for stream in self.publishing.events:
            values = [kept.value for kept in stream.log]
            require(len(set(values)) == len(values), f"a message is stored twice in {stream.name}")
        for stream, value in self.refused:
            is_stored = any(kept.value == value for kept in stream.log)
            require(not is_stored, f"{value!r} was refused, and is stored in {stream.name}")
