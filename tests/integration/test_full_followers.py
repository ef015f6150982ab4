"""Followers whose disk is full to the last byte: publishers do not wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from examples.cluster.local import node_name
from tests.support import small_disk
from tests.support.cluster import TestCluster
from tests.support.hasty_server import PatientCluster
from tests.support.load import Load
from tests.support.small_disk import SmallDisk

FULL = 2
DISK_BYTES = 64 << 20
RESERVE_BYTES = 8 << 20


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[TestCluster, SmallDisk]]:
    if reason := small_disk.missing():
        pytest.skip(reason)
    cluster = PatientCluster(tmp_path / "nodes")
    config = {**cluster.cluster.config, "log": {"disk_reserve_bytes": RESERVE_BYTES}}
    cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    with closing(SmallDisk(cluster.cluster.directory / node_name(FULL), DISK_BYTES)) as disk:
        try:
            cluster.start()
            yield cluster, disk
        finally:
            cluster.close()


def test_a_follower_without_room_leaves_at_once_and_joins_when_there_is_room(
    full: tuple[TestCluster, SmallDisk],
) -> None:
    running, disk = full
    for number in range(3):
        running.api(0).create(f"orders-{number}", f"orders-{number}")
    name = next(
        name
        for number in range(3)
        if running.settled(name := f"orders-{number}").stream.leader != FULL
    )
    load = Load(running.nats, name).start()
    load.wait_for_acks(300)
    running.wait_for_isr(name, running.nodes)
    disk.fill()
    load.wait_for_acks(300)  # Else it would be waited for, for an hour.
    running.wait_for_isr(name, [0, 1])
    load.wait_for_acks(300)
    disk.empty()
    running.wait_for_isr(name, running.nodes)
    load.wait_for_acks(300)
    running.check_everywhere(name, load.stop())
