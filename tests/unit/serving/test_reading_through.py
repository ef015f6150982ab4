"""Any replica reads through to the lake: what its log lacks, and what it must know of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from jetstream_protocol.errors import DivergedError, JetstreamError, UnavailableError
from jetstream_server.lake.reader import LakeReader
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.commands import LAKE_LEVEL
from jetstream_server.metadata.state.streams import LakeMark
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.replica import Replica
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving.long_poll import FetchPosition, LongPoll
from tests.support.access import open_to_all
from tests.support.loops import on_loop
from tests.support.node import Node

EPOCHS = {0: 0, 1: 0, 2: 2, 3: 2, 4: 2, 5: 2}
"""Of the records in the lake."""


class Lake:
    """Stands for the reader: a record is a group. loaded: what was read."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def find(self, stream_id: int, offset: int, bytes_max: int) -> LogSlice | None:
        if offset not in self.loaded:
            return None
        return LogSlice("group", 0, 1, offset, offset + 1, last_epoch=EPOCHS[offset])

    def epoch_before(self, stream_id: int, offset: int) -> int | None:
        return EPOCHS[offset - 1] if offset - 1 in self.loaded else None

    def load(
        self,
        stream_id: int,
        location: str,
        offset: int,
        done: Callable[[JetstreamError | None], None],
    ) -> None:
        self.loaded.append(offset)
        done(None)

    load_epoch = load


def position(offset: int, last_epoch: int = -1) -> FetchPosition:
    return FetchPosition(offset, last_epoch, 1_000, 1, 0)


def replica_in(folder: Path, *, start: int, count: int, leads: bool = False) -> Replica:
    """A replica with `count` records from `start` on, of epoch 3. The lake holds [0, 6)."""
    node = Node(folder / "streams", level=LAKE_LEVEL)
    node.start()
    replica = node.create(config={"lake": True})
    replica.log.reset(start)
    for _ in range(count):
        node.append(replica, b"x")
    replica.stream = replace(replica.stream, lake=LakeMark(0, 6, 2, "table", 1), leader_epoch=3)
    if not leads:
        replica.leadership = None
    replica.high_watermark = replica.log.log_end_offset
    return replica


def polls_of(lake: Lake | None) -> LongPoll:
    polls = LongPoll(lambda: True, open_to_all())
    polls.lake = cast(LakeReader | None, lake)
    return polls


async def read(polls: LongPoll, replica: Replica, at: FetchPosition) -> Any:
    return await polls.fetch(replica, at, ANONYMOUS)


@on_loop
async def test_a_replica_that_is_copying_has_the_records_of_the_lake(tmp_path: Path) -> None:
    """Those before its log, and those that it has not got yet or does not know as committed."""
    lake = Lake()
    polls, replica = polls_of(lake), replica_in(tmp_path, start=2, count=2)
    for offset in (0, 1, 4, 5):
        assert (await read(polls, replica, position(offset))).base_offset == offset
    assert (await read(polls, replica, position(2))).path != "group"
    replica.high_watermark = 3
    assert (await read(polls, replica, position(3))).path == "group"
    assert lake.loaded == [0, 1, 4, 5, 3]


@on_loop
async def test_a_reader_of_another_history_is_told_also_by_the_lake(tmp_path: Path) -> None:
    """It has read what an election lost. The record before its position may be in another group."""
    lake = Lake()
    polls, replica = polls_of(lake), replica_in(tmp_path, start=6, count=1, leads=True)
    assert (await read(polls, replica, position(2, 0))).base_offset == 2
    assert lake.loaded == [1, 2]
    with pytest.raises(DivergedError) as caught:
        await read(polls, replica, position(3, 1))
    assert "leader epoch 2, not 1" in caught.value.message


@pytest.mark.parametrize("start", [4, 6])
@on_loop
async def test_the_record_before_a_log_is_the_lake_s(tmp_path: Path, start: int) -> None:
    """Of a copy that begins in the lake, its node learns the epoch there; at its end, from the
    metadata."""
    lake = Lake()
    polls, replica = polls_of(lake), replica_in(tmp_path, start=start, count=3)
    assert (await read(polls, replica, position(start, 2))).path != "group"
    assert lake.loaded == ([3] if start == 4 else [])
    with pytest.raises(DivergedError):
        await read(polls, replica, position(start, 1))
    assert (await read(polls, replica, position(start))).base_offset == start, "it does not ask"


@on_loop
async def test_without_a_lake_nothing_is_guessed(tmp_path: Path) -> None:
    polls, replica = polls_of(None), replica_in(tmp_path, start=4, count=3)
    for at in (position(4, 2), position(3)):
        with pytest.raises(InLakeError):
            await read(polls, replica, at)
    assert issubclass(InLakeError, UnavailableError), "another replica may have it"
