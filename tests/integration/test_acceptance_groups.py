"""Members of a queue group that cannot store leave the messages to others, and return later. A
frozen one cannot leave. It delays publishers by key, but does not change the order."""

from __future__ import annotations

import json

from jetstream_client import Client
from jetstream_client.publishing.partitioner import partition_of
from tests.support.api import raw_nats
from tests.support.cluster import TestCluster

MESSAGES = 60
"""By chance all of one member's: 2⁻⁵⁹."""
NOBODY = "NATS/1.0 503"
"""NATS's own answer where nobody has subscribed."""


def wait_until_stored_by(cluster: TestCluster, *streams: str) -> None:
    """Until these streams acknowledge every one of many messages. A member whose node stands still
    is not heard for a moment, as one that is killed."""

    def are_theirs() -> bool:
        answers = []
        with raw_nats(cluster.nats) as publisher:
            publisher.subscribe("_INBOX.mine")
            for index in range(MESSAGES):
                publisher.publish("shared", b"%d" % index, "_INBOX.mine")
            for _ in range(MESSAGES):
                text = publisher.message(5.0)[1]
                answers.append({} if text.startswith(NOBODY.encode()) else json.loads(text))
        assert all("seq" in answer for answer in answers), answers
        return {answer["stream"] for answer in answers} == set(streams)

    cluster.wait_for(f"messages go to {streams}", are_theirs)


def test_below_its_minimum_a_member_leaves_the_group_until_it_can_commit_again(
    cluster: TestCluster,
) -> None:
    api = cluster.api(0)
    strict = api.create("strict", "shared", group="both", min_insync_replicas=3).stream
    lenient = api.create("lenient", "shared", group="both", min_insync_replicas=1).stream
    leaders = {strict.leader, lenient.leader}
    victim = next(node for node in cluster.nodes if node not in leaders)
    wait_until_stored_by(cluster, "strict", "lenient")
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
    wait_until_stored_by(cluster, "lenient")
    cluster.restart(victim)
    cluster.wait_for(
        "strict's leader is back in the group",
        lambda: any("group_joined_again" in cluster.log(node) for node in cluster.nodes),
    )
    wait_until_stored_by(cluster, "strict", "lenient")


def test_a_group_without_any_member_that_can_commit_lets_nats_say_that_nobody_is_there(
    cluster: TestCluster,
) -> None:
    for name in ("wary", "warier"):
        cluster.api(0).create(name, "careful", group="strict", min_insync_replicas=3)
    victim = cluster.nodes[-1]
    cluster.wait_for("they store", lambda: '"seq"' in answer(cluster, "careful"))
    cluster.kill(victim)
    # Before that: a nack, or none from a leader that was killed with the message in hand.
    cluster.wait_for("both have left", lambda: NOBODY in answer(cluster, "careful"))
    ends = {name: cluster.settled(name).log_end_offset for name in ("wary", "warier")}
    for _ in range(10):  # Told by NATS itself, at once.
        assert NOBODY in answer(cluster, "careful", 60.0)
    # And told the truth: nothing was stored.
    for name, end in ends.items():
        assert cluster.settled(name).log_end_offset == end
    cluster.restart(victim)
    cluster.wait_for("they are back", lambda: '"seq"' in answer(cluster, "careful"))


def answer(cluster: TestCluster, subject: str, seconds: float = 5.0) -> str:
    """The answer to a publisher that asks for an ack; "" if there is none in time."""
    with raw_nats(cluster.nats) as publisher:
        publisher.subscribe("_INBOX.mine")
        publisher.publish(subject, b"value", "_INBOX.mine")
        try:
            return publisher.message(seconds)[1].decode()
        except TimeoutError:
            return ""


def test_a_frozen_leader_costs_those_who_publish_by_key_time_and_no_order(
    cluster: TestCluster,
) -> None:
    keys = [b"key-%d" % number for number in range(8)]
    with Client(cluster.servers, timeout=60) as client:
        client.create_group("cold", "cold.>", streams=3)
        for number in range(3):
            cluster.wait_for_isr(f"cold-{number}", cluster.nodes)
        # A key of each stream, and so one whose messages NATS gives to the frozen process.
        assert {partition_of(key, 3) for key in keys} == {0, 1, 2}
        victim = cluster.settled("cold-0").stream.leader
        with client.publisher("cold.x", max_bytes=256) as publisher:
            publisher.send(b"-1", keys[0]).result(60)
            cluster.freeze(victim)
            try:
                steps = range(200)
                sent = [publisher.send(b"%d" % step, keys[step % 8]) for step in steps]
                plain = [
                    client.publish("cold.y", b"", key=key, msg_id=key.decode(), timeout=60)
                    for key in keys
                ]
                results = [each.result(60) for each in sent]
            finally:
                cluster.thaw(victim)
        places = [f"cold-{partition_of(key, 3)}" for key in keys]
        assert [each.stream for each in results] == [places[step % 8] for step in steps]
        assert [each.stream for each in plain] == places
        for number in range(3):
            cluster.wait_for_isr(f"cold-{number}", cluster.nodes)
        held: dict[bytes | None, list[int]] = {}
        for number in range(3):
            for message in client.fetch(f"cold-{number}"):
                if message.subject == "cold.x":
                    held.setdefault(message.key, []).append(int(message.value or b""))
        # Each once, in order.
        assert held == {
            key: [*([-1] if key == keys[0] else []), *range(place, 200, 8)]
            for place, key in enumerate(keys)
        }
