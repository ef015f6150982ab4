"""How many streams a keyed group has, and where a message goes, from what the registry knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetstream_client import InvalidRequestError, NoStreamError, Stream, StreamPausedError
from jetstream_client.publishing.keyed_group import check_room, partition_count
from jetstream_client.publishing.partitioner import partition_of
from jetstream_client.publishing.subject_routes import SubjectRoute
from tests.unit.client.test_subject_routes import stream


def partitions(*numbers: int, of: int) -> list[Stream]:
    return [
        replace(stream(f"g-{number}", "g"), partition=number, partitions=of) for number in numbers
    ]


def test_a_group_has_as_many_streams_as_all_of_which_exist() -> None:
    assert partition_count(partitions(0, 1, 2, of=3)) == 3
    assert partition_count(partitions(0, 2, of=3)) == 0
    growing = partitions(0, 1, 2, of=3)
    assert partition_count([*growing, *partitions(3, of=5)]) == 3
    assert partition_count([*growing, *partitions(3, 4, of=5)]) == 5
    # One that was lost before the group grew is missing in both.
    assert partition_count([*partitions(0, 2, of=3), *partitions(3, 4, of=5)]) == 0


def test_a_message_goes_to_the_place_of_its_key_and_waits_for_that_stream_alone() -> None:
    route = SubjectRoute.of(partitions(0, 1, 2, of=3), "a.x")
    for key in (b"", b"k", b"ada"):
        target, place = route.place_for("a.x", key, turn=0)
        number = partition_of(key, 3)
        assert target == f"_INGEST.g.{number}.a.x"
        assert place.wanted("a.x", "all") == (frozenset({f"g-{number}"}),)
        assert place.wanted_of_batches("a.x", "any") == (frozenset({f"g-{number}"}),)
        assert place.recognises_ids(10)
    turns = [route.place_for("a.x", None, turn).target for turn in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[:3]) == [f"_INGEST.g.{number}.a.x" for number in range(3)]


def test_turns_pass_over_a_stream_that_takes_nothing_unless_none_does() -> None:
    streams = partitions(0, 1, of=2)
    streams[0] = replace(streams[0], paused=True)
    route = SubjectRoute.of(streams, "a.x")
    assert {route.place_for("a.x", None, turn).target for turn in range(4)} == {"_INGEST.g.1.a.x"}
    both = SubjectRoute.of([replace(each, paused=True) for each in streams], "a.x")
    with pytest.raises(StreamPausedError):
        both.place_for("a.x", None, 0).route.wanted("a.x", "all")


def test_nothing_is_published_to_a_group_that_cannot_keep_its_order() -> None:
    incomplete = SubjectRoute.of(partitions(0, 2, of=3), "a.x")
    with pytest.raises(NoStreamError, match=r"lacks partitions \[1\] of 3"):
        incomplete.place_for("a.x", b"k", 0)
    two = [*partitions(0, of=1), replace(stream("h", "h"), partition=0, partitions=1)]
    with pytest.raises(InvalidRequestError, match="several keyed groups"):
        SubjectRoute.of(two, "a.x").place_for("a.x", b"k", 0)
    deaf = [*partitions(0, of=1), stream("audit")]
    with pytest.raises(InvalidRequestError, match="would not hear"):
        SubjectRoute.of(deaf, "a.x").place_for("a.x", b"k", 0)
    hears = [*partitions(0, of=1), replace(stream("all", acks="off"), subject=">")]
    assert SubjectRoute.of(hears, "a.x").partitions == 1


def test_a_group_is_refused_room_that_it_cannot_have() -> None:
    check_room(partitions(0, 1, of=3), "g", "a.>", 3)
    check_room(partitions(0, 1, 2, of=3), "g", "a.>", 12)
    with pytest.raises(InvalidRequestError, match="cannot shrink"):
        check_room(partitions(0, 1, 2, of=3), "g", "a.>", 2)
    there = [stream(name) for name in ("mm", "orders", "audit", "x", "y")]
    for count, said in (
        (1, "mm listens on this subject already and would miss .* by key: delete it, or"),
        (2, "mm and orders listen .* delete them, or choose another subject"),
        (3, "mm, orders and audit listen "),
        (5, "mm, orders, audit and 2 more listen "),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            check_room(there[:count], "g", "a.b.>", 2)
    check_room([stream("audit")], "g", "b.>", 2)
