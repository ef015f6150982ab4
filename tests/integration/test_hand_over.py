"""Planned hand-overs on three real nodes: what publishers see of them, and what is shown."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

import pytest

from jetstream_client import AsyncClient, UnknownOutcomeError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.support.api import call
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.support.loops import eventually, on_loop
from tests.support.patient_server import MISSED_US, PatientCluster
from tests.support.stages import cluster_stage

patient = cluster_stage(kind=PatientCluster)


def transfer(cluster: TestCluster, name: str, target: int, *, asked: int = 0) -> None:
    request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=name), node_id=target)
    call(cluster.api(asked).cluster.TransferLeader, request)


def wait_for_another_leader(cluster: TestCluster, name: str, leader: int) -> None:
    cluster.wait_for(
        f"node {leader} does not lead", lambda: cluster.describe(name).stream.leader != leader
    )


def hand_overs_of(cluster: TestCluster, node: int) -> list[dict[str, object]]:
    """What the node's log says of the leaderships it has handed over."""
    lines = [json.loads(line) for line in cluster.log(node).splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "leadership_handed_over"]


def test_every_message_that_was_taken_is_acknowledged_across_hand_overs(
    patient: TestCluster,
) -> None:
    cluster = patient
    cluster.api(0).create("orders", "orders")
    load = Load(cluster.nats, "orders").start()
    for turn in range(4):
        load.wait_for_acks(300)
        cluster.wait_for_isr("orders", cluster.nodes)
        leader = cluster.describe("orders").stream.leader
        transfer(cluster, "orders", (leader + 1) % 3, asked=turn % 3)
        wait_for_another_leader(cluster, "orders", leader)
    load.wait_for_acks(300)
    books = load.stop()
    cluster.check_everywhere("orders", books)
    all_done = [each for node in cluster.nodes for each in hand_overs_of(cluster, node)]
    done = [each for each in all_done if each["stream"] == "orders@orders"]
    assert len(done) == 4, "one of them was not graceful"
    assert [each["unacknowledged"] for each in done] == [0] * 4
    assert cluster.describe("orders").high_watermark == len(books.acked), (
        "a message was stored whose publisher was left in doubt"
    )


@pytest.mark.parametrize("how", ["stopped", "drained", "demanded"])
def test_who_stood_still_a_moment_ago_takes_over_what_has_to_go(
    patient: TestCluster, how: str
) -> None:
    cluster = patient
    name = f"shortly-{how}"
    cluster.api(0).create(name, name, replicas=2)
    stream = cluster.describe(name).stream
    leader = stream.leader
    (successor,) = set(stream.replicas) - {leader}
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(100)
    seen = len(cluster.log(successor))
    cluster.freeze(successor)
    time.sleep(1.5 * MISSED_US / 1e6)
    cluster.thaw(successor)
    cluster.wait_for("it can", lambda: "node_can_serve_again" in cluster.log(successor)[seen:])
    cluster.wait_for_isr(name, [leader, successor])
    load.wait_for_acks(100)
    if how == "stopped":
        cluster.stop(leader)
    elif how == "drained":
        call(cluster.api(2).cluster.DrainNode, pb.DrainNodeRequest(node_id=leader, draining=True))
    else:
        transfer(cluster, name, successor)
    wait_for_another_leader(cluster, name, leader)
    load.wait_for_acks(100)
    books = load.stop()
    done = hand_overs_of(cluster, leader)
    if how == "stopped":
        cluster.restart(leader)
    elif how == "drained":
        cluster.jetstream("node", "drain", str(leader), "--undo")
    (handed,) = (each for each in done if each["stream"] == f"{name}@{name}")
    assert handed["unacknowledged"] == 0
    books.check(cluster.api(successor).values(name))


def test_the_gap_is_measured_and_shown(patient: TestCluster) -> None:
    cluster = patient
    cluster.api(0).create("shown", "shown")
    target = (cluster.describe("shown").stream.leader + 1) % 3
    transfer(cluster, "shown", target)
    cluster.wait_for("it leads", lambda: cluster.describe("shown").hand_overs >= 1)
    assert cluster.describe("shown").hand_over_gap_us > 0
    http = cluster.cluster.config["nodes"][target]["http"]
    metrics = urllib.request.urlopen(f"http://{http}/metrics", timeout=60).read().decode()
    numbers = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    assert float(numbers["jetstream_hand_overs_total"]) >= 1
    assert float(numbers["jetstream_hand_over_gap_seconds_total"]) > 0


@on_loop
async def test_a_rolling_restart_costs_publishers_through_the_sdk_nothing_but_time(
    patient: TestCluster,
) -> None:
    cluster = patient
    async with AsyncClient(cluster.servers, timeout=60) as client:
        await client.create_stream("rolling", "rolling.>")
        acknowledged: dict[int, bytes] = {}
        in_doubt: list[UnknownOutcomeError] = []
        ended = asyncio.Event()

        async def publish(worker: int) -> None:
            number = 0
            while not ended.is_set():
                value = b"%d-%d" % (worker, number)
                number += 1
                try:
                    result = await client.publish("rolling.x", value)
                except UnknownOutcomeError as error:
                    in_doubt.append(error)
                    continue
                assert result.offset not in acknowledged
                acknowledged[result.offset] = value

        publishers = [asyncio.ensure_future(publish(worker)) for worker in range(20)]
        seen = {node: len(cluster.log(node)) for node in cluster.nodes}
        for node in cluster.nodes:
            before = len(acknowledged)
            await eventually(lambda before=before: len(acknowledged) > before + 200)  # type: ignore[misc]
            await asyncio.to_thread(cluster.stop, node)
            log = await asyncio.to_thread(cluster.log, node)
            assert "not_handed_over" not in log[seen[node] :]
            before = len(acknowledged)
            await eventually(lambda before=before: len(acknowledged) > before + 200)  # type: ignore[misc]
            await asyncio.to_thread(cluster.restart, node)
            await asyncio.to_thread(cluster.wait_for_isr, "rolling", cluster.nodes)
        ended.set()
        await asyncio.gather(*publishers)  # None of them has met another error.
        stored = {
            message.offset: message.value
            async for message in client.consume("rolling", stop="latest")
        }
    assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged
    assert len(set(stored.values())) == len(stored)
    assert in_doubt == []
    assert stored == acknowledged
