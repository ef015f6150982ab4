"""A publisher whose batches go by two ways, each of which delays, loses and breaks: each batch is
stored once, in order, whichever way it came."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.publishing.ack import parse_ack
from jetstream_client.publishing.in_flight import Sending, count_of
from jetstream_client.publishing.way_choice import WayChoice
from jetstream_protocol.errors import UnavailableError, UnknownOutcomeError
from tests.property.test_in_flight import BATCHES, RECORDS, World

STATES = ["up", "up", "up", "silent", "broken", "away"]
"""silent: takes everything and brings nothing; broken: ends, with what is under way; away: cannot
be reached at all."""


class TwoWays(World):
    """Each way brings its batches in order, and says nothing of those of the other one."""

    def __init__(self, draw: st.DataObject, deadline: float, is_straight: bool) -> None:
        super().__init__(draw, ["orders"], deadline)
        self.choice = WayChoice(is_straight=is_straight)
        self.goes_straight = True
        self.state = {True: "up", False: "up"}
        self.under_way: dict[bool, list[Sending]] = {True: [], False: []}
        self.used: list[bool] = []

    def step(self, calm: bool) -> None:
        for way in (True, False):
            self.state[way] = "up" if calm else self.draw.draw(st.sampled_from(STATES), "state")
            if self.state[way] in ("broken", "away"):
                self.lose_what_is_under_way(way)
        if not calm:
            self.goes_straight = self.draw.draw(st.integers(0, 3), "streams") > 0
        super().step(calm)
        for way in (True, False):
            self.bring(way, calm)
        if calm:
            self.now += 0.1

    def lose_what_is_under_way(self, way: bool) -> None:
        lost, self.under_way[way] = self.under_way[way], []
        for sending in lost if way else ():  # NATS does not say what it has lost.
            self.told(sending.token, UnknownOutcomeError("the connection ended"))

    def told(self, token: str, error: UnavailableError | UnknownOutcomeError) -> None:
        self.settle(self.in_flight.answer_received(token, ("orders", error), 0, self.now, 0.5))

    def deliver(self, sending: Sending, calm: bool) -> None:
        if not self.in_flight.wants(sending):
            return
        way = self.choice.choose(
            sending,
            is_first=self.in_flight.is_first(sending.batch),
            goes_straight=self.goes_straight,
            is_ready=lambda way: self.state[way] != "away",
            now=self.now,
        )
        assert self.goes_straight or not way
        self.used.append(way)
        if self.state[way] != "away":
            self.under_way[way].append(sending)
        elif way:
            self.told(sending.token, UnavailableError("it cannot be reached"))
        else:
            error = UnavailableError("NATS is not connected")
            self.settle(self.in_flight.not_sent(sending.token, error, self.now, 0.5))

    def bring(self, way: bool, calm: bool) -> None:
        """What arrives by this way now: also what was sent long ago, and is sent again meanwhile by
        the other one."""
        while self.under_way[way] and self.state[way] == "up":
            if not calm and not self.draw.draw(st.booleans(), "arrives"):
                return
            sending = self.under_way[way].pop(0)
            tell = calm or self.draw.draw(st.booleans(), "told")
            stream = self.streams[0]
            answer = stream.take(sending.producer_id, sending.sequence, sending.batch, tell)
            if not tell:
                continue
            if way:
                found = parse_ack(answer)
                assert found is not None
                count = 0 if isinstance(found, tuple) else count_of(answer)
                self.settle(
                    self.in_flight.answer_received(sending.token, found, count, self.now, 0.5)
                )
            else:
                self.answers.append((sending.token, answer))


@given(st.data(), st.sampled_from([1e9, 3.0]), st.integers(0, 25), st.booleans())
def test_each_batch_is_stored_once_in_order_whichever_way_it_comes(
    draw: st.DataObject, deadline: float, steps: int, is_straight: bool
) -> None:
    world = TwoWays(draw, deadline, is_straight)
    world.run(steps)
    stored = world.stored(world.streams[0])
    assert len(set(stored)) == len(stored), stored
    # What was given up may still be under way, and arrive after what was sent later.
    sure = [number for number in stored if world.outcomes[number] is None]
    assert all(a < b for a, b in pairwise(sure)), stored
    for number, error in world.outcomes.items():
        if error is None:
            assert world.batches[number].acks[0].offset == RECORDS * stored.index(number)
        elif not isinstance(error, UnknownOutcomeError):
            assert number not in stored, error
    if deadline > 1e6:
        assert not any(world.outcomes.values())
        assert stored == list(range(BATCHES))


@given(st.data(), st.booleans())
def test_one_way_that_works_is_enough(draw: st.DataObject, works: bool) -> None:
    """The other one takes everything and brings nothing, or cannot be reached."""
    world = TwoWays(draw, 1e9, draw.draw(st.booleans(), "is_straight"))
    dead = draw.draw(st.sampled_from(["silent", "broken", "away"]))

    def step(calm: bool) -> None:
        world.state = {works: "up", not works: dead}
        world.lose_what_is_under_way(not works) if dead != "silent" else None
        super(TwoWays, world).step(calm)
        world.bring(works, calm=True)

    world.step = step  # type: ignore[method-assign]
    world.run(0)
    assert world.stored(world.streams[0]) == list(range(BATCHES))
    assert not any(world.outcomes.values())


@given(st.data())
def test_what_has_worked_is_kept_and_straight_is_looked_for_again(draw: st.DataObject) -> None:
    """A way that brings everything is not left; after a while on NATS all goes straight again."""
    is_straight = draw.draw(st.booleans())
    world = TwoWays(draw, 1e9, is_straight)
    world.choice._return_at = 5.0
    for number in range(BATCHES):
        world.now = float(number)
        if number < len(world.batches):
            world.step(calm=True)
    assert len(world.outcomes) == BATCHES
    expected = [True] if is_straight else [False, True]
    assert list(dict.fromkeys(world.used)) == expected[: len(set(world.used))]
