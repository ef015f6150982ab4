"""What a streaming query asks while there is nothing to read. A real server, and no Spark."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pyspark_jetstream import admission, following
from pyspark_jetstream.admission import AT_ONCE_SECONDS, AT_ONCE_TIMES, Limits
from pyspark_jetstream.checkpoint import Offsets
from pyspark_jetstream.following import Follower
from pyspark_jetstream.options import read_options
from tests.spark.support import Log
from tests.support.server import ServerProcess
from tests.support.spark_logs import connector_messages

NO_LIMITS = Limits(0, 0, 0.0)
PATIENCE_SECONDS = 60.0


@asynccontextmanager
async def idle(log: Log, **options: str) -> AsyncIterator[tuple[Follower, Offsets]]:
    """A follower that has said that there is nothing new, as often as it does so at once."""
    follower = Follower(read_options({**log.options, **options}, "stream"))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            first = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
            for _ in range(AT_ONCE_TIMES):
                assert await follower.next_offsets(first, NO_LIMITS, None) is first
        yield follower, first
    finally:
        await follower.close()


def waiting_fetches(server: ServerProcess) -> int:
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as page:
        found = re.search(r"^jetstream_waiting_fetches (\d+)", page.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_an_idle_query_waits_at_the_server_until_a_record_comes(
    server: ServerProcess, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "IDLE_SECONDS", 10 * PATIENCE_SECONDS)
    monkeypatch.setattr(admission, "AT_ONCE_SECONDS", PATIENCE_SECONDS)
    log.publish(range(3))

    async def go() -> list[int]:
        async with idle(log) as (follower, start), asyncio.timeout(PATIENCE_SECONDS):
            asked = asyncio.create_task(follower.next_offsets(start, NO_LIMITS, None))
            while waiting_fetches(server) == 0:
                assert not asked.done(), "the answer did not wait"
                await asyncio.sleep(0.02)
            await asyncio.to_thread(log.publish, [3])
            return [mark.offset for mark in (await asked).streams.values()]

    assert asyncio.run(go()) == [4]


def test_an_idle_query_that_asks_again_at_once_is_answered_after_a_second(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "AT_ONCE_SECONDS", PATIENCE_SECONDS)

    async def go() -> float:
        async with idle(log) as (follower, start):
            begin = time.monotonic()
            assert await follower.next_offsets(start, NO_LIMITS, None) is start
            return time.monotonic() - begin

    assert asyncio.run(go()) > 0.9 * following.IDLE_SECONDS


def test_a_trigger_that_waits_by_itself_is_answered_at_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "IDLE_SECONDS", 10 * PATIENCE_SECONDS)

    async def go() -> None:
        async with idle(log) as (follower, start), asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(2):
                await asyncio.sleep(2 * AT_ONCE_SECONDS)
                assert await follower.next_offsets(start, NO_LIMITS, None) is start

    asyncio.run(go())


def test_a_compacted_stream_is_warned_about_once(
    log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LISTING_SECONDS", 0.0)
    log.client.alter_stream(log.name, compact=True)

    async def go() -> None:
        async with idle(log, streams="", streamPattern=log.name):
            pass

    with caplog.at_level(logging.WARNING, "pyspark_jetstream"):
        asyncio.run(go())
    assert connector_messages(caplog) == [
        f"stream {log.name}@{log.name}.> is compacted: a batch that is run again may have fewer "
        "records"
    ]


def test_epochs_are_asked_for_only_where_the_leader_is_new(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question for each stream of each batch takes longer than the batch if there are many."""
    asked: list[int] = []
    ask = Follower._epochs

    async def noted(self: Follower, ends: Mapping[int, int]) -> dict[int, int]:
        asked.extend(ends.values())
        return await ask(self, ends)

    async def fetched(follower: Follower, end: Offsets) -> dict[int, int]:
        return await ask(follower, {n: mark.offset for n, mark in end.streams.items()})

    monkeypatch.setattr(Follower, "_epochs", noted)
    log.publish(range(3))

    async def go() -> None:
        async with idle(log, startingOffsets="earliest") as (follower, end):
            assert asked == [3]
            for number in (3, 4):
                await asyncio.to_thread(log.publish, [number])
                end = await follower.next_offsets(end, NO_LIMITS, None)
                (mark,) = end.streams.values()
                assert (mark.offset, [mark.epoch]) == (
                    number + 1,
                    list((await fetched(follower, end)).values()),
                )
            assert asked == [3]
            others = {n: replace(mark, epoch=mark.epoch + 1) for n, mark in end.streams.items()}
            await asyncio.to_thread(log.publish, [5])
            await follower.next_offsets(replace(end, streams=others), NO_LIMITS, None)
            assert asked == [3, 6]

    asyncio.run(go())


def test_the_ends_at_which_a_trigger_stops_are_known_to_the_progress_report(log: Log) -> None:
    """A query that is started again runs its unfinished batch before it asks for the next one."""
    log.publish(range(3))

    async def go() -> tuple[dict[int, int], dict[int, int], set[str]]:
        follower = Follower(read_options(log.options, "stream"))
        try:
            targets = await follower.targets()
            return targets, follower.latest, set(follower.names.values())
        finally:
            await follower.close()

    targets, latest, names = asyncio.run(go())
    assert list(latest.values()) == [3]
    assert (targets, names) == (latest, {f"{log.name}@{log.name}.>"})
