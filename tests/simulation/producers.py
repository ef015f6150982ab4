"""Publishers that repeat what they do not know the outcome of, and must not be stored twice.

A *producer* sends batches, numbered from 0, at most five on their way; it repeats them in order
from the oldest that is not acknowledged, and begins again under a new id when the stream does not
know where it stands (docs/protocol.md, "Duplicates"). It sends by NATS or straight to the leader
(direct.py). A *repeater* sends one message at a time
under a message id until it is acknowledged. A *stranger*, whom a seed has or has not by a random
number of its own, knows what both will send next: it sends other batches under producers' next
numbers, and other messages with repeaters' next ids on a subject beside the stream's.
"""

from __future__ import annotations

import json
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jetstream_protocol import batch as batches
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.errors import (
    CODES,
    OutOfSequenceError,
    SequenceTakenError,
    UnknownOutcomeError,
)
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from tests.simulation.direct import DirectWay
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.watched import WatchedStream

OUT_OF_SEQUENCE = CODES[OutOfSequenceError].nats_err_code
SEQUENCE_TAKEN = CODES[SequenceTakenError].nats_err_code
UNKNOWN_OUTCOME = CODES[UnknownOutcomeError].nats_err_code
STRANGERS_SHARE = 0.3
"""Of the seeds."""
FIRST_REPLY = 1_000_000_000
"""A stream's reply inboxes from here on are of attempts; below, of publishes that nobody
repeats."""


class Sender(Protocol):
    """Who an answer is for."""

    def answered(self, attempted: Any, answer: dict[str, Any]) -> None: ...


class Repeating:
    """All of one stream, and which attempt each reply inbox belongs to."""

    def __init__(self, stream: WatchedStream, first: int) -> None:
        self.stream = stream
        self._first_reply = first + FIRST_REPLY
        self.running = True
        """Whether new batches and messages are begun."""
        self._attempts: list[tuple[Sender, Any]] = []
        world = stream.world
        self.deaf_until = 0
        """Nobody hears an answer before then."""
        producers = world.random.choice((0, 0, 1, 1, 2))
        repeaters = world.random.choice((0, 0, 1))
        if stream.cluster.scenario().needs_repeaters:
            producers, repeaters = max(producers, 1), 1
        self._producers = [Producer(self) for _ in range(producers)]
        self._repeaters = [Repeater(self) for _ in range(repeaters)]
        self.direct = DirectWay(self, Random(f"direct way of {world.seed} at {first}"))
        self._stranger = Stranger(self, Random(f"stranger of {world.seed} at {first}"))

    @property
    def producers(self) -> list[Producer]:
        return self._producers

    def begin(self) -> None:
        for sender in (*self._producers, *self._repeaters):
            sender.tick()
        self._stranger.begin()

    def waiting(self) -> str:
        """Who still waits for an answer; "" when nobody does."""
        waiting = [sender.waits_for() for sender in (*self._producers, *self._repeaters)]
        return ", ".join(filter(None, waiting))

    def send(
        self, sender: Sender, attempted: Any, value: bytes, header_block: bytes = b"",
        beside: bytes = b"",
    ) -> None:  # fmt: skip
        """Publish it to whoever is subscribed, with a reply inbox of its own."""
        reply = b"_INBOX.%d" % (self._first_reply + len(self._attempts))
        self._attempts.append((sender, attempted))
        stream = self.stream
        stream.nats.publish(stream.subject, [(reply, header_block, value)], beside=beside)

    def said(self, number: int, answer: dict[str, Any]) -> None:
        """A process acknowledges an attempt; that is on its way to NATS."""
        _, attempted = self._attempts[number - self._first_reply]
        numbers = attempted.numbers if isinstance(attempted, Sent) else (attempted,)
        count = answer.get("count", 1)
        if count != len(numbers):
            raise Violation(f"{attempted} was acknowledged as {answer}")
        for offset, each in enumerate(numbers, answer["seq"] - count):
            self.stream.checker.acknowledged(each, offset)

    def answered(self, number: int, payload: bytes) -> None:
        if self.stream.world.now < self.deaf_until:
            self.stream.world.count("answer lost")
            return
        sender, attempted = self._attempts[number - self._first_reply]
        sender.answered(attempted, json.loads(payload))


class Sent(NamedTuple):
    """A batch, and what its records are."""

    producer_id: int
    sequence: int
    numbers: tuple[int, ...]
    keys: list[bytes | None] | None
    subject: bytes

    def batch(self) -> batches.EncodedBatch:
        return batches.encode(
            [b"%d" % number for number in self.numbers],
            self.subject,
            keys=self.keys,
            producer_id=self.producer_id,
            producer_sequence=self.sequence,
        )

    def payload(self) -> bytes:
        return encode_batch(self.batch())


