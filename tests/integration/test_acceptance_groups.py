"""Members of a queue group that cannot store leave the messages to those that can, and return."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import RawNats, raw_nats
from tests.support.cluster import TestCluster, running_cluster

MESSAGES = 60
"""By chance all of one member's: 2⁻⁵⁹."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with running_cluster(tmp_path / "nodes") as running:
        yield running


def stored_by(publisher: RawNats) -> set[str]:
    """The streams that acknowledge, when every message is acknowledged."""
    for index in range(MESSAGES):
        publisher.publish("shared", b"%d" % index, "_INBOX.mine")
    answers = [json.loads(publisher.message()[1]) for _ in range(MESSAGES)]
    assert all("seq" in answer for answer in answers), answers
    return {answer["stream"] for answer in answers}


def test_below_its_minimum_a_member_leaves_the_group_until_it_can_commit_again(
    cluster: TestCluster,
) -> None:
    api = cluster.api(0)
    strict = api.create("strict", "shared", group="both", min_insync_replicas=3).stream
    lenient = api.create("lenient", "shared", group="both", min_insync_replicas=1).stream
    leaders = {strict.leader, lenient.leader}
    victim = next(node for node in cluster.nodes if node not in leaders)
    with raw_nats(cluster.nats) as publisher:
        publisher.subscribe("_INBOX.mine")
        assert stored_by(publisher) == {"strict", "lenient"}
        cluster.kill(victim)
        left = [node for node in cluster.nodes if node != victim]
        cluster.wait_for(
            "strict is below its minimum",
            lambda: len(cluster.describe("strict", left).stream.isr) == 2,
        )
        cluster.wait_for(
            "strict's leader has left the group",
            lambda: any("group_left" in cluster.log(node) for node in left),
        )
        assert stored_by(publisher) == {"lenient"}
        cluster.restart(victim)
        cluster.wait_for(
            "strict's leader is back in the group",
            lambda: any("group_joined_again" in cluster.log(node) for node in cluster.nodes),
        )
        cluster.wait_for(
            "messages go to both again", lambda: stored_by(publisher) == {"strict", "lenient"}
        )
