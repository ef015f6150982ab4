"""A consumer group whose NATS is gone: members read, commit, come, die and freeze without it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jetstream_client import AsyncClient
from tests.integration.group_worker import HOLD
from tests.support.cluster import TestCluster
from tests.support.group_workers import GroupWorkers
from tests.support.loops import eventually, on_loop

RECORDS = 3000
"""Some seconds of work for three members."""

until = partial(eventually, seconds=90.0)


async def look(client: AsyncClient, furthest: dict[str, int]) -> None:
    """Nobody's commit, late or of who was given up, takes a position back."""
    while True:
        for cursor in await client.list_cursors("workers"):
            assert cursor.offset >= furthest.get(cursor.stream, 0), cursor
            furthest[cursor.stream] = cursor.offset
        await asyncio.sleep(0.1)


@on_loop
async def test_members_work_on_while_nats_is_gone_also_those_that_come_and_go(
    cluster: TestCluster, tmp_path: Path
) -> None:
    workers = GroupWorkers(cluster.servers, tmp_path, "jobs", "workers")
    published = {str(number) for number in range(RECORDS)}
    try:
        async with AsyncClient(cluster.servers, timeout=60) as client:
            await client.create_group("jobs", "jobs.>", streams=4)
            async with client.publisher("jobs.x") as publisher:
                values = sorted(published)
                await publisher.publish_many(values, values)
            furthest: dict[str, int] = {}
            looking = asyncio.ensure_future(look(client, furthest))
            hold = tmp_path / "hold"
            hold.touch()
            workers.environment = {HOLD: str(hold)}
            for _ in range(3):
                workers.start()

            def looks_on() -> bool:
                """True. Raises what `look` has found, if it has ended."""
                if looking.done():
                    looking.result()
                return True

            async def handled(number: int) -> None:
                before = len(workers.handled(number))
                await until(lambda: looks_on() and len(workers.handled(number)) > before)

            await until(lambda: looks_on() and bool(workers.handled(0)))
            await asyncio.to_thread(cluster.cluster.end, "nats", signal.SIGKILL)
            assert workers.all_handled() < published
            hold.unlink()
            await handled(0)
            await handled(1)
            workers.processes[0].kill()
            workers.signal(1, signal.SIGSTOP)
            workers.start()
            everything: Callable[[], bool] = lambda: workers.all_handled() == published  # noqa: E731
            await until(lambda: looks_on() and everything())
            workers.signal(1, signal.SIGCONT)

            async def owned() -> list[int]:
                group = await client.describe_group("workers")
                return sorted(len(member.streams) for member in group.members)

            # Who was frozen is a member again: three share four streams.
            ends = time.monotonic() + 60
            while looks_on() and await owned() != [1, 1, 2]:
                said = [workers.said(number).read_text() for number in workers.alive()]
                assert time.monotonic() < ends, (workers.alive(), await owned(), said)
                await asyncio.sleep(0.1)
            await asyncio.to_thread(cluster.cluster.start_nats)
            for number in range(RECORDS, RECORDS + 100):
                value = str(number)
                await client.publish("jobs.x", value, key=value, msg_id=value, timeout=60)
                published.add(value)
            await until(lambda: looks_on() and everything())
            for process in workers.processes[1:]:
                process.send_signal(signal.SIGINT)
            await until(lambda: looks_on() and workers.alive() == [])
            looking.cancel()
    finally:
        workers.end()
