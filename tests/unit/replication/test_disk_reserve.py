"""When a node looks at its free space again, and when it tells the metadata group."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import DISK_LEVEL
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.replication.drivers import disk_reserve
from jetstream_server.replication.drivers.disk_reserve import (
    CHECK_SECONDS_MAX,
    CHECK_SECONDS_MIN,
    FASTEST_BYTES_PER_SECOND,
    ROOM_US,
    DiskMark,
    check_space,
    seconds_to_check,
)
from tests.support.loops import on_loop
from tests.unit.metadata.cluster import Cluster

MIB = 1 << 20


@given(st.integers(0, 1 << 40), st.integers(64 * MIB, 1 << 34))
def test_the_fastest_disk_uses_at_most_half_of_the_reserve_between_two_checks(
    free: int, reserve: int
) -> None:
    seconds = seconds_to_check(free, reserve)
    assert CHECK_SECONDS_MIN <= seconds <= CHECK_SECONDS_MAX
    if free >= reserve:
        assert free - seconds * FASTEST_BYTES_PER_SECOND >= reserve / 2


def test_it_looks_once_a_second_where_nothing_is_appended_or_much_is_free(tmp_path: Path) -> None:
    assert seconds_to_check(100 << 30, 128 * MIB) == 1.0
    assert seconds_to_check(0, 0) == CHECK_SECONDS_MIN
    free = shutil.disk_usage(tmp_path).free
    full, seconds = check_space(tmp_path, 2 * free)
    assert "below the reserve of" in full
    assert seconds == 1.0
    assert check_space(tmp_path, 0) == ("", 1.0)
    unknown, seconds = check_space(tmp_path / "missing", 0)
    assert "is unknown" in unknown
    assert seconds == 1.0


class Marked:
    """Node 0, whose disk is looked at once a second. refusals: of its next proposals."""

    def __init__(self, level: FeatureLevel = DISK_LEVEL) -> None:
        self.cluster = Cluster.at_level(1, level)
        self.now_us, self.refusals, self.proposed = 0, 0, 0
        self.metadata = SimpleNamespace(
            registry=self.cluster.registry, incarnation=self.run, propose=self._propose
        )
        self.mark = DiskMark(
            cast(RaftMetadataLog, self.metadata),
            0,
            monotonic_clock=lambda: MonotonicUs(self.now_us),
        )

    @property
    def run(self) -> int:
        return self.cluster.registry.nodes[NodeId(0)].incarnation

    @property
    def is_marked(self) -> bool:
        return self.cluster.registry.nodes[NodeId(0)].disk_full

    async def _propose(self, command: Command) -> dict[str, Any]:
        self.proposed += 1
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("no leader")
        return self.cluster.do(command)

    async def look(self, *, full: bool, seconds: int = 1) -> bool:
        for _ in range(seconds):
            self.now_us += 1_000_000
            self.mark.look(full)
            for _ in range(3):
                await asyncio.sleep(0)
        return self.is_marked


@on_loop
async def test_a_full_disk_is_told_at_once_and_room_after_a_minute() -> None:
    node, minute = Marked(), ROOM_US // 1_000_000
    assert not await node.look(full=False, seconds=2 * minute)
    assert await node.look(full=True, seconds=9)
    assert await node.look(full=False, seconds=minute - 1)
    assert not await node.look(full=False)
    assert node.proposed == 2


@on_loop
async def test_a_disk_that_fills_again_and_again_is_told_once() -> None:
    node = Marked()
    for _ in range(100):
        assert await node.look(full=True)
        assert await node.look(full=False, seconds=9)
    assert node.proposed == 1


@on_loop
async def test_a_restarted_node_looks_for_a_minute_before_it_takes_its_mark_away() -> None:
    node, minute = Marked(), ROOM_US // 1_000_000
    await node.look(full=True)
    node.cluster.register(0, feature_level_max=DISK_LEVEL)
    assert await node.look(full=False, seconds=2 * minute), "it has not registered yet"
    node.metadata.incarnation = node.run
    assert not await node.look(full=False)


@on_loop
async def test_what_was_not_heard_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_reserve, "RETRY_SECONDS", 0)
    node = Marked()
    node.refusals = 3
    assert await node.look(full=True, seconds=10)
    assert node.proposed == 4


@on_loop
async def test_nothing_is_told_while_some_node_has_older_software() -> None:
    node = Marked(FeatureLevel(DISK_LEVEL - 1))
    assert not await node.look(full=True, seconds=3)
    assert node.proposed == 0
