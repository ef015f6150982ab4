"""How many acknowledgements a publish waits for follows from what the registry knows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jetstream_client import (
    InvalidRequestError,
    NoStreamError,
    Stream,
    StreamPausedError,
    StreamReadonlyError,
)
from jetstream_client.publishing.subject_routes import SubjectRoute, SubjectRoutes
from tests.support.virtual_time import on_virtual_loop


def stream(name: str, group: str = "", acks: str = "reply") -> Stream:
    return Stream(
        id=1,
        name=name,
        subject="a.>",
        group=group,
        max_message_bytes=0,
        replication_factor=1,
        min_insync_replicas=1,
        flush="group",
        acks=acks,
        max_age=0.0,
        max_bytes=0,
        max_messages=0,
        compact=False,
        tombstone_grace=86_400.0,
        duplicate_window=120.0,
        segment_bytes=0,
        segment_age=0.0,
        restoring=False,
        encryption="node",
        key="record",
        lake=False,
        local_max_age=0.0,
        local_max_bytes=0,
        lake_lag=0.0,
        lake_object_bytes=0,
        on_mismatch="keep",
        description="",
        labels="",
        replicas=(0,),
        leader=0,
        leader_epoch=0,
        stream_epoch=0,
        isr=(0,),
        elr=(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        lossy_elections=0,
    )


def names(*expected: str) -> frozenset[str]:
    return frozenset(expected)


def test_every_stream_outside_a_group_answers() -> None:
    feed = SubjectRoute.of([stream("a"), stream("b")])
    assert feed.wanted("a.x", "all") == (names("a"), names("b"))


def test_one_stream_of_each_group_answers() -> None:
    feed = SubjectRoute.of([stream("a", "g"), stream("b", "g"), stream("c", "h"), stream("d")])
    assert feed.wanted("a.x", "all") == (names("a", "b"), names("c"), names("d"))


@pytest.mark.parametrize("acks", ["off", "envelope"])
def test_streams_that_do_not_acknowledge_are_not_waited_for(acks: str) -> None:
    feed = SubjectRoute.of([stream("a"), stream("quiet", acks=acks)])
    assert feed.wanted("a.x", "all") == (names("a"),)
    assert not feed.is_covered_by(feed.wanted("a.x", "all"))
    with pytest.raises(InvalidRequestError, match="does not acknowledge"):
        feed.wanted("a.x", ["quiet"])


def test_where_no_stream_acknowledges_waiting_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="ack_level='none'"):
        SubjectRoute.of([stream("quiet", acks="off")]).wanted("a.x", "all")


def test_named_streams_are_waited_for_and_no_others() -> None:
    feed = SubjectRoute.of([stream("a"), stream("b"), stream("c", "g"), stream("d", "g")])
    with pytest.raises(InvalidRequestError, match="invalid acks 1: say 'all', 'any'"):
        feed.wanted("a.x", 1)  # type: ignore[arg-type]
    assert feed.wanted("a.x", ["b"]) == (names("b"),)
    assert feed.wanted("a.x", ["c", "d"]) == (names("c", "d"),)
    assert not feed.is_covered_by(feed.wanted("a.x", ["b"]))
    assert feed.is_covered_by(feed.wanted("a.x", ["a", "b", "c"]))


def test_streams_may_be_named_in_full() -> None:
    feed = SubjectRoute.of([stream("a"), stream("b")])
    assert feed.wanted("a.x", ["b@a.>"]) == (names("b"),)
    with pytest.raises(NoStreamError):
        feed.wanted("a.x", ["b@elsewhere.>"])


def test_a_name_that_does_not_listen_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(NoStreamError, match="'z'"):
        SubjectRoute.of([stream("a")]).wanted("a.x", ["a", "z"])


@pytest.mark.parametrize("acks", ["some", []])
def test_acks_that_say_nothing_are_refused(acks: str | list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="say 'all', 'any' or stream names"):
        SubjectRoute.of([stream("a")]).wanted("a.x", acks)


def test_a_paused_stream_is_told_to_whoever_asks_it() -> None:
    feed = SubjectRoute.of([stream("a"), replace(stream("quiet"), paused=True)])
    for acks in ("all", ["quiet"]):
        with pytest.raises(StreamPausedError, match="stream resume quiet"):
            feed.wanted("a.x", acks)
    assert feed.wanted("a.x", ["a"]) == (names("a"),)
    assert names("a") in feed.wanted("a.x", "any")


def test_a_group_goes_on_without_its_members_that_take_nothing() -> None:
    paused, readonly = (
        replace(stream("a", "g"), paused=True),
        replace(stream("b", "g"), readonly=True),
    )
    feed = SubjectRoute.of([paused, readonly, stream("c", "g")])
    assert (feed.names, feed.refusals) == (names("c"), {})
    with pytest.raises(StreamReadonlyError):
        SubjectRoute.of([readonly]).wanted("a.x", "all")
    # Outside a group it listens, and refuses by itself.
    alone = SubjectRoute.of([replace(stream("b"), readonly=True)])
    assert alone.wanted("a.x", "all") == (names("b"),)


class FakeRegistry:
    def __init__(self, *streams: Stream) -> None:
        self.streams = list(streams)
        self.led: dict[str, Stream] = {}
        self.calls = 0

    async def streams_on(self, subject: str) -> list[Stream]:
        self.calls += 1
        await asyncio.sleep(0)
        return self.streams

    async def as_led(self, stream: Stream) -> Stream:
        """The leader knows the news first."""
        await asyncio.sleep(0)
        return self.led.get(stream.name, stream)


@on_virtual_loop
async def test_publishers_of_one_subject_share_one_question() -> None:
    registry = FakeRegistry(stream("a"))
    feeds = SubjectRoutes(registry.streams_on, registry.as_led)
    await asyncio.gather(*[feeds.ask("a.x") for _ in range(100)])
    assert registry.calls == 1
    assert feeds.known("a.x") is not None


@on_virtual_loop
async def test_that_no_stream_listens_is_never_remembered() -> None:
    registry = FakeRegistry()
    feeds = SubjectRoutes(registry.streams_on, registry.as_led)
    with pytest.raises(NoStreamError, match=r"create one, for example on a\.>"):
        await feeds.ask("a.x")
    with pytest.raises(NoStreamError, match=r"create one, for example on zzz$"):
        await feeds.ask("zzz")
    registry.streams.append(stream("a"))
    assert (await feeds.ask("a.x")).expectations == (names("a"),)


def test_the_oldest_stream_is_expected_first() -> None:
    younger = (replace(stream("a"), id=7), replace(stream("g1", "g"), id=3))
    route = SubjectRoute.of(
        [*younger, replace(stream("z"), id=2), replace(stream("g2", "g"), id=9)]
    )
    assert route.expectations == (names("z"), names("g1", "g2"), names("a"))


def test_a_stream_is_shown_in_one_line() -> None:
    assert repr(stream("a")) == "<Stream 'a@a.>', id 1, leader 0, isr [0]>"


@on_virtual_loop
async def test_a_subject_with_a_wildcard_is_refused_without_asking() -> None:
    registry = FakeRegistry(stream("a"))
    with pytest.raises(InvalidRequestError, match="wildcard"):
        await SubjectRoutes(registry.streams_on, registry.as_led).ask("a.*")
    assert registry.calls == 0


@on_virtual_loop
async def test_what_is_known_is_asked_for_anew_while_it_is_still_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jetstream_client.publishing.subject_routes.FRESH_SECONDS", -0.01)
    registry = FakeRegistry(stream("a"))
    feeds = SubjectRoutes(registry.streams_on, registry.as_led)
    await feeds.ask("a.x")
    registry.streams.append(stream("b"))
    assert feeds.known("a.x") == SubjectRoute.of([stream("a")])
    await feeds.ask("a.x")
    assert registry.calls == 2
    assert feeds.known("a.x") == SubjectRoute.of(registry.streams)
    await feeds.close()


@on_virtual_loop
async def test_what_is_known_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream_client.publishing.subject_routes.FRESH_SECONDS", -100.0)
    registry = FakeRegistry(stream("a"))
    feeds = SubjectRoutes(registry.streams_on, registry.as_led)
    await feeds.ask("a.x")
    assert feeds.known("a.x") is None


@on_virtual_loop
async def test_the_leader_is_asked_whether_a_stream_still_does_not_listen() -> None:
    """Any other node may hear later that it was resumed."""
    paused = replace(stream("a"), paused=True)
    registry = FakeRegistry(paused)
    feeds = SubjectRoutes(registry.streams_on, registry.as_led)
    with pytest.raises(StreamPausedError):
        (await feeds.ask("a.x")).wanted("a.x", "all")
    registry.led["a"] = stream("a")
    assert (await feeds.ask("a.x")).wanted("a.x", "all") == (names("a"),)


def test_a_member_that_may_listen_again_by_now_may_answer() -> None:
    """It takes its share of the messages as soon as it is resumed, whatever is known here."""
    idle = [
        replace(stream("a", group="g"), paused=True),
        replace(stream("b", group="g"), readonly=True),
        replace(stream("off", group="g", acks="off"), paused=True),
    ]
    route = SubjectRoute.of([*idle, stream("c", group="g")])
    assert route.wanted("a.x", "all") == (names("a", "b", "c"),)
    assert route.is_covered_by(route.wanted("a.x", "all"))
    assert route.names == names("c")
    assert not route.recognises_ids(1)
