"""A query's marks: what they are when servers name other ends, and when streams come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jetstream_client import DivergedError, OffsetOutOfRangeError, UnavailableError
from pyspark_jetstream import following, planning
from pyspark_jetstream.admission import Limits
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.errors import DataLossError, OptionError
from pyspark_jetstream.following import Follower
from pyspark_jetstream.options import read_options
from tests.support.spark_logs import connector_messages
from tests.support.virtual_time import on_virtual_loop
from tests.unit.spark.log_client import LogClient

NO_LIMITS = Limits(0, 0, 0.0)


@pytest.fixture(autouse=True)
def _all_nodes_know_what_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "BEHIND_SECONDS", 0.0)


async def follower_of(client: LogClient, **more: str) -> Follower:
    options = {"servers": "x:1", "streams": "orders", "startingOffsets": "earliest", **more}
    follower = Follower(read_options(options, "stream"))
    await follower.close()
    follower._client = client  # type: ignore[assignment]
    return follower


@pytest.mark.parametrize("careful", ["true", "false"])
@pytest.mark.parametrize("targets", [None, {1: 40}])
def test_a_mark_does_not_fall_though_a_server_names_an_earlier_end(
    careful: str, targets: dict[int, int] | None
) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        client = LogClient({1: 100})
        follower = await follower_of(client, failOnDataLoss=careful)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        assert start.streams[1].offset == 100
        client.ends[1] = 0
        assert await follower.next_offsets(start, NO_LIMITS, targets) is start
        client.ends[1] = 130
        end = await follower.next_offsets(start, NO_LIMITS, None)
        assert (start.start_of(1, end), end.streams[1].offset) == (100, 130)

    scenario()


@pytest.mark.parametrize(
    "refused", [lambda: DivergedError("", 1, 40), lambda: OffsetOutOfRangeError("", 0, 40)]
)
def test_a_log_that_was_cut_back_is_still_noticed(refused: Callable[[], Exception]) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        for careful in (True, False):
            client = LogClient({1: 100})
            follower = await follower_of(client, failOnDataLoss=str(careful))
            start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
            client.ends[1], client.refusal = 40, (100, refused())
            if careful:
                with pytest.raises(DataLossError, match="cut back"):
                    await follower.next_offsets(start, NO_LIMITS, None)
            else:
                end = await follower.next_offsets(start, NO_LIMITS, None)
                assert end.streams[1].offset == 40
            assert client.asked_with == {"last_epoch": 7, "max_messages": 1}

    scenario()


def test_a_stream_made_anew_under_its_name_is_read_though_the_query_saw_it_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        client = LogClient({1: 100})
        follower = await follower_of(client, failOnDataLoss="false")
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        del client.ends[1]
        gone = await follower.next_offsets(start, NO_LIMITS, None)
        assert gone.streams == {}
        client.ends[2] = 5
        anew = await follower.next_offsets(gone, NO_LIMITS, None)
        assert (gone.start_of(2, anew), anew.streams[2].offset) == (0, 5)
        listed = client.listed
        client.ends[2] = 6
        assert (await follower.next_offsets(anew, NO_LIMITS, None)).streams[2].offset == 6
        assert client.listed == listed, "all streams that the options name are known"

    monkeypatch.setattr(following, "LISTING_SECONDS", 0.0)
    scenario()


@pytest.mark.parametrize("is_gone_already", [False, True])
def test_a_query_is_started_again_though_a_stream_that_it_has_read_is_deleted(
    is_gone_already: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """is_gone_already: the run before has seen that, so its marks do not have the stream."""

    @on_virtual_loop
    async def scenario() -> None:
        client = LogClient({1: 100, 2: 5}, names={2: "audit"})
        options = {"streams": "orders,audit", "failOnDataLoss": "false"}
        follower = await follower_of(client, **options)
        marks = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        del client.ends[2]
        if is_gone_already:
            marks = await follower.next_offsets(marks, NO_LIMITS, None)
            assert set(marks.streams) == {1}
        client.ends[1] = 101
        again = await follower_of(client, **options)
        assert await again.targets() == {1: 101}
        end = await again.next_offsets(marks, NO_LIMITS, {1: 101})
        assert {n: mark.offset for n, mark in end.streams.items()} == {1: 101}

    scenario()
    said = [message.partition(";")[0] for message in connector_messages(caplog)]
    deleted = "stream 'audit@audit.>' was deleted"
    unknown = "option streams names 'audit', and there is no such stream"
    assert said == [deleted, *[unknown] * is_gone_already]


def test_a_careful_query_that_is_started_again_tells_a_deleted_stream_from_a_misspelt_name() -> (
    None
):
    @on_virtual_loop
    async def scenario() -> None:
        client = LogClient({1: 100, 2: 5}, names={2: "audit"})
        follower = await follower_of(client, streams="orders,audit")
        marks = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        for name in ("orders,audit,oders", "oders"):
            again = await follower_of(client, streams=name)
            for _ in range(2):
                with pytest.raises(OptionError, match="names 'oders', and there is no such stream"):
                    await again.next_offsets(marks, NO_LIMITS, None)
        del client.ends[2]
        again = await follower_of(client, streams="orders,audit")
        with pytest.raises(DataLossError, match=r"'audit@audit\.>' was deleted"):
            await again.next_offsets(marks, NO_LIMITS, None)
        new = await follower_of(client, streams="orders,audit", failOnDataLoss="false")
        with pytest.raises(OptionError, match="names 'audit', and there is no such stream"):
            await new.initial()

    scenario()


@on_virtual_loop
async def test_the_name_of_a_keyed_group_is_answered_with_its_streams() -> None:
    client = LogClient({1: 5, 2: 5}, names={1: "jobs-0", 2: "jobs-1"}, group="jobs")
    follower = await follower_of(client, streams="jobs")
    with pytest.raises(OptionError, match=r"'jobs' is a group .*, jobs-0 to jobs-1, or .*jobs-\[0"):
        await follower.initial()


@pytest.mark.parametrize(
    "options",
    [
        {"streams": "orders,orders@orders.>"},
        {"streams": "orders,audit", "subject": "orders.eu"},
        {"streams": "orders,audit@audit.>"},
    ],
)
def test_streams_are_not_listed_again_while_all_that_the_options_name_are_there(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        client = LogClient({1: 100, 2: 3, 3: 4}, names={2: "audit", 3: "other"})
        follower = await follower_of(client, **options)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        for more in range(1, 3):
            client.ends[1] = 100 + more
            start = await follower.next_offsets(start, NO_LIMITS, None)
            assert start.streams[1].offset == 100 + more
        assert client.listed == 1

    monkeypatch.setattr(following, "LISTING_SECONDS", 0.0)
    scenario()


def test_a_cursor_that_cannot_be_shown_holds_up_a_query_once_and_not_for_each_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some commits fail when all are under way, the others never end."""
    streams = range(8)
    under_way: list[int] = []
    all_are = asyncio.Event()

    class Mute(LogClient):
        async def commit_cursor(self, _: str, number: int, *__: object, **___: object) -> None:
            under_way.append(number)
            if len(under_way) == len(streams):
                all_are.set()
            await all_are.wait()
            if number:
                await asyncio.Event().wait()
            raise UnavailableError("cursors have no leader")

    @on_virtual_loop
    async def scenario() -> None:
        follower = await follower_of(Mute({}))
        marks = {number: Mark(f"s{number}@s", 1) for number in streams}
        await follower.show("nightly", Offsets("c", marks))

    monkeypatch.setattr(following, "SHOWING_SECONDS", 0.5)
    scenario()
    assert all_are.is_set()
    said = connector_messages(caplog)
    why = {message.rpartition(": ")[2] for message in said}
    assert (why, len(said)) == ({"cursors have no leader", "no answer in time"}, 8)
