"""The SDK and three nodes: whichever it knows leads it to the one it needs, also after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    JetstreamError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.support.cluster import TestCluster
from tests.support.group_workers import GroupWorkers
from tests.support.loops import on_loop


def test_any_node_leads_to_the_others(cluster: TestCluster) -> None:
    address = cluster.cluster.grpc_addresses[2]
    with Client(address, timeout=60) as client:
        names = [f"spread-{number}" for number in range(6)]
        for name in names:
            assert len(client.create_stream(name, f"{name}.>").replicas) == 3
        leaders = {client.describe_stream(name).leader for name in names}
        assert len(leaders) > 1
        for number, name in enumerate(names):
            for turn in range(number + 1):
                client.publish(f"{name}.x", b"1", msg_id=f"{name}-{turn}")

        def all_is_told() -> bool:
            """A node that has just begun to lead finds out how far that was."""
            ends = [each.offset for each in client.list_offsets([(n, "latest") for n in names])]
            told = {each.name: each for each in client.describe_streams()}
            assert all(told[name].last_append is not None for name in names)
            return ends == [told[name].high_watermark for name in names] == [1, 2, 3, 4, 5, 6]

        cluster.wait_for("the ends are told", all_is_told)
        for number, name in enumerate(names):
            assert len(client.fetch(name)) == number + 1
            assert client.describe_stream(name).high_watermark == number + 1
            client.delete_stream(name)
        assert len(client.describe_cluster().nodes) == 3


def test_what_was_acknowledged_can_be_read_at_once(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        epoch = client.create_stream("fresh", "fresh.>").leader_epoch
        for number in range(200):
            offset = client.publish("fresh.x", b"%d" % number, msg_id=f"{number}").offset
            found = client.fetch("fresh", offset).values()
            if not found:  # Another leads, and a follower that has to be asked stands still.
                before, epoch = epoch, client.describe_stream("fresh").leader_epoch
                assert epoch > before
                found = client.fetch("fresh", offset, max_wait=60.0).values()
            assert found == [b"%d" % number]


@on_loop
async def test_a_killed_leader_costs_publishers_and_readers_a_pause_no_record(
    cluster: TestCluster,
) -> None:
    async with AsyncClient(cluster.servers, timeout=60) as client:
        stream = await client.create_stream("survivor", "survivor.>")
        acknowledged: dict[int, bytes] = {}
        ended = asyncio.Event()

        async def publish(worker: int) -> None:
            number = 0
            while not ended.is_set():
                value = b"%d-%d" % (worker, number)
                number += 1
                try:
                    result = await client.publish("survivor.x", value, timeout=3.0)
                except (UnknownOutcomeError, UnavailableError):
                    continue
                assert result.offset not in acknowledged
                acknowledged[result.offset] = value

        async def read() -> list[tuple[int, bytes | None]]:
            found = []
            async for message in client.consume("survivor"):
                found.append((message.offset, message.value))
                if message.value == b"last":
                    break
            return found

        publishers = [asyncio.ensure_future(publish(worker)) for worker in range(20)]
        reader = asyncio.ensure_future(read())
        await until(lambda: len(acknowledged) > 500)
        leader = (await client.describe_stream("survivor")).leader
        await asyncio.to_thread(cluster.kill, leader)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 500)
        assert (await client.describe_stream("survivor")).leader != leader
        ended.set()
        await asyncio.gather(*publishers)
        last = await client.publish("survivor.x", b"last", msg_id="last")
        acknowledged[last.offset] = b"last"
        found = await asyncio.wait_for(reader, 60)
        await asyncio.to_thread(cluster.restart, leader)
        await client.delete_stream(stream)

    assert [offset for offset, _ in found] == list(range(len(found)))  # each once, in order
    stored = dict(found)
    assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged


async def until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def test_a_dead_node_first_in_the_list_is_passed_over(cluster: TestCluster) -> None:
    cluster.kill(0)
    try:
        with Client(cluster.servers, timeout=60) as client:
            stream = client.create_stream("passed", "passed.>")
            for number in range(5):
                client.publish("passed.x", b"%d" % number, msg_id=f"passed-{number}")
            assert client.offset_at(stream, "latest") == 5
            assert client.fetch(stream).values() == [b"0", b"1", b"2", b"3", b"4"]
            assert client.describe_stream(stream).leader != 0
            client.delete_stream(stream)
    finally:
        cluster.restart(0)


def test_a_client_that_was_given_one_node_goes_on_without_it(cluster: TestCluster) -> None:
    with Client(cluster.cluster.grpc_addresses[0], timeout=60) as client:
        stream = client.create_stream("given", "given.>")
        cluster.wait_for_isr("given", cluster.nodes)
        client.publish("given.x", b"1", msg_id="given-1")
        cluster.kill(0)
        try:
            assert stream.name in [each.name for each in client.list_streams()]
            assert len(client.describe_cluster().nodes) == 3
            assert client.fetch("given", 0, read_from="any", max_wait=60.0).values() == [b"1"]
            assert client.publish("given.x", b"2", msg_id="given-2").offset == 1
            assert client.describe_stream("given").high_watermark == 2
            client.delete_stream(stream)
        finally:
            cluster.restart(0)


def test_with_every_node_gone_calls_end_in_time(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as patient:
        patient.create_stream("frozen", "frozen.>")
        patient.publish("frozen.x", b"1", msg_id="frozen-1")
    with Client(cluster.servers, timeout=1.0) as client:
        for node in cluster.nodes:
            cluster.freeze(node)
        try:
            for call in (  # Which would wait for as long as the nodes are frozen.
                client.list_streams,
                lambda: client.fetch("frozen", 0),
                lambda: client.publish("frozen.x", b"2"),
            ):
                with pytest.raises(JetstreamError):
                    call()
        finally:
            for node in cluster.nodes:
                cluster.thaw(node)
    with (
        Client(cluster.servers, timeout=60) as client,
        client.consume("frozen", patience=60) as consumer,
    ):
        assert next(consumer).value == b"1"


@on_loop
async def test_a_killed_leader_of_the_cursors_loses_no_acknowledged_commit_and_none_goes_back(
    cluster: TestCluster,
) -> None:
    async with AsyncClient(cluster.servers, timeout=60) as client:
        await client.create_stream("positions", "positions.>")
        committed: dict[str, int] = {}
        ended = asyncio.Event()

        async def commit(name: str) -> None:
            async with client.consume("positions", cursor=name, auto_commit=False) as consumer:
                offset = 0
                while not ended.is_set():
                    offset += 1
                    await consumer.commit(offset)
                    committed[name] = offset

        async def look() -> None:
            while not ended.is_set():
                before = dict(committed)
                listed = await client.list_cursors(stream="positions")
                found = {each.name: each.offset for each in listed}
                assert all(found[name] >= offset for name, offset in before.items())

        names = [f"reader-{number}" for number in range(20)]
        tasks = [asyncio.ensure_future(each) for each in (*map(commit, names), look())]
        await until(lambda: len(committed) == len(names) and min(committed.values()) > 20)
        leader = (await client.describe_stream("__cursors")).leader
        await asyncio.to_thread(cluster.kill, leader)
        before = dict(committed)
        await until(lambda: all(committed[name] > before[name] + 20 for name in names))
        ended.set()
        await asyncio.gather(*tasks)
        listed = await client.list_cursors(stream="positions")
        found = {each.name: each.offset for each in listed}
        assert found == committed
        log = await client.describe_stream("__cursors")
        assert (log.leader != leader, log.min_insync_replicas) == (True, 2)
        await asyncio.to_thread(cluster.restart, leader)
        await client.delete_stream("positions")


@on_loop
async def test_members_and_coordinator_that_are_killed_and_frozen_cost_no_record(
    cluster: TestCluster, tmp_path: Path
) -> None:
    workers = GroupWorkers(cluster.servers, tmp_path, "jobs", "workers")
    try:
        async with AsyncClient(cluster.servers, timeout=60) as client:
            streams = [
                await client.create_stream(f"jobs-{number}", "jobs.>", group="jobs")
                for number in range(4)
            ]
            published: set[str] = set()

            async def publish(count: int) -> None:
                for _ in range(count):
                    value = str(len(published))
                    await client.publish("jobs.x", value, acks="any", timeout=60, msg_id=value)
                    published.add(value)

            async def publish_until(condition: Callable[[], bool]) -> None:
                """Publish until it arrives: a late member gets no message that was published before
                it joined."""
                async with asyncio.timeout(100):
                    while not condition():
                        await publish(5)

            furthest: dict[str, int] = {}

            async def look() -> None:
                """Nobody's commit, late or of who was given up, takes a position back."""
                while True:
                    for cursor in await client.list_cursors("workers"):
                        assert cursor.offset >= furthest.get(cursor.stream, 0), cursor
                        furthest[cursor.stream] = cursor.offset
                    await asyncio.sleep(0.1)

            looking = asyncio.ensure_future(look())
            for _ in range(3):
                workers.start()
            await publish_until(
                lambda: all(len(workers.handled(number)) > 10 for number in range(3))
            )
            workers.processes[0].kill()
            os.kill(workers.processes[1].pid, signal.SIGSTOP)
            coordinator = (await client.describe_stream("__cursors")).leader
            await asyncio.to_thread(cluster.kill, coordinator)
            workers.start()
            await publish(80)
            await until(lambda: workers.all_handled() == published)
            before = len(workers.handled(1))
            os.kill(workers.processes[1].pid, signal.SIGCONT)
            await publish(20)
            await until(lambda: workers.all_handled() == published)
            # Who was frozen is a member again.
            await publish_until(
                lambda: (
                    len(workers.handled(1)) > before + 10
                    and all(workers.handled(number) for number in (2, 3))
                )
            )
            await until(lambda: workers.all_handled() == published)

            async def undone() -> int:
                """Records that are not done when all members have been interrupted."""
                for number in workers.alive():
                    workers.signal(number, signal.SIGINT)
                # Each may wait for two answers that do not come.
                await until(lambda: workers.alive() == [])
                return sum(each.lag or 0 for each in await client.describe_cursors("workers"))

            # What each was at when it was interrupted was not done. A member that stands still at
            # the end may have lost its session, but not each time.
            for _ in range(5):
                if await undone() <= 3:
                    break
                for _ in range(3):
                    workers.start()
                await publish_until(lambda: all(map(workers.handled, workers.alive())))
                await until(lambda: workers.all_handled() == published)
            else:
                raise AssertionError("members that are interrupted do not commit")
            assert not looking.done()
            looking.cancel()
            await asyncio.to_thread(cluster.restart, coordinator)
            for stream in streams:
                await client.delete_stream(stream)
    finally:
        workers.end()
