"""Which stream a member begins when, with a clock: whatever some streams do, each of the others is
begun in time; and nothing is tried over and over."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jetstream_client.reading import beginnings
from jetstream_client.reading.beginnings import AT_A_TIME, LONG_SECONDS, Beginnings
from tests.support.examples import scaled

STREAMS = 8
CALL_SECONDS = 10.0
"""What an attempt takes at most: the client's timeout ends it."""
PAUSE_SECONDS_MAX = 10.0
END = 200.0
TURN_SECONDS = (STREAMS + 1) * LONG_SECONDS
"""Until it is a stream's turn: each other one holds it up once."""


@dataclass
class Stream:
    """failures: how long each of its first attempts takes until it fails; then one that takes
    `seconds` is made, and it has begun. never: they all fail like the last. told: when it is given
    to the member, and taken away, in turn. since: when it was last given to it, or an attempt has
    failed since."""

    failures: list[float]
    never: bool
    seconds: float
    told: list[float]
    attempts: list[float] = field(default_factory=list)
    given_at: float | None = None
    waits_since: float = 0.0
    has_begun: bool = False

    def attempt(self, now: float) -> tuple[float, bool]:
        """When it ends, and whether it has failed."""
        number = len(self.attempts)
        self.attempts.append(now)
        if self.failures and (self.never or number < len(self.failures)):
            return now + self.failures[min(number, len(self.failures) - 1)], True
        return now + self.seconds, False

    def is_told(self, now: float) -> bool:
        return sum(at <= now for at in self.told) % 2 == 1


durations = st.sampled_from([0.0, 0.01, 0.5, 2.5, 4.0, CALL_SECONDS])
streams = st.builds(
    Stream,
    failures=st.lists(durations, max_size=6),
    never=st.booleans(),
    seconds=st.sampled_from([0.0, 0.01, 0.5, 2.5]),
    told=st.lists(
        st.sampled_from([0.0, 0.3, 1.0, 5.0, 5.1, 20.0, 20.1]), min_size=1, max_size=3
    ).map(sorted),
)


def run(all_of_them: list[Stream]) -> None:
    turns, now = Beginnings(), 0.0
    under_way: dict[int, tuple[float, bool]] = {}
    for _ in range(5_000):
        told = _told(all_of_them, now)
        missing = {number for number in told if not all_of_them[number].has_begun}
        for number in turns.only(missing):
            del under_way[number]
        assert under_way.keys() <= missing, "it begins what was taken away"
        while (number := turns.next(missing, now)) is not None:
            assert number not in under_way, "it is begun twice"
            is_slow = any(all_of_them[n].attempts[-1] + LONG_SECONDS <= now for n in under_way)
            assert len(under_way) < (AT_A_TIME if is_slow else 1), "too many at a time"
            under_way[number] = all_of_them[number].attempt(now)
        tried = all(all_of_them[number].attempts for number in missing)
        assert under_way or tried, "what was given to it is not begun at once"
        for number in missing:
            _check(all_of_them[number], number in under_way, now)
        due = turns.due_at(missing, now)
        assert due is None or due > now, "it asks over and over"
        times = [at for at, _ in under_way.values()]
        times += [at for each in all_of_them for at in each.told if at > now]
        times += [] if due is None else [due]
        if not times or min(times) > END:
            break
        now = min(times)
        for number in [n for n, (at, _) in under_way.items() if at <= now]:
            stream, (_, has_failed) = all_of_them[number], under_way.pop(number)
            turns.ended(number, now, has_failed=has_failed)
            stream.has_begun = not has_failed
            stream.waits_since = now + PAUSE_SECONDS_MAX
    for number in _told(all_of_them, END):
        stream = all_of_them[number]
        if not stream.has_begun:
            _check(stream, number in under_way, END)
            assert stream.attempts, "it was never begun"


def _told(all_of_them: list[Stream], now: float) -> Set[int]:
    told = {number for number, each in enumerate(all_of_them) if each.is_told(now)}
    for number, stream in enumerate(all_of_them):
        if number not in told:
            stream.given_at, stream.has_begun = None, False
        elif stream.given_at is None:
            stream.given_at = stream.waits_since = now
            stream.attempts.clear()
    return told


def _check(stream: Stream, is_under_way: bool, now: float) -> None:
    if not is_under_way:
        assert now <= stream.waits_since + TURN_SECONDS, "it is not begun"
    assert stream.given_at is not None
    assert len(stream.attempts) <= 9 + (now - stream.given_at) / PAUSE_SECONDS_MAX, "over and over"


EXAMPLES = st.lists(streams, min_size=1, max_size=STREAMS)


@settings(max_examples=scaled(300), deadline=None)
@given(EXAMPLES)
def test_each_stream_is_begun_in_time_and_none_over_and_over(all_of_them: list[Stream]) -> None:
    run(all_of_them)


Patch = pytest.MonkeyPatch


def the_first_is_always_first(patch: Patch) -> None:
    """As it was."""

    def first(self: Beginnings, missing: Set[int], now: float) -> int | None:
        if self._since or not missing:
            return None
        self._since[min(missing)] = now
        return min(missing)

    patch.setattr(Beginnings, "next", first)


def what_failed_is_begun_again_at_once(patch: Patch) -> None:
    patch.setattr(beginnings, "_pause", lambda count: 0.0)


def what_takes_long_holds_up_the_others(patch: Patch) -> None:
    patch.setattr(Beginnings, "_has_place", lambda self, now: not self._since)


def all_are_begun_at_once(patch: Patch) -> None:
    patch.setattr(Beginnings, "_has_place", lambda self, now: True)


def what_comes_back_waits_as_if_it_had_not_gone(patch: Patch) -> None:
    def only(self: Beginnings, missing: Set[int]) -> list[int]:
        gone = sorted(self._since.keys() - missing)
        for number in gone:
            del self._since[number]
        return gone

    patch.setattr(Beginnings, "only", only)


def what_was_taken_away_is_begun_all_the_same(patch: Patch) -> None:
    patch.setattr(Beginnings, "only", lambda self, missing: [])


def nobody_comes_back_to_what_waits(patch: Patch) -> None:
    patch.setattr(Beginnings, "due_at", lambda self, missing, now: None)


MUTANTS = [
    the_first_is_always_first,
    what_failed_is_begun_again_at_once,
    what_takes_long_holds_up_the_others,
    all_are_begun_at_once,
    what_comes_back_waits_as_if_it_had_not_gone,
    what_was_taken_away_is_begun_all_the_same,
    nobody_comes_back_to_what_waits,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)

    @settings(
        max_examples=2000, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(EXAMPLES)
    def without_the_rule(all_of_them: list[Stream]) -> None:
        run(all_of_them)

    with pytest.raises(AssertionError):
        without_the_rule()
