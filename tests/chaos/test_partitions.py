"""The cases of partitions.py that differ most, once each; the command runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fault_cluster import FaultCluster, running_fault_cluster

from .partitions import CASES, run

CHOSEN = (
    "leader deaf",
    "leader cut off, metadata leader too",
    "leader cut from metadata",
    "leader cut from followers, not from metadata",
    "leader frozen, metadata leader too",
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with running_fault_cluster(tmp_path_factory.mktemp("partitions") / "cluster") as running:
        yield running


@pytest.mark.parametrize("name", CHOSEN)
def test_during_a_partition_publishers_are_served_and_nothing_acknowledged_is_lost(
    faulty: FaultCluster, name: str
) -> None:
    (case,) = (case for case in CASES if case.name == name)
    gap = run(faulty, case, CHOSEN.index(name))
    print(f"{name}: {gap:.2f} s without acks")
