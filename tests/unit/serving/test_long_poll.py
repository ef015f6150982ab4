"""Long polls: how long they wait, for what, and what they leave behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.types import MonotonicUs
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving import long_poll
from jetstream_server.serving.long_poll import (
    BYTES_MAX_DEFAULT,
    BYTES_MAX_LIMIT,
    WAIT_MS_LIMIT,
    FetchPosition,
    LongPoll,
)
from tests.support.access import open_to_all
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop
from tests.unit.replication.cores import request
from tests.unit.serving.test_list_offsets import RECORDS, restarted


def position(offset: int = 0, **fields: int) -> FetchPosition:
    values: dict[str, int] = {"bytes_max": 0, "bytes_min": 0, "wait_ms_max": 0, **fields}
    return FetchPosition.checked(offset=offset, last_epoch=None, **values)


def test_zero_means_the_default_and_too_much_the_most_there_is() -> None:
    found = position()
    assert (found.bytes_max, found.bytes_min, found.last_epoch) == (BYTES_MAX_DEFAULT, 1, -1)
    found = position(bytes_max=2**32 - 1, bytes_min=2**32 - 1)
    assert (found.bytes_max, found.bytes_min) == (BYTES_MAX_LIMIT, BYTES_MAX_LIMIT)


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": -1, "last_epoch": None, "wait_ms_max": 0},
        {"offset": 0, "last_epoch": -2, "wait_ms_max": 0},
        {"offset": 0, "last_epoch": None, "wait_ms_max": WAIT_MS_LIMIT + 1},
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, int | None]) -> None:
    with pytest.raises(InvalidRequestError):
        FetchPosition.checked(bytes_max=0, bytes_min=0, **fields)  # type: ignore[arg-type]


@on_virtual_loop
async def test_what_is_there_is_answered_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a")
    found = await LongPoll(lambda: True, open_to_all()).fetch(
        replica, position(wait_ms_max=60_000), ANONYMOUS
    )
    assert found is not None
    assert found.next_offset == 1


@on_virtual_loop
async def test_nothing_is_answered_after_the_wait_and_not_before(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    fetches = LongPoll(lambda: True, open_to_all())
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await fetches.fetch(node.create(), position(wait_ms_max=200), ANONYMOUS) is None
    assert 0.19 < loop.time() - begun < 5
    assert fetches.waiting == 0


@on_virtual_loop
async def test_a_wait_ends_with_the_commit_and_not_with_the_append(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all())
    waiting = asyncio.create_task(fetches.fetch(replica, position(wait_ms_max=60_000), ANONYMOUS))
    await eventually(lambda: fetches.waiting == 1)
    node.append(replica, b"a", flush=False)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    node.flushes.run()
    found = await waiting
    assert found is not None
    assert found.next_offset == 1


@on_virtual_loop
async def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a" * 1000)
    fetches = LongPoll(lambda: True, open_to_all())
    few = position(bytes_min=3000, wait_ms_max=60_000)
    waiting = asyncio.create_task(fetches.fetch(replica, few, ANONYMOUS))
    for _ in range(2):
        await asyncio.sleep(0.02)
        assert not waiting.done()
        node.append(replica, b"a" * 1000)
    found = await waiting
    assert found is not None
    assert found.next_offset == 3


@on_virtual_loop
async def test_a_fetch_does_not_wait_for_bytes_that_cannot_come_in_its_answer(
    tmp_path: Path,
) -> None:
    """The next batch is committed, only too large to fit."""
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a" * 1000)
    node.append(replica, b"b" * 9000)
    small = position(bytes_max=5000, bytes_min=5000, wait_ms_max=60_000)
    async with asyncio.timeout(5):
        found = await LongPoll(lambda: True, open_to_all()).fetch(replica, small, ANONYMOUS)
    assert found is not None
    assert found.next_offset == 1


@on_virtual_loop
async def test_a_wait_ends_when_the_stream_is_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all())
    waiting = asyncio.create_task(fetches.fetch(replica, position(wait_ms_max=60_000), ANONYMOUS))
    await eventually(lambda: fetches.waiting == 1)
    node.delete(replica)
    with pytest.raises(StreamNotFoundError):
        await waiting
    assert fetches.waiting == 0


@on_virtual_loop
async def test_a_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all())
    waits = [
        asyncio.create_task(fetches.fetch(replica, position(wait_ms_max=60_000), ANONYMOUS))
        for _ in range(100)
    ]
    await eventually(lambda: fetches.waiting == 100)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert fetches.waiting == 0


@on_virtual_loop
async def test_only_so_many_wait_at_a_time_and_further_ones_are_told(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    fetches = LongPoll(lambda: True, open_to_all(), waiting_max=2)
    long = position(wait_ms_max=60_000)
    waits = [asyncio.create_task(fetches.fetch(replica, long, ANONYMOUS)) for _ in range(2)]
    await eventually(lambda: fetches.waiting == 2)
    with pytest.raises(UnavailableError):
        await fetches.fetch(replica, long, ANONYMOUS)
    assert await fetches.fetch(replica, position(), ANONYMOUS) is None, "who does not wait may ask"
    node.append(replica, b"a")
    assert all([await wait is not None for wait in waits])
    with_something = position(bytes_min=10_000, wait_ms_max=60_000)
    waits = [
        asyncio.create_task(fetches.fetch(replica, with_something, ANONYMOUS)) for _ in range(2)
    ]
    await eventually(lambda: fetches.waiting == 2)
    assert await fetches.fetch(replica, with_something, ANONYMOUS) is not None, (
        "what there is, at once"
    )
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


@on_virtual_loop
async def test_a_replica_out_of_sync_says_so_and_does_not_wait_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "OUT_OF_SYNC_SECONDS", 0.05)
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a")
    lease_held = True
    fetches = LongPoll(lambda: lease_held, open_to_all())
    assert not fetches.is_out_of_sync(replica)
    lease_held = False
    assert fetches.is_out_of_sync(replica)
    found = await fetches.fetch(replica, position(wait_ms_max=60_000), ANONYMOUS)
    assert found is not None, "what is committed is served all the same"
    began = asyncio.get_running_loop().time()
    assert await fetches.fetch(replica, position(1, wait_ms_max=60_000), ANONYMOUS) is None
    assert asyncio.get_running_loop().time() - began < 30


@on_virtual_loop
async def test_without_a_session_nobody_is_told_that_the_log_ends_before(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    with pytest.raises(OffsetOutOfRangeError):
        await LongPoll(lambda: True, open_to_all()).fetch(replica, position(7), ANONYMOUS)
    assert (
        await LongPoll(lambda: False, open_to_all()).fetch(replica, position(7), ANONYMOUS) is None
    )


@on_virtual_loop
async def test_a_new_leader_finds_out_what_is_acknowledged_before_it_says_that_nothing_is() -> None:
    """Though nobody asked it to wait."""
    fetches = LongPoll(lambda: True, open_to_all())
    replica = restarted((0, 1))
    waiting = asyncio.create_task(fetches.fetch(replica, position(), ANONYMOUS))
    await eventually(lambda: fetches.waiting == 1)
    assert await fetches.fetch(replica, position(RECORDS), ANONYMOUS) is None, "nobody has that one"
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    found = await waiting
    assert found is not None
    assert found.next_offset == RECORDS
    # Without another replica it cannot know, and says so soon.
    assert await fetches.fetch(restarted((0, 1)), position(), ANONYMOUS) is None
    # With too few in sync, at once: that may last.
    before = asyncio.get_running_loop().time()
    assert await fetches.fetch(restarted((0,)), position(), ANONYMOUS) is None
    assert asyncio.get_running_loop().time() == before
    assert fetches.waiting == 0
