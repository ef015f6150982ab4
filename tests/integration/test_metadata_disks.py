"""Voters of a real cluster whose metadata is lost or damaged: nothing acknowledged is lost.

The tests share a cluster; each has a stream of its own, and node 2 is down at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster.local import node_name
from tests.support.cluster import TestCluster, running_cluster
from tests.support.load import Load

ACKS = 300
PATIENCE_SECONDS = 4.0
"""Several elections take less."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        yield running


@pytest.fixture
def restarted(shared: TestCluster) -> TestCluster:
    shared.restart(*shared.nodes)
    return shared


def folder(cluster: TestCluster, node: int) -> Path:
    return cluster.cluster.directory / node_name(node)


def said_since(cluster: TestCluster, node: int, event: str, since: int) -> list[str]:
    """The node's log lines of that event, from that position in the log on."""
    return [line for line in cluster.log(node)[since:].splitlines() if f'"{event}"' in line]


def flip_last_record(journal: Path) -> None:
    data = bytearray(journal.read_bytes())
    data[-3] ^= 0x10
    journal.write_bytes(data)


def acknowledged_without_node_2(cluster: TestCluster, name: str) -> Load:
    """A stream that only nodes 0 and 1 have ever heard of, and what it has acknowledged."""
    marks = {node: len(cluster.log(node)) for node in (0, 1)}
    cluster.kill(2)
    cluster.wait_for(
        "node 2 is fenced",
        lambda: any(said_since(cluster, node, "node_fenced", marks[node]) for node in (0, 1)),
    )
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(ACKS)
    load.stop()
    cluster.wait_for(
        "they have it",
        lambda: sorted(cluster.describe(name, [0, 1]).stream.isr) == [0, 1],
    )
    return load


def without_node_0_nobody_leads(cluster: TestCluster) -> None:
    """Nodes 1 and 2 are started, and do nothing that node 0 would have to know of."""
    marks = {node: len(cluster.log(node)) for node in (1, 2)}
    for node in (1, 2):
        cluster.cluster.start_node(node)
    cluster.wait_for(
        "node 1 says why it does not vote",
        lambda: bool(said_since(cluster, 1, "metadata_vote_withheld", marks[1])),
    )
    with pytest.raises(AssertionError, match="somebody leads"):
        cluster.wait_for(
            "somebody leads",
            lambda: any(
                '"role": "leader"' in line
                for node in (1, 2)
                for line in said_since(cluster, node, "metadata_leadership", marks[node])
            ),
            PATIENCE_SECONDS,
        )


def everything_is_there_when_node_0_is_back(cluster: TestCluster, name: str, load: Load) -> None:
    mark = len(cluster.log(1))
    cluster.restart(*cluster.nodes)
    cluster.wait_for_isr(name, [0, 1, 2])
    cluster.check_everywhere(name, load.books)
    cluster.wait_for(
        "node 1 votes again",
        lambda: bool(said_since(cluster, 1, "metadata_vote_restored", mark)),
    )
    for node in (0, 1, 2):
        assert not list((folder(cluster, node) / "quarantine").iterdir())
    # As a voter it counts: without node 2 there is a majority.
    cluster.kill(2)
    later = f"{name}_later"
    cluster.wait_for("a stream is made", lambda: bool(cluster.api(1).create(later, later)))


@pytest.mark.parametrize("lost", ["metadata", ""], ids=["its metadata folder", "its data folder"])
def test_a_voter_that_lost_its_journal_elects_nobody_who_lacks_a_stream(
    restarted: TestCluster, name: str, lost: str
) -> None:
    load = acknowledged_without_node_2(restarted, name)
    restarted.kill(0)
    restarted.kill(1)
    shutil.rmtree(folder(restarted, 1) / lost)
    without_node_0_nobody_leads(restarted)
    everything_is_there_when_node_0_is_back(restarted, name, load)


def test_a_voter_whose_journal_is_damaged_at_its_end_does_not_start_and_returns_without_it(
    restarted: TestCluster, name: str
) -> None:
    load = acknowledged_without_node_2(restarted, name)
    restarted.kill(0)
    restarted.kill(1)
    metadata = folder(restarted, 1) / "metadata"
    flip_last_record(metadata / "journal")
    mark = len(restarted.log(1))
    restarted.cluster.start_node(1)

    def refuses() -> bool:
        said = restarted.log(1)[mark:]
        return "had been synced" in said and "move the metadata folder" in said

    restarted.wait_for("it refuses, and says what to do", refuses)
    restarted.kill(1)
    metadata.rename(metadata.with_name("metadata-damaged"))
    without_node_0_nobody_leads(restarted)
    everything_is_there_when_node_0_is_back(restarted, name, load)
