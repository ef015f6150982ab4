"""A query's offsets: where batches begin when they are run again, how far they go, what is lost."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.admission import Limits, Pace, admitted, is_delayed
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.following import Follower
from pyspark_jetstream.losses import is_selected, losses
from pyspark_jetstream.options import Selection

ORDERS = Selection(("orders",), "", ())


def offsets(cluster: str = "c", *, initial: bool = False, **ends: int) -> Offsets:
    """Streams by id: `_7=100` is stream 7, `orders@orders.>`, read up to 100."""
    marks = {int(number[1:]): Mark("orders@orders.>", end) for number, end in ends.items()}
    return Offsets(cluster, marks, initial=initial)


def test_offsets_survive_sparks_json() -> None:
    found = Offsets("c", {17: Mark("a@a.>", 5, 2), 3: Mark("b@b", 0)}, {3: 0}, True)
    assert Offsets.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "given", [{}, {"version": 2}, {"version": 1}, {"version": 1, "streams": 3}]
)
def test_a_checkpoint_of_another_making_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="new checkpointLocation"):
        Offsets.from_json(given)


def test_the_first_batch_begins_where_it_began_however_often_spark_asks() -> None:
    first_answer = offsets(_7=100, initial=True)
    end = Offsets("c", {7: Mark("orders@orders.>", 130)}, began={7: 100})
    asked_again = offsets(_7=125, initial=True)
    assert first_answer.start_of(7, end) == asked_again.start_of(7, end) == 100


def test_a_later_batch_begins_at_the_end_of_the_one_before() -> None:
    before = Offsets("c", {7: Mark("orders@orders.>", 130)}, began={7: 100})
    assert before.start_of(7, offsets(_7=150)) == 130


def test_a_stream_that_is_new_begins_where_its_first_batch_says() -> None:
    end = Offsets("c", {7: Mark("a", 130), 9: Mark("b", 10)}, began={9: 3})
    assert offsets(_7=130).start_of(9, end) == 3
    assert offsets(_7=130).start_of(9, offsets(_7=130, _9=10)) is None


numbers = st.dictionaries(st.integers(1, 9), st.integers(0, 10_000), max_size=6)


@given(numbers, numbers, st.integers(0, 5_000))
def test_a_batch_takes_a_share_of_every_stream_that_waits(
    starts: dict[int, int], sizes: dict[int, int], most: int
) -> None:
    starts = {number: starts.get(number, 0) for number in sizes}
    latest = {number: starts[number] + size for number, size in sizes.items()}
    ends = admitted(starts, latest, most)
    taken = {number: ends[number] - starts[number] for number in ends}
    assert all(0 <= taken[number] <= sizes[number] for number in sizes)
    if most:
        waiting = [number for number, size in sizes.items() if size]
        assert sum(taken.values()) <= max(most, 0) + len(waiting)
        assert all(taken[number] > 0 for number in waiting)
    else:
        assert ends == latest


def test_a_batch_waits_for_its_minimum_and_not_longer_than_its_delay() -> None:
    limits = Limits(0, 10, 60.0)
    assert is_delayed({1: 0}, {1: 9}, limits, waited=1.0)
    assert not is_delayed({1: 0}, {1: 10}, limits, waited=1.0)
    assert not is_delayed({1: 0}, {1: 9}, limits, waited=60.0)
    assert not is_delayed({1: 0}, {1: 9}, limits, waited=float("inf"))


def waits(interval: int, *, work: dict[int, int], triggers: int = 200) -> list[int]:
    """Spark's trigger, with its clock: which questions are answered after a second of waiting.

    work: how long the batches take, by trigger; the other triggers find nothing. Milliseconds.
    """
    pace, now, waited = Pace(), 0, []
    for number in range(triggers):
        following = (now // interval + 1) * interval if interval else now
        pace.asked(now / 1000)
        if number in work:
            pace.answered(now / 1000, is_idle=False)
            now += work[number]
        else:
            if pace.is_pressing:
                waited.append(number)
                now += 1_000
            pace.answered(now / 1000, is_idle=True)
            now += 10
        now = max(now, following)
    return waited


def test_an_idle_query_without_an_interval_is_made_to_wait() -> None:
    assert waits(0, work={}) == list(range(2, 200))
    assert waits(0, work={50: 3_000}) == [number for number in range(2, 200) if number != 50]


@given(
    st.integers(120, 60_000),
    st.dictionaries(st.integers(0, 199), st.integers(10, 200_000), max_size=60),
)
def test_a_trigger_with_an_interval_waits_by_itself(interval: int, work: dict[int, int]) -> None:
    """Also after batches that took too long, when the next trigger comes at any moment."""
    assert waits(interval, work=work) == []


@pytest.mark.parametrize(
    ("end", "earliest", "what"),
    [
        (offsets(), {}, "was deleted"),
        (offsets(_8=5), {}, "another made under its name (id 7 is now 8)"),
        (offsets(_7=90), {}, "ends at offset 90, and the query has read up to 100"),
        (offsets(_7=200), {7: 150}, "begins at offset 150, and the query has read only up to 100"),
        (offsets("d", _7=200), {}, "servers belong to different clusters, 'c' and 'd'"),
    ],
)
def test_what_is_lost_between_two_batches_is_named(
    end: Offsets, earliest: dict[int, int], what: str
) -> None:
    (found,) = losses(offsets(_7=100), end, earliest, ORDERS)
    assert what in found


def test_nothing_is_lost_by_going_on_by_choosing_otherwise_or_before_the_first_batch() -> None:
    assert not list(losses(offsets(_7=100), offsets(_7=100, _9=4), {7: 100}, ORDERS))
    others = Selection(("clicks",), "", ())
    assert not list(losses(offsets(_7=100), offsets(), {}, others))
    assert not list(losses(offsets(_7=100, initial=True), offsets(_7=90), {}, ORDERS))


def test_a_query_that_has_read_nothing_yet_still_belongs_to_its_cluster() -> None:
    (found,) = losses(offsets(_7=100, initial=True), offsets("d", _7=100), {}, ORDERS)
    assert "different clusters" in found


def test_streams_are_selected_by_name_pattern_or_subject() -> None:
    assert is_selected("orders@orders.>", ORDERS)
    assert is_selected("orders@orders.>", Selection(("orders@orders.>",), "", ()))
    assert is_selected("orders@orders.>", Selection((), "ord.*", ("*.eu",)))
    assert not is_selected("orders@orders.>", Selection((), "ord", ()))
    assert not is_selected("orders@orders.>", Selection((), "ord.*", ("clicks.>",)))


def test_a_query_that_names_other_streams_than_before_says_which_it_leaves_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its checkpoint forgets them, so they begin anew if they are named again."""
    follower = object.__new__(Follower)
    follower._options = cast(Any, SimpleNamespace(selection=ORDERS))
    marks = {7: Mark("orders@orders.>", 100), 9: Mark("clicks@clicks.>", 20)}
    follower._warn_of_left_out(Offsets("c", marks))
    assert [each.getMessage() for each in caplog.records] == [
        "the query has read stream clicks@clicks.> up to offset 20, and its options do not name it "
        "any more: it is left out from here on, and begins anew if it is named again"
    ]
    follower._warn_of_left_out(None)
    assert len(caplog.records) == 1
