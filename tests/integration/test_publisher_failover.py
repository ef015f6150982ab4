"""A batched publisher over killed servers: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jetstream_client import Client, Delivery, Publisher
from tests.support.cluster import TestCluster
from tests.support.server import ServerProcess


class Sender:
    """Sends numbered records from a thread of its own, until told to end."""

    def __init__(self, publisher: Publisher, size: int) -> None:
        self.deliveries: list[Delivery] = []
        self._publisher = publisher
        self._size = size
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._end.is_set():
            value = b"%0*d" % (self._size, len(self.deliveries))
            self.deliveries.append(self._publisher.send(value))
            if len(self.deliveries) % 50 == 0:
                time.sleep(0.002)

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def wait_for(self, more: int, seconds: float = 60.0) -> None:
        """Wait until `more` more messages are acknowledged."""
        begun = len(self.deliveries)
        deadline = time.monotonic() + seconds
        while len(self.deliveries) < begun + more or not self.deliveries[begun + more - 1].done():
            assert time.monotonic() < deadline, "no acknowledgement"
            time.sleep(0.01)


@contextmanager
def sending(publisher: Publisher, size: int = 100) -> Iterator[Sender]:
    sender = Sender(publisher, size)
    try:
        yield sender
    finally:
        sender.end()


def check_exactly_once(client: Client, stream: str, sender: Sender) -> None:
    """Every record is there once, in order, and where its delivery says."""
    read = [
        (offset, value)
        for messages in client.consume(stream, stop="latest").batches()
        for offset, value in zip(messages.offsets(), messages.values(), strict=True)
    ]
    values = [value for _, value in read]
    assert values == [b"%0100d" % number for number in range(len(sender.deliveries))]
    told = [delivery.result(60).offset for delivery in sender.deliveries]
    assert told == [offset for offset, _ in read]


def test_a_killed_server_costs_a_pause_no_record_and_no_order(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.>")
        with (
            client.publisher(
                "orders.x", max_bytes=8192, compression="zstd", delivery_timeout=100
            ) as publisher,
            sending(publisher) as sender,
        ):
            for _ in range(2):
                sender.wait_for(500)
                own_server.kill()
                own_server.start()
            sender.wait_for(500)
            sender.end()
            publisher.flush()
            check_exactly_once(client, "orders", sender)


def test_a_killed_leader_costs_a_pause_no_record_and_no_order(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("survivor", "survivor.>", replicas=3)
        with (
            client.publisher("survivor.x", max_bytes=8192, delivery_timeout=100) as publisher,
            sending(publisher) as sender,
        ):
            sender.wait_for(500)
            leader = client.describe_stream("survivor").leader
            cluster.kill(leader)
            sender.wait_for(500)
            cluster.restart(leader)
            cluster.wait_for_isr("survivor", [0, 1, 2])
            sender.end()
            publisher.flush()
            check_exactly_once(client, "survivor", sender)


def test_a_frozen_leader_costs_a_pause_no_record_and_no_order(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("frozen", "frozen.>", replicas=3)
        with (
            client.publisher("frozen.x", max_bytes=8192, delivery_timeout=100) as publisher,
            sending(publisher) as sender,
        ):
            sender.wait_for(500)
            leader = client.describe_stream("frozen").leader
            cluster.freeze(leader)
            try:
                sender.wait_for(500)
            finally:
                cluster.thaw(leader)
            sender.wait_for(500)
            sender.end()
            publisher.flush()
            check_exactly_once(client, "frozen", sender)


def test_a_killed_nats_server_costs_a_pause_no_record_and_no_order(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("wire", "wire.>", replicas=3)
        with (
            client.publisher("wire.x", max_bytes=8192, delivery_timeout=100) as publisher,
            sending(publisher) as sender,
        ):
            sender.wait_for(500)
            cluster.cluster.end("nats", signal.SIGKILL)
            cluster.cluster.start_nats()
            sender.wait_for(500)
            sender.end()
            publisher.flush()
            check_exactly_once(client, "wire", sender)
