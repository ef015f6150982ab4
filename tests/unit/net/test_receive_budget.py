"""The room for long frames: never more than there is, and whoever waits gets it."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from jetstream_server.net.receive_budget import SHARES, ReceiveBudget

MOST = 1000


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 2 * MOST), st.integers(0, 7)), max_size=60
    )
)
def test_no_more_is_received_than_there_is_room_for_and_everybody_gets_a_turn(
    asked: list[tuple[str, int, int]],
) -> None:
    """Each frame asks until it has its room; some frame that is being received ends now and then,
    and in the end all do."""
    budget = ReceiveBudget(MOST)
    receiving: list[tuple[str, int]] = []
    done = 0

    def ask(holder: str, length: int) -> None:
        if budget.take(holder, length, lambda: ask(holder, length)):
            receiving.append((holder, length))

    def end(which: int) -> None:
        nonlocal done
        holder, length = receiving.pop(which % len(receiving))
        done += 1
        budget.give(holder, length)

    for holder, length, which in asked:
        ask(holder, length)
        assert budget.held == sum(each for _, each in receiving)
        assert budget.held <= MOST or len(receiving) == 1
        for each in "abc":
            own = [length for holder, length in receiving if holder == each]
            assert sum(own) <= MOST // SHARES or len(own) == 1
        if receiving and which > 4:
            end(which)
    while receiving:
        end(0)
    assert done == len(asked)
    assert budget.held == 0


def test_who_waits_no_longer_is_not_called() -> None:
    budget = ReceiveBudget(MOST)
    called: list[str] = []

    def wake() -> None:
        called.append("left")

    assert budget.take("a", MOST, lambda: None)
    assert not budget.take("b", 1, wake)
    budget.leave(wake)
    budget.give("a", MOST)
    assert called == []


def test_whoever_leaves_after_it_was_woken_leaves_the_room_to_those_after_it() -> None:
    """A connection may end between being woken and asking again."""
    budget = ReceiveBudget(MOST)
    taken: list[int] = []

    leaving: list[int] = []
    assert budget.take("a", MOST, lambda: None)
    woken = [partial(leaving.append, number) for number in range(40)]
    for number, wake in enumerate(woken):
        assert not budget.take(f"gone {number}", 1, wake)
    assert not budget.take("there", 1, lambda: taken.append(1))
    budget.give("a", MOST)
    while leaving:
        budget.leave(woken[leaving.pop()])
    assert taken == [1]
