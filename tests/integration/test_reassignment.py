"""Streams move to other nodes while they are published to; a node is emptied and removed."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Literal

import pytest

from examples.cluster.local import node_name
from jetstream_client import (
    Client,
    Consumer,
    InvalidRequestError,
    PreconditionFailedError,
    Stream,
)
from jetstream_client.cli import moves
from jetstream_client.cli.exits import Exit
from jetstream_client.cli.progress import to_copy
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.fork_server import fork_server
from tests.support.load import Load
from tests.support.stages import cluster_stage

cluster = cluster_stage(4)


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        if len(client.describe_cluster().nodes) < 4:  # A test has removed it.
            cluster.restart(3)
            cluster.wait_for("it is there", lambda: len(client.describe_cluster().nodes) == 4)
        yield client


def holds(cluster: TestCluster, node: int, stream_id: int) -> bool:
    folder = cluster.cluster.directory / node_name(node) / "streams" / str(stream_id)
    return folder.exists()


def values_of(cluster: TestCluster, node: int) -> list[bytes | None]:
    return list(cluster.api(node).values_upto("moved", cluster.describe("moved").high_watermark))


def test_a_stream_moves_to_other_nodes_while_it_is_published_to(
    cluster: TestCluster, client: Client
) -> None:
    stream = client.create_stream("moved", "moved", replicas=2)
    old = stream.replicas
    new = tuple(node for node in cluster.nodes if node not in old)
    seen: dict[Literal["leader", "any"], list[int]] = {"leader": [], "any": []}
    consumers = {source: client.consume("moved", read_from=source) for source in seen}
    readers = ThreadPoolExecutor()
    reading = [readers.submit(read, consumers[source], seen[source]) for source in seen]
    load = Load(cluster.nats, "moved").start()
    try:
        load.wait_for_acks(200)
        client.reassign_stream("moved", new)
        cluster.wait_for("it has moved", lambda: client.describe_stream("moved").replicas == new)
        load.wait_for_acks(200)
    finally:
        books = load.stop()
    moved = client.describe_stream("moved")
    assert moved.target_replicas == ()
    cluster.wait_for_isr("moved", list(new))
    cluster.wait_for(
        "the old copies are gone",
        lambda: not any(holds(cluster, node, stream.id) for node in old),
    )
    for node in new:
        cluster.wait_for(
            "it has everything",
            lambda node=node: len(values_of(cluster, node)) >= max(books.acked.values()),  # type: ignore[misc]
        )
        books.check(values_of(cluster, node))
    # Those who waited for records at a node that the stream has left went on elsewhere.
    end = client.describe_stream("moved").high_watermark
    cluster.wait_for(
        "all is read",
        lambda: all(
            each.running() and len(seen[s]) == end for each, s in zip(reading, seen, strict=True)
        ),
    )
    for consumer in consumers.values():
        consumer.close()
    readers.shutdown()
    assert all(offsets == list(range(end)) for offsets in seen.values())


def read(consumer: Consumer, seen: list[int]) -> None:
    seen.extend(message.offset for message in consumer)


def test_one_replica_becomes_three_and_one_again(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream("grown", "grown", replicas=1)
        client.publish("grown", b"1", msg_id="1")
        for replicas in ((0, 1, 2), (3,)):
            names = ",".join(map(str, replicas))
            cluster.jetstream("stream", "reassign", "grown", "--replicas", names, "--yes")
            cluster.wait_for(
                "its leader knows",
                lambda replicas=replicas: client.describe_stream(stream).replicas == replicas,  # type: ignore[misc]
            )
            assert client.describe_stream(stream).replication_factor == len(replicas)
        assert [message.value for message in client.fetch("grown")] == [b"1"]


def decommission(
    cluster: TestCluster, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = command.jetstream("--server", cluster.servers, "node", "decommission", *arguments)
    assert done.returncode == code, done
    return done


def placed(cluster: TestCluster, client: Client, name: str, node: int) -> Stream:
    """A stream whose only replica is on that node."""
    stream = client.create_stream(name, f"{name}.>", replicas=1)
    client.publish(f"{name}.x", b"kept", msg_id="kept")
    client.reassign_stream(stream, [node])
    cluster.wait_for("it is there", lambda: client.describe_stream(name).replicas == (node,))
    return stream


@contextmanager
def frozen(cluster: TestCluster, client: Client, node: int) -> Iterator[None]:
    cluster.freeze(node)
    try:
        cluster.wait_for("it is fenced", lambda: client.describe_cluster().nodes[node].fenced)
        yield
    finally:
        cluster.thaw(node)
        cluster.wait_for("it is back", lambda: not client.describe_cluster().nodes[node].fenced)


def test_a_node_is_not_empty_while_a_move_that_began_earlier_has_not_ended(
    cluster: TestCluster, client: Client
) -> None:
    stays, goes = placed(cluster, client, "stays", 3), placed(cluster, client, "goes", 3)
    with ThreadPoolExecutor() as pool:
        with frozen(cluster, client, 2):
            client.reassign_stream(stays, [2])
            emptied = pool.submit(decommission, cluster, "3", "--yes")
            cluster.wait_for("one has moved", lambda: not holds(cluster, 3, goes.id))
            time.sleep(0.5)
            assert not emptied.done()
        done = emptied.result()
    assert "stays@stays.> is being moved already, to 2\n" in done.stdout
    assert done.stdout.endswith("node 3 is empty; stop it, then: jetstream node remove 3\n")
    assert client.describe_stream("stays").replicas == (2,)
    assert client.fetch("stays").values() == [b"kept"]
    client.drain_node(3, undo=True)


def test_a_move_that_waits_for_a_node_that_is_down_says_so_and_how_to_undo_it(
    cluster: TestCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "UNHEARD_SECONDS", 0.5)
    told, not_heard = threading.Event(), moves._not_heard

    def telling(nodes: Sequence[int]) -> str:
        told.set()
        return not_heard(nodes)

    monkeypatch.setattr(moves, "_not_heard", telling)
    placed(cluster, client, "waits", 1)
    arguments = ("--server", cluster.servers, "stream", "reassign", "waits", "--replicas", "2")
    with ThreadPoolExecutor() as pool, frozen(cluster, client, 2):
        moving = pool.submit(command.jetstream, *arguments, "--yes")
        cluster.wait_for(
            "it moves", lambda: client.describe_stream("waits").target_replicas == (2,)
        )
        assert told.wait(60)
        undo = "jetstream stream reassign 'waits@waits.>' --replicas 1"
        *_, name, _, node = shlex.split(undo)
        client.reassign_stream(name, [int(node)])
        done = moving.result(60)
    assert done.returncode == 1, done
    warned, waits, ended, _ = done.stderr.splitlines()
    assert warned.startswith("node 2 is not heard: waits@waits.> stays where it is until")
    assert waits == f"waits@waits.> waits for node 2, which is not heard; to undo: {undo}"
    assert ended == "waits@waits.> changed while it was moved: it is on 1"


def test_a_dead_node_with_an_only_replica_is_not_empty(
    cluster: TestCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "LEADERLESS_SECONDS", 1.0)
    placed(cluster, client, "lone", 3)
    with frozen(cluster, client, 3):
        done = decommission(cluster, "3", "--yes", code=Exit.UNAVAILABLE)
        assert "is empty" not in done.stdout + done.stderr
        assert "lone@lone.> has no leader" in done.stderr
        assert "error: node 3 is not empty: it is left with lone@lone.>, which" in done.stderr
        said = json.loads(decommission(cluster, "3", "--yes", "--json", code=4).stdout)
        assert (said["empty"], said["moved"], said["left"]) == (False, False, ["lone@lone.>"])
        move = ("stream", "reassign", "lone", "--replicas", "0", "--yes")
        done = command.jetstream("--server", cluster.servers, *move)
        assert done.returncode == Exit.UNAVAILABLE, done
        assert "error: nobody leads lone@lone.>: until somebody does, nobody can" in done.stderr
    said = json.loads(decommission(cluster, "3", "--yes", "--json").stdout)
    assert (said["empty"], said["moved"], said["left"]) == (True, True, [])
    assert client.fetch("lone").values() == [b"kept"]
    client.drain_node(3, undo=True)


def test_what_comes_to_a_node_while_the_operator_is_asked_is_moved_too(
    cluster: TestCluster, client: Client
) -> None:
    with asked(cluster, "node", "decommission", "3") as answer:
        placed(cluster, client, "late", 3)
        code, shown = answer("y")
    assert code == 0, shown
    assert "late@late.>" in shown
    assert "node 3 is empty" in shown
    assert 3 not in client.describe_stream("late").replicas
    client.drain_node(3, undo=True)


def test_a_plan_does_not_undo_what_was_decided_since(cluster: TestCluster, client: Client) -> None:
    first = placed(cluster, client, "spread", 2)
    with asked(cluster, "stream", "reassign", "spread", "--replicas", "3") as answer:
        cluster.jetstream("stream", "reassign", "spread", "--replicas", "0,1,2", "--yes")
        code, shown = answer("y")
    assert code == 1, shown
    assert "spread@spread.> changed since the plan: it was on 2, and is on 0,1,2" in shown
    assert client.describe_stream("spread").replicas == (0, 1, 2)
    with pytest.raises(PreconditionFailedError, match=r"spread@spread.> changed: stream epoch"):
        client.reassign_stream("spread", [3], stream_epoch=first.stream_epoch)
    # What does not concern its nodes may change.
    with asked(cluster, "stream", "reassign", "spread", "--replicas", "0,1") as answer:
        client.alter_stream("spread", max_messages=5)
        code, shown = answer("y")
    assert code == 0, shown
    assert client.describe_stream("spread").replicas == (0, 1)


MEBIBYTE = 1024 * 1024


LIMIT = ("--copy-bytes-per-second",)


def test_a_move_is_as_fast_as_the_throttle_allows_and_shows_how_far_it_is(
    cluster: TestCluster, client: Client
) -> None:
    stream = client.create_stream("heavy", "heavy", replicas=1)
    with client.publisher("heavy") as publisher:
        for _ in range(8 * 16):
            publisher.send(bytes(64 * 1024))
    new = next(node for node in cluster.nodes if node not in stream.replicas)
    said = cluster.jetstream("cluster", "alter", *LIMIT, "512KiB")
    assert "copy_bytes_per_second 512KiB" in said
    assert client.describe_cluster().copy_bytes_per_second == MEBIBYTE / 2
    assert "512KiB a second" in cluster.jetstream("cluster", "status")
    move = ("stream", "reassign", "heavy", "--replicas", str(new))
    try:
        told = threading.Event()
        with asked(cluster, *move, told=told) as answer:
            begun = time.monotonic()
            moving = ThreadPoolExecutor().submit(answer, "y")
            # All of them take 14 s.
            cluster.wait_for(
                "copies arrive", lambda: 0 < to_copy(client.describe_stream("heavy")) < 8 * 16
            )
            missing = to_copy(client.describe_stream("heavy"))
            copied = (8 * 16 - missing) / 16
            assert copied <= 2 + (time.monotonic() - begun) / 2, "MiB in so many seconds"
            assert told.wait(60)
            assert "copy_bytes_per_second no limit" in cluster.jetstream(
                "cluster", "alter", *LIMIT, "0"
            )
            code, shown = moving.result(timeout=60)
    finally:
        client.alter_cluster(copy_bytes_per_second=0)
    assert (code, client.describe_stream("heavy").replicas) == (0, (new,))
    assert re.search(r"0/1 streams, \d+ records to copy", shown), shown
    assert "1/1 streams" in shown


@pytest.mark.parametrize("rate", ["1KiB", "fast", "9999999TiB"])
def test_a_throttle_that_cannot_be_is_refused(cluster: TestCluster, rate: str) -> None:
    done = command.jetstream("--server", cluster.servers, "cluster", "alter", *LIMIT, rate)
    assert done.returncode == Exit.USAGE, done
    assert re.search("65536 to .* bytes a second|is not a size|is a number of bytes", done.stderr)


@contextmanager
def asked(
    cluster: TestCluster, *arguments: str, told: threading.Event | None = None
) -> Iterator[Callable[[str], tuple[int, str]]]:
    """The command on a terminal, while it asks. Gives what answers it: this returns its exit code
    and all that it has shown. told: set once it shows how much there is to copy."""
    primary, secondary = pty.openpty()
    shown = b""
    with fork_server.start(
        [sys.executable, "-m", "jetstream_client", "-s", cluster.servers, *arguments],
        environment={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
    ) as process:
        os.close(secondary)
        while b"[y/N]" not in shown:
            shown += os.read(primary, 1000)

        def answer(text: str) -> tuple[int, str]:
            nonlocal shown
            os.write(primary, f"{text}\n".encode())
            with suppress(OSError):  # EIO: the command has ended.
                while more := os.read(primary, 1000):
                    shown += more
                    if told is not None and b"records to copy" in shown:
                        told.set()
            return process.wait(), shown.decode()

        try:
            yield answer
        finally:
            process.kill()
            os.close(primary)


def test_an_emptied_node_is_removed_and_one_that_is_not_is_kept(
    cluster: TestCluster, client: Client
) -> None:
    for number in range(4):
        client.create_stream(f"kept{number}", f"kept.{number}", replicas=3)
        client.publish(f"kept.{number}", b"x", msg_id="x")
    with pytest.raises(
        PreconditionFailedError, match=r"node 3 holds replicas or observers of \d+ s"
    ):
        client.remove_node(3)
    cluster.jetstream("node", "decommission", "3", "--yes")
    refused = cluster.jetstream("node", "remove", "3", "--yes", code=1)
    assert refused == "error: node 3 is empty, and still alive: stop it first\n"
    assert not [stream.name for stream in client.list_streams() if 3 in stream.replicas]
    for number in range(4):
        assert len(list(client.fetch(f"kept{number}"))) == 1
    cluster.stop(3)
    cluster.wait_for("it is gone", lambda: client.describe_cluster().nodes[3].fenced)
    asked = cluster.jetstream("node", "remove", "3", code=2)
    assert "asks first, and there is no terminal: add --yes" in asked
    cluster.jetstream("node", "remove", "3", "--yes")
    assert [node.id for node in client.describe_cluster().nodes] == [0, 1, 2]
    refused = cluster.jetstream("node", "decommission", "2", "--yes", code=1)
    assert "has no other node to go to: start another node, or lower its" in refused
    assert not client.describe_cluster().nodes[2].draining


def test_a_node_that_is_removed_while_it_is_frozen_stops_and_says_why(
    cluster: TestCluster, client: Client
) -> None:
    cluster.jetstream("node", "decommission", "3", "--yes")
    cluster.freeze(3)
    try:
        cluster.wait_for("it is not heard", lambda: client.describe_cluster().nodes[3].fenced)
        cluster.jetstream("node", "remove", "3", "--yes")
    finally:
        cluster.thaw(3)
    cluster.wait_for("it has stopped", lambda: "node-3" not in cluster.cluster.pids())
    assert '"node_removed"' in cluster.log(3)
    assert "error: this node was removed from the cluster while it was not heard" in cluster.log(3)


def test_the_settings_of_the_cluster_are_altered_and_shown(
    cluster: TestCluster, client: Client
) -> None:
    shown = cluster.jetstream("cluster", "alter", "--replica-lag-max", "30s")
    assert shown == "copy_bytes_per_second no limit, replica_lag_max 30s\n"
    cluster.wait_for("all know", lambda: client.describe_cluster().replica_lag_max == 30.0)
    with pytest.raises(InvalidRequestError, match="replica_lag_max is 1 s"):
        client.alter_cluster(replica_lag_max=1)
    client.alter_cluster(replica_lag_max=0)
    with pytest.raises(TypeError, match="unknown setting 'colour'"):
        client.alter_cluster(colour="red")  # type: ignore[call-arg]


def test_a_voter_that_is_empty_is_to_be_replaced_before_it_is_removed(
    cluster: TestCluster, client: Client
) -> None:
    for stream in client.list_streams():
        client.delete_stream(stream.full_name)  # Some have no other node to go to.
    (voter, *_) = (node.id for node in client.describe_cluster().nodes if node.voter)
    done = decommission(cluster, str(voter), "--yes")
    client.drain_node(voter, undo=True)
    told = f"node {voter} is empty; first: jetstream voters replace {voter} NEW; then stop it, "
    assert told in done.stdout
