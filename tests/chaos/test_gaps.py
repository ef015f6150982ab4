"""The stream's leader and the metadata leader die as one: another serves, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.gaps import fail
from tests.support.cluster import running_cluster
from tests.support.load import Load


def test_a_leader_that_dies_as_metadata_leader_is_replaced_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        cluster.api(0).create("orders", "orders")
        load = Load(cluster.nats, "orders").start()
        load.wait_for_acks(200)
        print(f"gap {fail(cluster, load, 'kill+controller'):.2f} s")
        cluster.wait_for_isr("orders", cluster.nodes)
        load.wait_for_acks(200)
        cluster.check_everywhere("orders", load.stop())
