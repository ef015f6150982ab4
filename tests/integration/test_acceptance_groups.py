"""Members of a queue group that cannot store leave the messages to those that can, and return."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.support.api import RawNats, raw_nats
from tests.support.cluster import TestCluster, running_cluster

MESSAGES = 60
"""By chance all of one member's: 2⁻⁵⁹."""
NOBODY = "NATS/1.0 503"
"""NATS's own answer where nobody has subscribed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Whole before and after each test, which uses groups of its own."""
    with running_cluster(tmp_path_factory.mktemp("groups") / "nodes") as running:
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


def test_a_group_without_any_member_that_can_commit_lets_nats_say_that_nobody_is_there(
    cluster: TestCluster,
) -> None:
    for name in ("wary", "warier"):
        cluster.api(0).create(name, "careful", group="strict", min_insync_replicas=3)
    victim = cluster.nodes[-1]
    left = [node for node in cluster.nodes if node != victim]
    assert '"seq"' in answer(cluster, "careful")
    cluster.kill(victim)
    # Before that: a nack, or none from a leader that was killed with the message in hand.
    cluster.wait_for("both have left", lambda: NOBODY in answer(cluster, "careful"))
    ends = {name: cluster.describe(name, left).log_end_offset for name in ("wary", "warier")}
    begun = time.monotonic()
    for _ in range(10):
        assert NOBODY in answer(cluster, "careful")
    assert time.monotonic() - begun < 10.0
    # Told at once, and told the truth: nothing was stored.
    for name, end in ends.items():
        assert cluster.describe(name, left).log_end_offset == end
    cluster.restart(victim)
    cluster.wait_for("they are back", lambda: '"seq"' in answer(cluster, "careful"))


def answer(cluster: TestCluster, subject: str) -> str:
    """What a publisher who asks for an ack is answered; "" for nothing."""
    with raw_nats(cluster.nats) as publisher:
        publisher.subscribe("_INBOX.mine")
        publisher.publish(subject, b"value", "_INBOX.mine")
        try:
            return publisher.message(5.0)[1].decode()
        except TimeoutError:
            return ""
