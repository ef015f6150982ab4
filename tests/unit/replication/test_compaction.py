"""A node compacts its logs in processes of their own, and goes on when one of them fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.types import WallUs
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.metadata.state.commands import AlterStream
from jetstream_server.replication.drivers import compaction as compaction_module
from jetstream_server.replication.drivers import worker_process
from jetstream_server.replication.drivers.compaction import (
    LAG_US_MAX,
    RETRY_US,
    Compaction,
    CompactionStatus,
    status_of,
    urgency,
)
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.compacting import records, table
from tests.support.loops import eventually, on_loop
from tests.support.node import Node

SECONDS = 60.0
"""A process is started for each pass: on a loaded machine that takes its time."""


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "ROUND_SECONDS", 0.005)


Spawn = Callable[[], subprocess.Popen[bytes]]


@asynccontextmanager
async def compacting(
    folder: Path, *, bytes_per_second: int = 1 << 30, spawn: Spawn | None = None
) -> AsyncIterator[Node]:
    """A node whose compaction runs. Its clocks stand still."""
    node = Node(folder / "streams")
    replicas = node.open()
    compaction = Compaction(
        wall_clock=node.clocks.wall,
        monotonic_clock=node.clocks.monotonic,
        bytes_per_second=bytes_per_second,
        spawn=spawn,
    )
    node.begin(Listeners(roles=(compaction,)))
    compaction.start()
    try:
        yield node
    finally:
        await compaction.close()
        replicas.close()


def keyed(node: Node, **config: Any) -> Replica:
    """A compacted stream of three keys, mostly sealed, all flushed."""
    replica = node.create(config={"compact": True, **config})
    replica.log.configure(LogConfig(segment_bytes=2000))
    for number in range(60):
        put(node, replica, b"k%d" % (number % 3), b"%d" % number)
    node.flushes.run()
    return replica


def put(node: Node, replica: Replica, key: bytes, value: bytes | None) -> None:
    replica.append(encode([value], b"s", keys=[key]))


def cleaned_to(replica: Replica) -> int:
    return replica.log.compaction.state.cleaned_to


@on_loop
async def test_what_is_committed_is_compacted_and_the_state_outlives_a_restart(
    tmp_path: Path,
) -> None:
    async with compacting(tmp_path) as node:
        replica = keyed(node)
        await eventually(lambda: cleaned_to(replica) > 40, SECONDS)
        assert table(records(replica.log)) == {b"k0": b"57", b"k1": b"58", b"k2": b"59"}
        assert len(records(replica.log)) < 25
        status = status_of(replica)
        assert status.dirty_bytes == 0
        assert status.state.bytes_after < status.state.bytes_before
        assert status.state.records_removed > 35
        state = replica.log.compaction.state
        node.restart()
        assert node.replica(replica.stream).log.compaction.state == state


@on_loop
async def test_only_streams_that_want_it_are_compacted_also_since_an_alter(tmp_path: Path) -> None:
    async with compacting(tmp_path) as node:
        replica = keyed(node, compact=False)
        other = node.create("other", "other", config={"compact": True})
        other.log.configure(LogConfig(segment_bytes=2000))
        for number in range(60):
            put(node, other, b"k", b"%d" % number)
        node.flushes.run()
        await eventually(lambda: cleaned_to(other) > 40, SECONDS)
        assert len(records(replica.log)) == 60
        node.cluster.do(
            AlterStream(stream_id=replica.stream.id, stream_epoch=0, config={"compact": True})
        )
        node.apply()
        await eventually(lambda: cleaned_to(replica) > 0, SECONDS)


@on_loop
async def test_a_pass_whose_process_is_killed_is_done_again_later(tmp_path: Path) -> None:
    async with compacting(tmp_path, bytes_per_second=1) as node:
        replica = keyed(node)
        expected = records(replica.log)
        worker = await the_worker()
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: worker not in children(), SECONDS)
        await asyncio.sleep(0.1)
        assert children() == [], "it waits before it tries again"
        assert records(replica.log) == expected
        assert not list(tmp_path.rglob("*.tmp"))
        node.clocks.advance(RETRY_US)
        assert await the_worker() != worker


@on_loop
@pytest.mark.parametrize(
    "line",
    [
        '{"step": "Mapped", "end_offset": 20, "keys": 3, "something_newer": 1}',
        '{"step": "SomethingNewer"}',
        "a word from a library",
    ],
)
async def test_a_process_of_another_version_fails_its_pass_and_not_the_node(
    tmp_path: Path, line: str
) -> None:
    """Software is updated under a server that runs; its processes are of the new one."""
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn() -> subprocess.Popen[bytes]:
        code = "import sys, time; sys.stdin.readline(); "
        code += f"print({line!r}, flush=True); time.sleep(60)"
        command = [sys.executable, "-c", code]
        spawned.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return spawned[-1]

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with compacting(tmp_path, spawn=spawn) as node:
        replica = keyed(node)

        def is_tried_again() -> bool:
            node.clocks.advance(RETRY_US)
            return len(spawned) > 1

        await eventually(is_tried_again, SECONDS)
        assert cleaned_to(replica) == 0
    assert failures == []


@on_loop
async def test_a_failed_pass_is_tried_again_in_time_though_the_wall_clock_was_set_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with compacting(tmp_path, bytes_per_second=1) as node:
        keyed(node)
        worker = await the_worker()
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: "compaction_failed" in capsys.readouterr().out, SECONDS)
        node.clocks.wall_us = WallUs(node.clocks.wall_us - LAG_US_MAX)
        node.clocks.advance(RETRY_US)
        assert await the_worker() != worker


@on_loop
async def test_a_pass_took_no_less_time_because_the_wall_clock_was_set_back(
    tmp_path: Path,
) -> None:
    def spawn() -> subprocess.Popen[bytes]:
        process = worker_process.spawn(compaction_module.WORKER)
        process.send_signal(signal.SIGSTOP)
        return process

    async with compacting(tmp_path, spawn=spawn) as node:
        replica = keyed(node)
        worker = await the_worker()
        node.clocks.advance(5_000_000)
        node.clocks.wall_us = WallUs(node.clocks.wall_us - LAG_US_MAX)
        os.kill(worker, signal.SIGCONT)
        await eventually(lambda: cleaned_to(replica) > 40, SECONDS)
        assert replica.log.compaction.state.duration_us == 5_000_000


@on_loop
async def test_a_stop_ends_the_process(tmp_path: Path) -> None:
    async with compacting(tmp_path, bytes_per_second=1) as node:
        keyed(node)
        await the_worker()
    assert children() == []


@on_loop
async def test_a_stream_that_is_deleted_takes_its_pass_along(tmp_path: Path) -> None:
    async with compacting(tmp_path) as node:
        replica = keyed(node)
        await the_worker()
        node.delete(replica)
        other = node.create("other", "other", config={"compact": True})
        other.log.configure(LogConfig(segment_bytes=2000))
        for number in range(60):
            put(node, other, b"k", b"%d" % number)
        node.flushes.run()
        await eventually(lambda: cleaned_to(other) > 40, SECONDS)
        assert not (node.folder / str(replica.stream.id)).exists()


@on_loop
async def test_a_damaged_segment_ends_the_pass_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with compacting(tmp_path) as node:
        replica = node.create(config={"compact": False})
        replica.log.configure(LogConfig(segment_bytes=2000))
        for number in range(60):
            put(node, replica, b"k", b"%d" % number)
        node.flushes.run()
        segment = sorted((node.folder / str(replica.stream.id)).glob("*.log"))[1]
        with segment.open("r+b") as file:
            file.seek(200)
            file.write(b"rot")
        node.cluster.do(
            AlterStream(stream_id=replica.stream.id, stream_epoch=0, config={"compact": True})
        )
        node.apply()
        said = ""

        def has_failed() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return "compaction_failed" in said

        await eventually(has_failed, SECONDS)
        assert segment.name in said
        assert replica.log.offline_reason == ""
        assert cleaned_to(replica) == 0
        assert not list(tmp_path.rglob("*.tmp"))


def children() -> list[int]:
    """Processes that compact for this one."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # Threads end.
            for pid in task.joinpath("children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):  # So do processes.
                    if b"compaction.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(int(pid))
    return found


async def the_worker() -> int:
    await eventually(lambda: bool(children()), SECONDS)
    return children()[0]


def test_a_log_is_compacted_when_half_of_it_is_new_or_after_an_hour_or_a_grace_time() -> None:
    now, grace = WallUs(10 * LAG_US_MAX), 1_000
    recent = CompactionState(ended_at_us=now)

    def wanted(state: CompactionState, clean: int, dirty: int) -> float:
        below = state.tombstones_below(now, grace)
        return urgency(CompactionStatus(state, clean, dirty), now, below)

    assert wanted(recent, 0, 0) == 0
    assert wanted(recent, 51, 49) == 0
    assert wanted(recent, 50, 50) == 0.5
    assert wanted(recent, 10, 90) == 0.9
    old = CompactionState(ended_at_us=WallUs(now - LAG_US_MAX))
    assert 0 < wanted(old, 99, 1) < 0.5
    assert wanted(old, 100, 0) == 0
    graves = CompactionState(ended_at_us=now, tombstones=1, passes=((WallUs(now - grace), 10),))
    assert wanted(graves, 100, 0) > 0
    assert wanted(CompactionState(ended_at_us=now, tombstones=1, passes=((now, 10),)), 100, 0) == 0