class Producer:
    """See the module."""

    def __init__(self, all_: Repeating) -> None:
        self._all = all_
        self._world = all_.stream.world
        self._waiting: deque[Sent] = deque()
        self._sent_at = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._id = self._world.random.getrandbits(63)
        self._next = 0
        self._acknowledged: dict[int, None] = {}
        self._waiting.clear()

    @property
    def next(self) -> tuple[int, int]:
        """Its id, and the number of its next batch."""
        return self._id, self._next

    def waits_for(self) -> str:
        return f"batch {self._waiting[0].sequence} of {self._id}" if self._waiting else ""

    def tick(self) -> None:
        world = self._world
        if self._waiting and world.now - self._sent_at > 400_000:
            world.count("batches repeated")
            for sent in self._waiting:
                self._send(sent, repeating=True)
        elif self._all.running and len(self._waiting) < BATCHES_IN_FLIGHT_MAX:
            numbers = self._all.stream.publishers.take_numbers(world.between(1, 3))
            keys, subject = self._all.stream.keys(numbers), self._all.stream.subject
            self._waiting.append(Sent(self._id, self._next, numbers, keys, subject))
            self._next += 1
            self._send(self._waiting[-1])
        world.later(world.between(2_000, 250_000), None, self.tick)

    def _send(self, sent: Sent, *, repeating: bool = False) -> None:
        self._sent_at = self._world.now
        if self._all.direct.takes(self, repeating=repeating):
            self._all.direct.send(self, sent)
        else:
            self._all.send(self, sent, sent.payload())

    def answered(self, attempted: Sent, answer: dict[str, Any]) -> None:
        if "error" in answer:
            oldest = self._waiting[0] if self._waiting else None
            code, is_oldest = answer["error"]["err_code"], attempted == oldest
            if code == SEQUENCE_TAKEN and attempted in self._waiting:
                self._world.count("producer forestalled")
                self._begin_anew()
            elif code == OUT_OF_SEQUENCE and is_oldest:
                self._world.count("producer began anew")
                self._begin_anew()
            elif code == UNKNOWN_OUTCOME and is_oldest and "compared" in str(answer["error"]):
                self._world.count("repeated batch not comparable")
                self._begin_anew()
            return
        if answer.get("duplicate"):
            self._world.count("duplicate batch acknowledged")
        if attempted.producer_id != self._id:
            return
        self._acknowledged[attempted.sequence] = None
        while self._waiting and self._waiting[0].sequence in self._acknowledged:
            self._waiting.popleft()


class Repeater:
    """See the module."""

    def __init__(self, all_: Repeating) -> None:
        self._all = all_
        self._world = all_.stream.world
        self._number: int | None = None
        self._sent_at = 0

    def waits_for(self) -> str:
        return "" if self._number is None else f"message {self._number}"

    def tick(self) -> None:
        world = self._world
        if self._number is None and self._all.running:
            (self._number,) = self._all.stream.publishers.take_numbers(1)
            self._send(self._number)
        elif self._number is not None and world.now - self._sent_at > 300_000:
            world.count("message repeated")
            self._send(self._number)
        world.later(world.between(2_000, 120_000), None, self.tick)

    def _send(self, number: int) -> None:
        self._sent_at = self._world.now
        keys = self._all.stream.keys((number,))
        key = b"Jetstream-Key: %d\r\n" % int(keys[0] or b"") if keys else b""
        block = b"NATS/1.0\r\n%bNats-Msg-Id: %d\r\n\r\n" % (key, number)
        self._all.send(self, number, b"%d" % number, block)

    def answered(self, attempted: int, answer: dict[str, Any]) -> None:
        if "error" in answer:
            return
        if answer.get("duplicate"):
            self._world.count("duplicate message acknowledged")
        if attempted == self._number:
            self._number = None


class Stranger:
    """See the module."""

    def __init__(self, all_: Repeating, random: Random) -> None:
        self._all = all_
        self._world = all_.stream.world
        self._random = random
        self._ids: set[int] = set()

    def begin(self) -> None:
        """Draw whether this seed has any, and start."""
        is_here = self._random.random() < STRANGERS_SHARE
        if is_here and not self._all.stream.cluster.faults.scenario.is_calm:
            self._tick_later()

    def _tick_later(self) -> None:
        self._world.later(self._random.randint(50_000, 800_000), None, self._tick)

    def _tick(self) -> None:
        if not self._all.running:
            return
        self._tick_later()
        if self._all.producers and self._random.random() < 0.5:
            self._send_batch(*self._random.choice(self._all.producers).next)
        else:
            self._send_message()

    def _send_batch(self, producer_id: int, sequence: int) -> None:
        stream = self._all.stream
        numbers = stream.publishers.take_numbers(self._random.randint(1, 3))
        sent = Sent(producer_id, sequence, numbers, stream.keys(numbers), stream.subject)
        self._all.send(self, sent, sent.payload())

    def _send_message(self) -> None:
        stream = self._all.stream
        (number,) = stream.publishers.take_numbers(1)
        guessed = number + self._random.randint(1, 6)
        if guessed in self._ids:
            return  # It would be the stranger's own duplicate.
        self._ids.add(guessed)
        keys = stream.keys((number,))
        key = b"Jetstream-Key: %d\r\n" % int(keys[0] or b"") if keys else b""
        block = b"NATS/1.0\r\n%bNats-Msg-Id: %d\r\n\r\n" % (key, guessed)
        self._all.send(self, number, b"%d" % number, block, beside=stream.subject + b".beside")

    def answered(self, attempted: Any, answer: dict[str, Any]) -> None:
        self._world.count("stranger refused" if "error" in answer else "stranger acknowledged")
