import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.changes import Change, NodeChanged, StreamCreated
from jetstream_server.metadata.log import MetadataLog, SingleNodeMetadataLog

from .cluster import ADDRESSES

REGISTER = {"op": "register_node", "node_id": 0, "addresses": ADDRESSES}


def create(number: int) -> dict:
    return {
        "op": "create_stream",
        "name": f"s{number}",
        "subject": f"s.{number}.>",
        "replicas": [0],
        "created_at_us": 1,
    }


@asynccontextmanager
async def running(directory: Path, **options: int) -> AsyncIterator[SingleNodeMetadataLog]:
    log = SingleNodeMetadataLog(str(directory), NodeId(0), **options)
    await log.start()
    try:
        yield log
    finally:
        await log.close()


def test_it_is_a_metadata_log(tmp_path: Path) -> None:
    log: MetadataLog = SingleNodeMetadataLog(str(tmp_path), NodeId(3))
    assert log.leader == 3


def test_what_was_proposed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with running(tmp_path) as log:
            await log.propose(REGISTER)
            result = await log.propose(create(1))
            assert log.registry.streams[result["stream_id"]].name == "s1"

    async def second() -> None:
        async with running(tmp_path) as log:
            assert log.registry.resolve("s1").subject == "s.1.>"
            assert log.status().revision == 2

    asyncio.run(first())
    asyncio.run(second())


def test_each_process_registers_as_a_new_incarnation_once(tmp_path: Path) -> None:
    async def incarnations() -> list[int]:
        async with running(tmp_path) as log:
            return [(await log.propose(REGISTER))["incarnation"] for _ in range(2)]

    first, second = asyncio.run(incarnations()), asyncio.run(incarnations())
    assert first == [1, 1]
    assert second == [3, 3]


def test_a_refused_command_raises_its_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as log:
            with pytest.raises(InvalidRequestError, match="not part of this cluster"):
                await log.propose(create(1))

    asyncio.run(main())


def test_concurrent_proposals_share_flushes_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    fdatasync = os.fdatasync

    def counted(descriptor: int) -> None:
        nonlocal flushes
        flushes += 1
        fdatasync(descriptor)

    async def main() -> None:
        async with running(tmp_path) as log:
            seen: list[Change] = []
            log.watch(seen.append)
            await log.propose(REGISTER)
            monkeypatch.setattr(os, "fdatasync", counted)
            results = await asyncio.gather(*(log.propose(create(n)) for n in range(2_000)))
            assert [result["revision"] for result in results] == list(range(2, 2_002))
            assert flushes < 20
            created = [change.stream.name for change in seen if isinstance(change, StreamCreated)]
            assert created == [f"s{number}" for number in range(2_000)]

    asyncio.run(main())


def test_watchers_see_a_change_before_its_proposer_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as log:
            seen: list[Change] = []
            stop = log.watch(seen.append)
            await log.propose(REGISTER)
            assert [type(change) for change in seen] == [NodeChanged]
            stop()
            await log.propose(create(1))
            assert len(seen) == 1

    asyncio.run(main())


def test_a_failing_watcher_disturbs_neither_the_log_nor_other_watchers(tmp_path: Path) -> None:
    async def main() -> None:
        reported: list[dict] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        async with running(tmp_path) as log:
            seen: list[Change] = []
            log.watch(lambda _: 1 // 0)
            log.watch(seen.append)
            await log.propose(REGISTER)
            await log.propose(create(1))
            assert len(seen) == 2
        assert len(reported) == 2

    asyncio.run(main())


def test_a_snapshot_takes_over_from_the_entries_before_it(tmp_path: Path) -> None:
    async def fill() -> None:
        async with running(tmp_path, compact_after_entries=100) as log:
            await log.propose(REGISTER)
            for number in range(250):
                await log.propose(create(number))
            assert log.status().journal_entries < 100

    async def check() -> None:
        async with running(tmp_path) as log:
            assert log.registry.revision == 251
            assert len(log.registry.streams) == 250
            assert (await log.propose(create(250)))["revision"] == 252

    asyncio.run(fill())
    asyncio.run(check())


def test_a_proposal_given_up_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as log:
            await log.propose(REGISTER)
            impatient = asyncio.create_task(log.propose(create(1)))
            await asyncio.sleep(0)
            impatient.cancel()
            await log.propose(create(2))
            assert await log.barrier() == log.registry.revision

    asyncio.run(main())


def test_a_failed_flush_is_an_unknown_outcome_and_ends_all_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def main() -> None:
        async with running(tmp_path) as log:
            await log.propose(REGISTER)
            monkeypatch.setattr(os, "fdatasync", broken)
            with pytest.raises(UnknownOutcomeError, match="Input/output error"):
                await log.propose(create(1))
            monkeypatch.undo()
            with pytest.raises(UnavailableError, match="offline"):
                await log.propose(create(2))

    asyncio.run(main())


def test_nothing_can_be_proposed_before_the_start_or_after_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        log = SingleNodeMetadataLog(str(tmp_path), NodeId(0))
        with pytest.raises(UnavailableError, match="not started"):
            await log.propose(REGISTER)
        await log.start()
        await log.close()
        with pytest.raises(UnavailableError, match="stopping"):
            await log.barrier()

    asyncio.run(main())


def test_a_damaged_journal_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"not ours")

    async def main() -> None:
        log = SingleNodeMetadataLog(str(tmp_path), NodeId(0))
        with pytest.raises(StorageError):
            await log.start()
        await log.close()

    asyncio.run(main())
