"""Batches in flight against streams that lose, refuse and fail, and against strangers who use the
producer's id: each is stored once, in order."""

from __future__ import annotations

import json
from collections import deque
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import (
    JetstreamError,
    StreamPausedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.publishing.in_flight import Done, InFlightBatches, Sending
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_protocol.errors import (
    CODES,
    InvalidRequestError,
    OutOfSequenceError,
    SequenceTakenError,
)

BATCHES = 12
RECORDS = 2
REMEMBERED = 5
"""Of a producer's batches: docs/protocol.md, "Duplicates"."""
FATES = ["stored", "stored", "lost", "ack lost", "refused", "doubted", "failover"]


class Stream:
    """A server's rules for producers' batches (docs/protocol.md), and the log they lead to.

    Appended is not yet committed: `lose` takes back what nobody has been told of, as a failover
    does.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[tuple[int, int, Batch | None]] = []
        """None: a stranger's."""
        self.committed = 0

    def forestall(self, producer: int) -> None:
        """A stranger sends the next batch of a producer that it has seen, and is told."""
        mine = [entry[1] for entry in self.log if entry[0] == producer]
        if mine:
            self.log.append((producer, mine[-1] + 1, None))
            self.committed = len(self.log)

    def take(self, producer: int, sequence: int, batch: Batch, tell: bool = True) -> bytes:
        """tell: whether the answer will arrive; what nobody is told of may still be lost."""
        mine = [at for at, entry in enumerate(self.log) if entry[0] == producer]
        last = self.log[mine[-1]][1] if mine else -1
        known = {self.log[at][1]: at for at in mine[-REMEMBERED:]}
        if sequence in known and self.log[known[sequence]][2] is not batch:
            return self.nack(SequenceTakenError("a stranger's"))
        if sequence in known:
            return self.ack(known[sequence], tell, duplicate=True)
        begins = not mine and (sequence == 0 or sequence >= REMEMBERED)
        if sequence != last + 1 and not begins:
            return self.nack(OutOfSequenceError("not the next"))
        self.log.append((producer, sequence, batch))
        return self.ack(len(self.log) - 1, tell)

    def ack(self, at: int, tell: bool, duplicate: bool = False) -> bytes:
        self.committed = max(self.committed, at + 1) if tell else self.committed
        answer = {"stream": self.name, "seq": RECORDS * (at + 1), "count": RECORDS}
        return json.dumps({**answer, "duplicate": duplicate} if duplicate else answer).encode()

    def nack(self, error: JetstreamError) -> bytes:
        code = CODES[type(error)].nats_err_code
        said = {"code": 0, "err_code": code, "description": error.message}
        return json.dumps({"error": said, "stream": self.name, "seq": 0}).encode()

    def lose(self) -> None:
        del self.log[self.committed :]


def batch_number(number: int, deadline: float) -> Batch:
    batch = Batch(0.0, deadline)
    batch.extend([b"%d" % number] * RECORDS, None)
    return batch


class World:
    """Everything between the batches in flight and their streams, decided by `draw`."""

    def __init__(self, draw: st.DataObject, names: list[str], deadline: float) -> None:
        self.draw = draw
        self.streams = [Stream(name) for name in names]
        self.expected = tuple(frozenset((name,)) for name in names)
        # Not both: a stranger who fills the gap that an invalid batch leaves could have what is
        # after it stored twice.
        self.fates = [*FATES, draw.draw(st.sampled_from(["invalid", "forestalled"]), "also")]
        ids = iter(range(1000, 2000))
        self.in_flight = InFlightBatches(
            self.expected, one_is_enough=False, producer_id=7, new_id=lambda: next(ids)
        )
        self.batches = [batch_number(number, deadline) for number in range(BATCHES)]
        self.waiting = deque(self.batches)
        self.outcomes: dict[int, JetstreamError | None] = {}
        self.answers: list[tuple[str, bytes]] = []
        self.now = 0.0

    def settle(self, finished: list[Done]) -> None:
        for batch, error in finished:
            number = self.batches.index(batch)
            assert number not in self.outcomes
            self.outcomes[number] = error

    def step(self, calm: bool) -> None:
        self.settle(self.in_flight.expire(self.now))
        while self.waiting and self.in_flight.has_room:
            self.in_flight.add(self.waiting.popleft())
        for sending in self.in_flight.due(self.now):
            self.deliver(sending, calm)
        while self.answers and (calm or self.draw.draw(st.booleans(), "answer")):
            token, payload = self.answers.pop(0)
            self.settle(self.in_flight.answered(token, payload, self.now, 0.5))
        ahead = self.in_flight.next_time()
        if ahead is not None and not self.answers and ahead > self.now:
            self.now = ahead

    def deliver(self, sending: Sending, calm: bool) -> None:
        for stream in self.streams:
            fate = "stored" if calm else self.draw.draw(st.sampled_from(self.fates), "fate")
            if fate == "lost":
                continue
            if fate == "failover":
                stream.lose()
            if fate == "forestalled":
                stream.forestall(sending.producer_id)
            if fate == "refused":
                answer = stream.nack(UnavailableError("not now"))
            elif fate == "doubted":
                answer = stream.nack(UnknownOutcomeError("appended, perhaps"))
                stream.take(sending.producer_id, sending.sequence, sending.batch, tell=False)
            elif fate == "invalid" and sending.batch is self.batches[3]:
                answer = stream.nack(InvalidRequestError("never"))
            else:
                tell = fate != "ack lost"
                answer = stream.take(sending.producer_id, sending.sequence, sending.batch, tell)
                if not tell:
                    continue
            self.answers.append((sending.token, answer))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(calm=False)
        for _ in range(200):
            if len(self.outcomes) == BATCHES:
                return
            self.step(calm=True)
        raise AssertionError(f"no end: {self.outcomes}")

    def stored(self, stream: Stream) -> list[int]:
        return [self.batches.index(batch) for _, _, batch in stream.log if batch is not None]

    def offset(self, stream: Stream, number: int) -> int:
        """Of the batch's first record."""
        return RECORDS * [entry[2] for entry in stream.log].index(self.batches[number])


@given(st.data(), st.sampled_from([1e9, 3.0]), st.integers(0, 40))
def test_each_batch_is_stored_once_in_order_and_told_the_truth(
    draw: st.DataObject, deadline: float, steps: int
) -> None:
    world = World(draw, ["orders"], deadline)
    world.run(steps)
    stored = world.stored(world.streams[0])
    assert all(a < b for a, b in pairwise(stored)), stored
    for number, error in world.outcomes.items():
        if error is None:
            offset = world.offset(world.streams[0], number)
            assert world.batches[number].acks[0].offset == offset
        elif not isinstance(error, UnknownOutcomeError):
            assert number not in stored, error
    if deadline > 1e6:
        failed = {number for number, error in world.outcomes.items() if error}
        was_forestalled = any(entry[2] is None for entry in world.streams[0].log)
        is_doubted = isinstance(world.outcomes[3], UnknownOutcomeError)
        assert failed <= {3} or is_doubted or was_forestalled


@given(st.data(), st.sampled_from([1e9, 3.0]), st.integers(0, 40))
def test_several_streams_have_each_batch_at_most_once(
    draw: st.DataObject, deadline: float, steps: int
) -> None:
    world = World(draw, ["orders", "audit"], deadline)
    world.run(steps)
    for stream in world.streams:
        stored = world.stored(stream)
        assert all(a < b for a, b in pairwise(stored)), stored
        for number, error in world.outcomes.items():
            if error is None:
                acks = {ack.stream: ack.offset for ack in world.batches[number].acks}
                assert acks[stream.name] == world.offset(stream, number)


@given(st.data(), st.integers(0, 20), st.booleans())
def test_after_a_failure_each_batch_in_flight_ends_and_is_told_the_truth(
    draw: st.DataObject, steps: int, on_its_way: bool
) -> None:
    world = World(draw, ["orders"], 1e9)
    for _ in range(steps):
        world.step(calm=False)
    if on_its_way:
        for sending in world.in_flight.due(world.now):
            world.deliver(sending, calm=False)
    paused = StreamPausedError("it is paused")
    world.settle(world.in_flight.fail(paused))
    for token, payload in world.answers:
        world.settle(world.in_flight.answered(token, payload, world.now, 0.5))
    assert world.in_flight.due(world.now + 10) == []
    late = world.in_flight.next_time()
    if late is not None:
        world.settle(world.in_flight.expire(late))
    assert world.in_flight.batches == []
    assert set(world.outcomes) == set(range(BATCHES - len(world.waiting)))
    stored = world.stored(world.streams[0])
    for number, error in world.outcomes.items():
        if error is None:
            assert number in stored
        elif not isinstance(error, UnknownOutcomeError):
            assert number not in stored, error
