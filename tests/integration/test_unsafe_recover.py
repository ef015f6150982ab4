"""Two of three nodes are gone for good: the third goes on, and those that come back are refused."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from examples.cluster.local import node_name
from jetstream_client import Client
from jetstream_client.cli.exits import Exit
from tests.support import command
from tests.support.cluster import TestCluster, running_cluster
from tests.support.fork_server import fork_server
from tests.support.stages import cluster_stage

cluster = cluster_stage(scope="function")


def name_voters(cluster: TestCluster, voters: list[int]) -> None:
    """In the file, which is the same for all nodes."""
    file = cluster.cluster.config_file
    config = yaml.safe_load(file.read_text())
    config["voters"] = voters
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def folder(cluster: TestCluster, node: int) -> Path:
    return cluster.cluster.directory / node_name(node)


def unsafe_recover(cluster: TestCluster, node: int, *options: str, code: int = 0) -> str:
    start = [
        *(sys.executable, "-m", "jetstream_server", "unsafe-recover"),
        *("--config", str(cluster.cluster.config_file), "--node-id", str(node)),
        *("--data", str(folder(cluster, node))),
        *options,
    ]
    done = fork_server.run(start)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


def refused_start(cluster: TestCluster, node: int) -> str:
    """Start a node that is to stop by itself; why it did."""
    before = len(cluster.log(node))
    cluster.cluster.start_node(node)
    name = node_name(node)
    cluster.wait_for(f"{name} stops", lambda: name not in cluster.cluster.pids())
    return cluster.log(node)[before:]


def test_a_cluster_that_lost_two_of_three_nodes_goes_on_with_the_third(
    cluster: TestCluster,
) -> None:
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("orders", "orders")
        for number in range(50):
            client.publish("orders", b"%d" % number, msg_id=f"m{number}")
        client.commit_cursor("billing", "orders", 7)
        cluster.wait_for_isr("__cursors", cluster.nodes)
        (left, *lost) = [node for node in cluster.nodes if node != 0] + [0]
        for node in cluster.nodes:
            cluster.wait_for(
                f"node {node} has it",
                lambda node=node: len(cluster.api(node).values_upto("orders", 50)) == 50,  # type: ignore[misc]
            )
    # What only the lost nodes agree on, and what they go on to store.
    cluster.kill(left)
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("unknown", "unknown", replicas=1)
        cluster.wait_for_isr("orders", lost)
        for number in range(50, 60):
            client.publish("orders", b"%d" % number, msg_id=f"m{number}")
    for node in lost:
        cluster.kill(node)

    assert "`voters`" in unsafe_recover(cluster, left, "--yes", code=1)
    name_voters(cluster, [left, lost[0]])
    assert "a majority" in unsafe_recover(cluster, left, "--yes", code=1)
    name_voters(cluster, [left])
    plan = unsafe_recover(cluster, left, "--dry-run")
    assert f"lost for good           {', '.join(map(str, sorted(lost)))}" in plan
    assert "streams in it           2" in plan
    assert "no terminal" in unsafe_recover(cluster, left, code=2)
    before = json.loads((folder(cluster, left) / "metadata" / "group.json").read_text())
    assert before["voters"] == [0, 1, 2]
    assert "recovered" in unsafe_recover(cluster, left, "--yes")

    cluster.cluster.start_node(left)
    cluster.cluster.wait_for_nodes(left)
    address = cluster.cluster.grpc_addresses[left]
    assert "in use by another" in unsafe_recover(cluster, left, "--yes", code=1)
    with Client(address, timeout=60) as client:
        assert [stream.name for stream in client.list_streams()] == ["orders"]
        cluster.wait_for("it leads", lambda: client.describe_stream("orders").leader == left)
        client.alter_stream("orders", min_insync_replicas=1)
        assert cluster.api(left).values_upto("orders", 50) == [b"%d" % n for n in range(50)]
        client.publish("orders", b"after", msg_id="after")
        after = client.describe_stream("orders")
        assert (after.high_watermark, after.leader_epoch > 1000) == (51, True)
        cluster.jetstream("stream", "alter", "__cursors", "--min-insync-replicas", "1")
        assert client.describe_cursor("billing", "orders").offset == 7
        client.commit_cursor("billing", "orders", 8)
        assert client.create_stream("new", "new", replicas=1).id > 1_000_000

        # With the old file, in which they are voters, and with the new one.
        name_voters(cluster, [])
        assert "recovered without this node" in refused_start(cluster, lost[0])
        name_voters(cluster, [left])
        assert "the voters [0, 1, 2]" in refused_start(cluster, lost[0])
        assert client.describe_cluster().controller == left
        assert cluster.api(left).values_upto("orders", 51)[-1] == b"after"

        # With empty folders they follow, and copy what there is.
        for node in lost:
            shutil.move(folder(cluster, node), folder(cluster, node).with_suffix(".old"))
            cluster.cluster.start_node(node)
        cluster.cluster.wait_for_nodes(*lost)
        cluster.wait_for(
            "all are in sync",
            lambda: sorted(client.describe_stream("orders").isr) == cluster.nodes,
        )
        for node in lost:
            assert cluster.api(node).values_upto("orders", 51)[-1] == b"after"


def test_a_stream_of_which_only_an_observer_is_left_goes_on_as_the_plan_says(
    cluster: TestCluster,
) -> None:
    left, lost = 2, [0, 1]
    with Client(cluster.servers, timeout=60) as client:
        cluster.wait_for(
            "streams can have observers",
            lambda: bool(client.create_stream("any", "any", replicas=1, observers=1)),
        )
        client.delete_stream("any")
        client.create_stream("orders", "orders.>", replicas=2)
        client.reassign_stream("orders", lost, observers=[left])
        cluster.wait_for(
            "they hold it", lambda: client.describe_stream("orders").replicas == tuple(lost)
        )
        for number in range(50):
            client.publish("orders.x", b"%d" % number, msg_id=f"m{number}")
        cluster.wait_for(
            "the observer has it", lambda: len(cluster.api(left).values_upto("orders", 50)) == 50
        )
    for node in cluster.nodes:
        cluster.kill(node)
    name_voters(cluster, [left])
    plan = unsafe_recover(cluster, left, "--yes").splitlines()
    assert "  orders@orders.> (node 2)" in plan
    commands = [shlex.split(line)[1:] for line in plan if line.startswith("    jetstream ")]
    cluster.cluster.start_node(left)
    cluster.cluster.wait_for_nodes(left)
    server = cluster.cluster.grpc_addresses[left]
    for words in commands:
        done = command.jetstream("--server", server, *words, "--yes")
        # The first of them asks for what begins once the next one has made a leader.
        is_early = words[1] == "reassign"
        assert done.returncode == (Exit.UNAVAILABLE if is_early else Exit.OK), done
        assert ("orders@orders.> has no leader" in done.stderr) == is_early
    with Client(server, timeout=60) as client:
        assert client.describe_stream("orders").leader == left
        client.alter_stream("orders", min_insync_replicas=1)
        client.publish("orders.x", b"after", msg_id="after")
        wanted = [*(b"%d" % number for number in range(50)), b"after"]
        assert cluster.api(left).values_upto("orders", 51) == wanted


def test_old_voters_that_come_back_while_the_recovered_node_is_away_stop_once_it_is_there(
    cluster: TestCluster,
) -> None:
    """They are a majority of the old group, and nobody tells them otherwise at first."""
    cluster.api(0).create("orders", "orders")
    left, lost = 2, [0, 1]
    cluster.wait_for(
        "the node that is left knows it", lambda: bool(cluster.api(left).known("orders"))
    )
    for node in cluster.nodes:
        cluster.kill(node)
    name_voters(cluster, [left])
    unsafe_recover(cluster, left, "--yes")
    name_voters(cluster, [])
    for node in lost:
        cluster.cluster.start_node(node)
    cluster.cluster.wait_for_nodes(*lost)
    name_voters(cluster, [left])
    cluster.cluster.start_node(left)
    cluster.cluster.wait_for_nodes(left)
    for node in lost:
        name = node_name(node)
        cluster.wait_for(f"{name} stops", lambda name=name: name not in cluster.cluster.pids())  # type: ignore[misc]
        assert "recovered without this node" in cluster.log(node)
    cluster.wait_for(
        "the recovered node leads",
        lambda: cluster.api(left).describe("orders").stream.leader == left,
    )


def test_a_node_that_was_to_stay_and_was_overlooked_keeps_what_it_holds(tmp_path: Path) -> None:
    """It is no voter. Whoever refuses it says what it lacks, and that can be done later."""
    left, overlooked = 2, 3
    with running_cluster(tmp_path / "nodes", 4) as cluster:
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("orders", "orders", replicas=1)
            client.reassign_stream("orders", (overlooked,))
            cluster.wait_for(
                "it leads", lambda: client.describe_stream("orders").leader == overlooked
            )
            client.publish("orders", b"1", msg_id="1")
        for node in cluster.nodes:
            cluster.kill(node)
        name_voters(cluster, [left])
        unsafe_recover(cluster, left, "--yes")
        assert "was recovered already" in unsafe_recover(cluster, left, "--yes", code=1)
        cluster.restart(left)
        assert "`jetstream-server unsafe-recover`" in refused_start(cluster, overlooked)
        name_voters(cluster, [])
        refused = refused_start(cluster, overlooked)
        assert "recovered without this node" in refused
        assert "run `jetstream-server unsafe-recover`" in refused
        name_voters(cluster, [left])
        assert "not to stay" in unsafe_recover(cluster, 0, "--yes", code=1)
        unsafe_recover(cluster, overlooked, "--yes")
        cluster.restart(overlooked)
        with Client(cluster.cluster.grpc_addresses[left], timeout=60) as client:
            assert [message.value for message in client.fetch("orders")] == [b"1"]


def test_a_node_that_knows_more_than_the_voter_that_is_left_takes_over_its_metadata(
    tmp_path: Path,
) -> None:
    """It had acted on it: it leads a stream in a later epoch, and one that the voter lacks."""
    left, follower, lost = 2, 3, (0, 1)
    with running_cluster(tmp_path / "nodes", 4) as cluster:
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("shared", "shared", replicas=2, min_insync_replicas=1)
            client.reassign_stream("shared", (left, follower))
            cluster.wait_for_isr("shared", [left, follower])
            for number in range(20):
                client.publish("shared", b"%d" % number, msg_id=f"m{number}")
            cluster.wait_for_isr("shared", [left, follower])
            leader = client.describe_cluster().controller
            cluster.kill(left)
            if leader != left:
                cluster.kill(leader)
                cluster.restart(leader)
            # The next term has begun, and the voter that is left does not know.
            cluster.wait_for(
                "it leads", lambda: client.describe_stream("shared").leader == follower
            )
            unknown = client.create_stream("unknown", "unknown", replicas=1).id
            client.reassign_stream("unknown", (follower,))
            cluster.wait_for(
                "it holds it", lambda: client.describe_stream("unknown").leader == follower
            )
            client.publish("unknown", b"1", msg_id="1")
            client.publish("shared", b"more", msg_id="more")
            epoch = client.describe_stream("shared").leader_epoch
        for node in (*lost, follower):
            cluster.kill(node)
        name_voters(cluster, [left])
        plan = unsafe_recover(cluster, left, "--yes")
        assert "it takes over theirs" not in plan
        assert f"nodes that do not vote are taken to stay: {follower}. " in plan
        plan = unsafe_recover(cluster, follower, "--yes")
        assert "it takes over theirs" in plan
        assert "taken to stay" not in plan
        cluster.restart(left, follower)
        server = cluster.cluster.grpc_addresses[follower]
        with Client(server, timeout=60) as client:
            cluster.wait_for_isr("shared", [left, follower])
            assert {stream.name for stream in client.list_streams()} == {"shared"}
            client.publish("shared", b"after", msg_id="after")
            described = client.describe_stream("shared")
            assert described.leader_epoch > epoch
            end = described.high_watermark
            for node in (left, follower):
                cluster.wait_for(
                    f"node {node} has it",
                    lambda node=node: len(cluster.api(node).values_upto("shared", end)) == end,  # type: ignore[misc]
                )
            assert cluster.segments(left, described.id) == cluster.segments(follower, described.id)
            created = client.create_stream("unknown", "unknown", replicas=1)
            assert created.id > unknown
        quarantine = folder(cluster, follower) / "quarantine"
        assert {path.name.split(".")[0] for path in quarantine.iterdir()} == {str(unknown)}


def test_a_sole_survivor_that_may_have_forgotten_a_vote_goes_on_once_it_is_vouched_for(
    cluster: TestCluster,
) -> None:
    """A learner waits for others to take it back, and there are none."""
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("orders", "orders")
        for number in range(50):
            client.publish("orders", b"%d" % number, msg_id=f"m{number}")
    left, lost = 2, (0, 1)
    cluster.wait_for(
        "it has everything", lambda: len(cluster.api(left).values_upto("orders", 50)) == 50
    )
    for node in cluster.nodes:
        cluster.kill(node)
    (folder(cluster, left) / "metadata" / "synced").unlink()
    cluster.cluster.start_node(left)
    cluster.wait_for("it is a learner", lambda: "metadata_vote_withheld" in cluster.log(left))
    cluster.kill(left)
    name_voters(cluster, [left])
    unsafe_recover(cluster, left, "--yes")
    before = len(cluster.log(left))
    cluster.cluster.start_node(left)
    cluster.wait_for(
        "it says why it waits", lambda: "metadata_vote_withheld" in cluster.log(left)[before:]
    )
    assert "--accept-voters" in cluster.log(left)[before:]
    cluster.kill(left)
    server = cluster.cluster.server
    cluster.cluster.server = [*server, "--accept-voters"]
    cluster.cluster.start_node(left)
    cluster.cluster.wait_for_nodes(left)
    cluster.cluster.server = server
    cluster.restart(left)
    with Client(cluster.cluster.grpc_addresses[left], timeout=60) as client:
        client.alter_stream("orders", min_insync_replicas=1)
        assert cluster.api(left).values_upto("orders", 50) == [b"%d" % n for n in range(50)]
        client.publish("orders", b"after", msg_id="after")
        # Those that were lost are refused all the same.
        name_voters(cluster, [])
        assert "recovered without this node" in refused_start(cluster, lost[0])


def test_activity_tells_of_the_recovery_although_its_log_knows_more_than_the_metadata(
    cluster: TestCluster,
) -> None:
    left, lost = 2, [0, 1]
    metadata = folder(cluster, left) / "metadata"
    with Client(cluster.servers, timeout=60) as client:
        cluster.wait_for(
            "the feature level is raised",
            lambda: "feature_level_raised" in "".join(map(cluster.log, cluster.nodes)),
        )
        client.record_activity()
        cluster.wait_for_isr("__activity", cluster.nodes)
        cluster.kill(left)
        shutil.copytree(metadata, metadata.with_suffix(".before"))
        cluster.restart(left)
        cluster.wait_for_isr("__activity", cluster.nodes)
        client.create_stream("late", "late", replicas=1)
        cluster.wait_for("it is told there", lambda: is_told(cluster, left, "late@late"))
    for node in cluster.nodes:
        cluster.kill(node)
    # Only the lost voters know what came last.
    shutil.rmtree(metadata)
    shutil.move(metadata.with_suffix(".before"), metadata)
    name_voters(cluster, [left])
    unsafe_recover(cluster, left, "--yes")
    cluster.cluster.start_node(left)
    cluster.cluster.wait_for_nodes(left)
    for node in lost:
        shutil.move(folder(cluster, node), folder(cluster, node).with_suffix(".old"))
        cluster.cluster.start_node(node)
    cluster.cluster.wait_for_nodes(*lost)
    with Client(cluster.cluster.grpc_addresses[left], timeout=60) as client:
        client.create_stream("after", "after", replicas=1)
    cluster.wait_for("it is told", lambda: is_told(cluster, left, "after@after"))
    events = told(cluster, left)
    last = 0
    for event in events:
        assert event.get("first", event["sequence"]) == last + 1
        last = event["sequence"]
    (recovery,) = [event for event in events if "recoveries" in event.get("changes", ())]
    before = events[events.index(recovery) - 1]
    assert (before["type"], before["last"]) == ("events_lost", recovery["sequence"] - 1)


def told(cluster: TestCluster, node: int) -> list[dict[str, Any]]:
    """What the node's replica of the stream of activity says."""
    values = cluster.api(node).values_upto("__activity", 100_000)
    return [json.loads(value or b"") for value in values]


def is_told(cluster: TestCluster, node: int, stream: str) -> bool:
    return any(event.get("stream") == stream for event in told(cluster, node))
