"""Batched publishers that choose their way, and change it while records are under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_client import Client, Delivery, Publisher
from jetstream_client.publishing import way_choice
from tests.support.gate import gated_node
from tests.support.server import ServerProcess


class Records:
    """Sends numbers, and remembers what became of them."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.deliveries: list[Delivery] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            self.deliveries.append(self._publisher.send(b"%d" % len(self.deliveries)))

    def check(self, client: Client, stream: str) -> None:
        """Each is stored once, in order, and where its delivery says."""
        count = len(self.deliveries)
        offsets = [each.result(timeout=60) for each in self.deliveries]
        assert [each.offset for each in offsets] == list(range(count))
        values = [each.value for each in client.consume(stream, stop="latest", patience=60)]
        assert values == [b"%d" % number for number in range(count)]


def test_the_way_is_changed_in_the_middle_in_both_directions(tmp_path: Path) -> None:
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        client.create_stream("changing", "changing")
        straight, nats = node.data_gate, node.nats_gate
        with client.publisher("changing", via="auto", linger=0.0) as publisher:
            records = Records(publisher)
            records.send(50)
            publisher.flush()
            records.send(20)
            straight.shut()
            records.send(30)
            publisher.flush()
            assert nats.connections > 0
            records.send(20)
            nats.shut()
            straight.open()
            records.send(30)
            publisher.flush()
            straight.fall_silent()
            records.send(20)
            nats.open()
            records.send(30)
            publisher.flush()
            records.send(20)
            nats.fall_silent()
            straight.open()  # What was sent there before comes late.
            records.send(30)
            publisher.flush()
            nats.open()
            records.send(20)
            publisher.flush()
        records.check(client, "changing")


def test_a_keyed_group_changes_its_way_too(tmp_path: Path) -> None:
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        client.create_group("split", "split", streams=3)
        with client.publisher("split", via="auto", linger=0.0) as publisher:
            deliveries = []
            for moment in range(3):
                if moment == 1:
                    node.data_gate.shut()
                if moment == 2:
                    node.data_gate.open()
                    node.nats_gate.shut()
                for number in range(60):
                    value = b"%d" % (60 * moment + number)
                    deliveries.append(publisher.send(value, key=b"%d" % (number % 7)))
                publisher.flush()
            results = [each.result() for each in deliveries]
        assert len({each.stream for each in results}) == 3
        for number in range(3):
            values = [
                int(each.value or b"")
                for each in client.consume(f"split-{number}", stop="latest", patience=60)
            ]
            mine = [at for at, each in enumerate(results) if each.stream == f"split-{number}"]
            assert values == mine


def test_a_second_stream_on_the_subject_is_heard_by_nats(
    client: Client, server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when it is gone, batches go straight again."""
    monkeypatch.setattr(way_choice, "RETURN_SECONDS", 0.1)
    client.create_stream(name, name)
    with client.publisher(name, via="auto", linger=0.0) as publisher:
        sent = []

        def send_until(count: int) -> None:
            while True:
                sent.append(publisher.send(b"%d" % len(sent)).result())
                if len(sent[-1].acks) == count:
                    return

        send_until(1)
        client.create_stream(f"{name}_too", name)
        send_until(2)
        first = len(sent) - 1
        send_until(2)
        client.delete_stream(f"{name}_too")
        send_until(1)
        for _ in range(20):
            send_until(1)
    values = [each.value for each in client.consume(name, stop="latest", patience=60)]
    assert values == [b"%d" % number for number in range(len(sent))]
    assert first > 0


def test_several_streams_and_none_that_answers_go_by_nats(client: Client, name: str) -> None:
    client.create_stream(f"{name}_all", f"{name}.>")
    client.create_stream(f"{name}_one", f"{name}.a")
    with client.publisher(f"{name}.a", via="auto") as publisher:
        assert len(publisher.send(b"x").result().acks) == 2
    with client.publisher(f"{name}.b", via="auto") as publisher:
        assert publisher.send(b"y").result().stream == f"{name}_all"


@pytest.mark.parametrize("reachable", ["nats", "direct"])
def test_one_way_is_enough_to_begin_with(tmp_path: Path, reachable: str) -> None:
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        client.create_stream("begun", "begun")
        (node.data_gate if reachable == "nats" else node.nats_gate).shut()
        with client.publisher("begun", via="auto") as publisher:
            assert publisher.send(b"x").result().offset == 0
        assert (node.nats_gate.connections > 0) == (reachable == "nats")
