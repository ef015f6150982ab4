"""What readers do about errors by themselves: every error has a row, and each caller goes by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_client import (
    JetstreamError,
    PermissionDeniedError,
    QuotaExceededError,
    StorageError,
    UnavailableError,
)
from jetstream_client.reading import consumer as consumers
from jetstream_client.transport.cursors import is_passing
from jetstream_client.transport.recovery import (
    RECOVERIES,
    Caller,
    Recovery,
    recovery,
    repeats,
)
from jetstream_protocol.errors import (
    CODES,
    NotLeaderError,
    RecordsDamagedError,
    UnknownOutcomeError,
)
from tests.support.loops import eventually, on_loop
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.test_consume import Log
from tests.unit.client.test_group_consumer import Member
from tests.unit.client.test_handing_out import Cursor
from tests.unit.client.test_table import Endless, table_of


def test_every_error_and_every_caller_has_its_recovery() -> None:
    assert RECOVERIES.keys() == CODES.keys()
    assert {len(row) for row in RECOVERIES.values()} == {len(Caller)}


@pytest.mark.parametrize("cls", CODES)
def test_what_another_node_may_do_ends_nothing_that_lives_on(cls: type[JetstreamError]) -> None:
    error = cls("said")
    if error.retriable:
        for caller in (Caller.PUBLISH, Caller.COMMIT, Caller.HEARTBEAT, Caller.TABLE):
            assert repeats(error, caller)


def test_who_loses_a_disk_repeats_and_who_has_no_right_ends() -> None:
    for caller in (Caller.PUBLISH, Caller.COMMIT, Caller.HEARTBEAT, Caller.TABLE):
        assert repeats(StorageError("offline"), caller)
        assert repeats(UnknownOutcomeError("lost"), caller)
        for error in (PermissionDeniedError("no"), QuotaExceededError("full")):
            assert recovery(error, caller) is Recovery.END
    assert repeats(RecordsDamagedError("gone"), Caller.TABLE)
    assert not repeats(RecordsDamagedError("gone", retriable=False), Caller.TABLE)
    assert is_passing(NotLeaderError("elsewhere"))


def test_a_private_class_of_error_has_the_row_of_its_base() -> None:
    class Private(UnavailableError):
        """As transport/grpc_calls.py has them."""

    assert repeats(Private("nobody"), Caller.COMMIT)


@on_virtual_loop
async def test_a_consumer_outlives_the_disk_of_the_node_that_leads_the_cursors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "CHECKPOINT_SECONDS", 0.02)
    log, cursor = Log(), Cursor()
    failures, commit = [StorageError("__cursors is offline")], cursor.commit

    async def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await commit(*arguments)

    cursor.commit = failing  # type: ignore[method-assign]
    async with log.consume(cursor=cursor) as consumer:  # type: ignore[arg-type]
        found = [(await anext(consumer)).offset]
        await eventually(lambda: not failures)
        found += [message.offset async for message in consumer]
    assert (found, cursor.committed) == (list(range(10)), 10)


@pytest.mark.parametrize("error", [QuotaExceededError("full"), PermissionDeniedError("no")])
@on_virtual_loop
async def test_a_consumer_that_can_never_commit_is_told(error: JetstreamError) -> None:
    cursor = Cursor()

    async def refused(*_: Any) -> None:
        raise error

    cursor.commit = refused  # type: ignore[method-assign]
    consumer = Log().consume(cursor=cursor)  # type: ignore[arg-type]

    async def read_on() -> None:
        async for _ in consumer:
            await asyncio.sleep(0.01)

    with pytest.raises(type(error)):
        await read_on()
    await consumer.aclose()


@on_virtual_loop
async def test_a_member_outlives_the_disk_of_the_node_that_coordinates() -> None:
    member = Member()
    member.membership._session = 2.0
    await anext(member.consumer)
    member.coordinator.failures = [StorageError("__cursors is offline")]
    before = member.coordinator.heartbeats
    await eventually(lambda: member.coordinator.heartbeats > before + 1)
    assert member.membership.failure is None
    await member.consumer.aclose()


@on_loop
async def test_a_table_keeps_nothing_of_waits_that_ran_out() -> None:
    table = table_of(Endless())
    for _ in range(50):
        with pytest.raises(UnavailableError):
            await table.wait_until_current(0.001)
    assert not table._waiting
    await table.aclose()


@on_virtual_loop
async def test_seeks_in_a_row_under_a_waiting_call_end_nothing() -> None:
    """Each ended the fetch under way, and the call began anew: once one in the other."""
    async with Log().consume("latest", None) as consumer:
        reading = asyncio.ensure_future(anext(consumer))
        for _ in range(2_000):
            await asyncio.sleep(0)
            await consumer.seek("latest")
        assert not reading.done()
        await consumer.seek(3)
        assert (await asyncio.wait_for(reading, 5.0)).offset == 3


@on_virtual_loop
async def test_a_consumer_that_two_tasks_begin_at_once_commits_in_one_task() -> None:
    cursor, opens = Cursor(), asyncio.Event()

    async def opened() -> None:
        await opens.wait()

    cursor.open = opened  # type: ignore[assignment]
    consumer = Log().consume(cursor=cursor)  # type: ignore[arg-type]
    begun = asyncio.gather(anext(consumer), consumer.seek(5))
    await asyncio.sleep(0)
    opens.set()
    await begun
    await consumer.aclose()
    await asyncio.sleep(0)
    assert not [each for each in asyncio.all_tasks() if "_checkpoint_on_and_on" in repr(each)]
