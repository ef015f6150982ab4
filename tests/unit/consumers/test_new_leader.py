"""Pulls at a leader that does not know yet what was acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from jetstream_protocol.types import MonotonicUs, NodeId, WallUs
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader
from jetstream_server.consumers.pulls import NO_MESSAGES, Pull, PullRoom, Status
from jetstream_server.consumers.records import Wanted
from jetstream_server.replication.replica import Replica
from tests.support.loops import eventually, on_loop
from tests.support.node import Node
from tests.unit.replication.cores import request


class Client:
    """A NATS client that pulls."""

    has_room = True
    is_cut_off = False

    def __init__(self) -> None:
        self.got: list[int | str] = []
        self.pending: list[int] = []

    def is_heard(self, *_: bytes) -> bool:
        return True

    def may_use(self, *_: object) -> bool:
        return True

    def fits(self, *_: object) -> bool:
        return True

    def deliver(self, _: Consumer, __: bytes, deliveries: list[Delivery]) -> None:
        self.got += [each.record.offset for each in deliveries]
        self.pending += [each.pending for each in deliveries]

    def status(self, _: Consumer, status: Status) -> None:
        self.got.append(status.text)


def consumer_of(node: Node, replica: Replica, client: Client) -> Consumer:
    async def pace(*_: Any) -> None: ...

    config = ConsumerConfig(name="c")
    consumer = Consumer(
        config,
        Deliveries(config, 0),
        Feed(Reader(pace), replica, Wanted(), 0),
        cast(Outlet, client),
        cast(Clocks, node.clocks),
        lambda _: None,
        created_us=WallUs(0),
        epoch=replica.stream.leader_epoch,
        room=PullRoom(),
    )
    consumer.start()
    return consumer


def led_anew(node: Node) -> Replica:
    """A leader whose log has three records, and which does not know whether they are committed."""
    node.start()
    replica = node.create(replicas=(0, 1), config={"min_insync_replicas": 2})
    for value in (b"1", b"2", b"3"):
        node.append(replica, value)
    node.replicas.close()
    node.start()
    replica = node.replica(replica.stream)
    assert (replica.high_watermark, replica.log.log_end_offset) == (0, 3)
    return replica


def followed(node: Node, replica: Replica, offset: int) -> None:
    """The follower has all records below the offset."""
    stream = node.cluster.now(replica.stream)
    replica.log.flush()  # It notes its epoch on disk first.
    replica.moved()
    follower = request(
        1, offset, last_epoch=stream.leader_epoch, leader_epoch=stream.leader_epoch,
        stream_id=stream.id, flushed_offset=offset,
        incarnation=node.cluster.registry.nodes[NodeId(1)].incarnation,
        stream_epoch=stream.stream_epoch,
    )  # fmt: skip
    replica.fetch(follower, MonotonicUs(0))


@on_loop
async def test_a_pull_that_does_not_wait_gets_what_was_acknowledged_before(tmp_path: Path) -> None:
    """It was told that there is nothing."""
    node = Node(tmp_path / "streams", nodes=2)
    replica, client = led_anew(node), Client()
    consumer = consumer_of(node, replica, client)
    consumer.pull(Pull(b"_INBOX.1", 5, no_wait=True))
    await eventually(lambda: consumer._is_waiting)
    assert client.got == []
    followed(node, replica, 3)
    await eventually(lambda: client.got == [0, 1, 2, NO_MESSAGES])
    consumer.close("")
    node.replicas.close()


@on_loop
async def test_while_too_few_replicas_are_in_sync_it_is_answered(tmp_path: Path) -> None:
    """That may last."""
    node = Node(tmp_path / "streams", nodes=2)
    replica, client = led_anew(node), Client()
    consumer = consumer_of(node, replica, client)
    consumer.pull(Pull(b"_INBOX.1", 5, no_wait=True))
    await eventually(lambda: consumer._is_waiting)
    assert client.got == []
    node.cluster.change_isr(node.cluster.now(replica.stream), (0,))
    node.apply()
    await eventually(lambda: client.got == [NO_MESSAGES])
    consumer.close("")
    node.replicas.close()


@on_loop
async def test_no_message_is_said_to_be_the_last_one_before_that_is_known(tmp_path: Path) -> None:
    """Who watches a bucket would believe that it has seen all of it."""
    node = Node(tmp_path / "streams", nodes=2)
    replica, client = led_anew(node), Client()
    followed(node, replica, 2)
    assert replica.high_watermark == 2
    consumer = consumer_of(node, replica, client)
    consumer.pull(Pull(b"_INBOX.1", 5))
    await eventually(lambda: consumer._is_waiting)
    assert (client.got, consumer.pending) == ([0], None)
    followed(node, replica, 3)
    await eventually(lambda: client.got == [0, 1, 2])
    assert (client.pending[-2:], consumer.pending) == ([1, 0], 0)
    consumer.close("")
    node.replicas.close()
