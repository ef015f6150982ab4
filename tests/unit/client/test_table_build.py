"""A table that may have missed deletions, because it was away for longer than tombstones stay, is
built anew; nobody sees it half filled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_client import UnavailableError
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.messages import LogView, MessageCollector, Messages
from jetstream_client.reading.table import AsyncTable
from jetstream_client.reading.table_build import Build
from tests.support.loops import eventually, on_loop
from tests.unit.client.batches import batch_bytes

GRACE = 10.0


def answer(
    next_offset: int, gone_below: int, *, end: int = 100, epoch: int = 1, compacted_below: int = 0,
    first: LogView | None = None,
) -> Messages:  # fmt: skip
    found = Messages(
        "prices", (), next_offset=next_offset, high_watermark=end, compacted_below=compacted_below
    )
    last = LogView(epoch, gone_below)
    found.log_views = (first or last, last)
    return found


def built(*answers: Messages) -> Build:
    build = Build(0.0)
    for each in answers:
        assert not build.take(each)
        build.position = each.next_offset
    return build


def test_what_was_gone_before_the_first_answer_is_no_doubt() -> None:
    built(answer(10, 80), answer(20, 80), answer(100, 80), answer(100, 80))


def test_a_table_that_has_read_everything_does_not_doubt_what_is_removed_behind_it() -> None:
    built(answer(100, 0), answer(200, 100, end=200), answer(200, 200, end=200))


def test_tombstones_that_were_removed_before_they_were_read_are_a_doubt() -> None:
    late = answer(200, 101, end=200)
    build = built(answer(100, 0))
    assert build.take(late)
    assert not build.is_unharmed(late, 1.0, GRACE), "what it has may be older than its build"


def test_what_one_leader_removes_within_the_grace_time_of_a_build_does_not_harm_it() -> None:
    late = answer(20, 90)
    for now, epoch, unharmed in ((9.0, 1, True), (GRACE, 1, False), (1.0, 2, False)):
        build = built(answer(10, 80))
        late.log_views = (LogView(epoch, 90),)
        assert build.take(late)
        assert build.is_unharmed(late, now, GRACE) is unharmed
        assert build.take(late) is not unharmed, "it is asked once"


def test_what_is_removed_between_two_fetches_of_the_first_answer_is_a_doubt() -> None:
    assert Build(0.0).take(answer(10, 80, first=LogView(1, 70)))


@pytest.mark.parametrize(
    ("second", "whole_from"),
    [
        (answer(90, 0, end=150), 100),
        (answer(90, 0, end=150, compacted_below=120), 120),
        (answer(90, 0, end=150, epoch=2), 150),
    ],
    ids=["", "compaction was faster", "another leader's log"],
)
def test_a_build_is_whole_once_no_key_can_be_missing(second: Messages, whole_from: int) -> None:
    build = built(answer(50, 0), second)
    for position in (99, whole_from - 1):
        build.position = position
        assert not build.is_whole
    build.position = whole_from
    assert build.is_whole


class Script:
    """A consumer whose answers are given one by one."""

    deserializers: Any = Deserializers()
    wait_max = 0.0

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Messages] = asyncio.Queue()
        self.seeks: list[object] = []
        self.refusals = 0

    async def begin(self) -> None: ...

    async def seek(self, position: object) -> None:
        self.seeks.append(position)
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("no leader")

    async def next_messages(self) -> Messages:
        return await self.answers.get()

    async def aclose(self) -> None: ...

    def say(self, first: int, gone_below: int, end: int, **rows: str | None) -> None:
        """Records from an offset on."""
        values = [None if value is None else value.encode() for value in rows.values()]
        collector = MessageCollector("prices", first)
        keys = [key.encode() for key in rows]
        if rows:
            collector.add(batch_bytes(values, first, keys=keys))
        collector.high_watermark = end
        collector.saw(LogView(1, gone_below))
        self.answers.put_nowait(collector.messages())


def table_of(script: Script, end: int) -> AsyncTable[Any, Any]:
    async def latest() -> int:
        return end

    async def grace() -> float:
        return GRACE

    consumer: Any = script
    return AsyncTable(consumer, latest, grace, wait=True, patience=60, stale_after=None)


@on_loop
async def test_a_table_that_was_away_for_too_long_is_built_anew_beside_the_old_one() -> None:
    script = Script()
    script.say(0, 0, 3, a="1", b="2", c="3")
    table = table_of(script, 3)
    async with table:
        before = {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert table.snapshot() == before
        script.refusals = 1
        script.say(3, 8, 20, d="4")  # The tombstone of `a`, below 8, is gone.
        await eventually(lambda: len(script.seeks) == 2)  # The first one was refused.
        assert script.seeks == ["earliest", "earliest"]
        current = asyncio.create_task(table.wait_until_current())
        script.say(1, 8, 20, b="2", c="3")
        script.say(18, 8, 20, d="4")
        await eventually(script.answers.empty)
        for _ in range(5):
            await asyncio.sleep(0)
            assert table.snapshot() == before, "it is half filled"
        assert not table.is_current
        assert not current.done()
        script.say(19, 8, 20, e="5")
        await current
        assert table.snapshot() == {b"b": b"2", b"c": b"3", b"d": b"4", b"e": b"5"}
        assert table.position == 20
        assert table.is_current
        script.say(20, 8, 21, e=None)
        await eventually(lambda: b"e" not in table)


@on_loop
async def test_a_table_that_loads_slowly_is_not_given_up_while_it_is_built_anew() -> None:
    script = Script()
    table = table_of(script, 10)
    table._patience = 0.05
    opening = asyncio.create_task(table.opened())
    script.say(0, 0, 10, a="1", b="2")
    await eventually(lambda: table.position == 2)
    table._build.begun -= GRACE
    script.say(2, 5, 10, c="3")
    await eventually(lambda: script.seeks == ["earliest"])
    for at in range(10):
        script.say(at, 5, 10, **{f"k{at}": "1"})
        await asyncio.sleep(0.01)
    await opening
    assert len(table) == 10
    await table.aclose()
