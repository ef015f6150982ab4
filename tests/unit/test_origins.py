"""Which strangers go first, and what it costs to say so."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest

from jetstream_server.origins import Strangers


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_of_an_origin_with_most_goes_first(seed: int) -> None:
    """Whatever comes and goes: compared with a list."""
    random, strangers = Random(seed), Strangers[int]()
    there: list[tuple[int, str]] = []  # oldest first
    for number in range(2_000):
        what = random.choice("aaadpo")
        if what == "a":
            there.append((number, random.choice("vwxyz")))
            strangers.add(*there[-1])
        elif what == "d" and there:
            leaving = there.pop(random.randrange(len(there)))
            strangers.discard(leaving[0])
        elif what == "o":
            oldest = next((each for each, of in there if of == "v"), None)
            assert strangers.pop("v") == oldest
            there = [each for each in there if each[0] != oldest]
        elif what == "p":
            counts = Counter(origin for _, origin in there)
            most = max(counts.values(), default=0)
            popped = strangers.pop()
            firsts = {origin: each for each, origin in reversed(there) if counts[origin] == most}
            assert popped in firsts.values() if firsts else popped is None
            there = [each for each in there if each[0] != popped]
        assert len(strangers) == len(there)
        assert all(each in strangers for each, _ in there)


def test_of_origins_with_one_each_the_one_that_came_first_goes_first() -> None:
    strangers = Strangers[int]()
    for number in range(9):
        strangers.add(number, f"{number}")
    assert [strangers.pop() for _ in range(10)] == [*range(9), None]


def test_who_comes_again_is_the_newest() -> None:
    strangers = Strangers[int]()
    for number in (1, 2, 1):
        strangers.add(number, "a")
    assert [strangers.pop(), strangers.pop(), strangers.pop()] == [2, 1, None]


def test_thousands_of_networks_cost_no_more_each_than_a_few() -> None:
    """Whoever has a /48 has 65,536 of them. If each look at the origins went through all of them,
    this would take more than half a minute of the processor."""
    strangers = Strangers[int]()
    begun = time.process_time()
    for number in range(50_000):
        strangers.add(number, f"{number}")
    while strangers.pop() is not None:
        pass
    assert time.process_time() - begun < 10
