"""What publishers send at rest, and whose answers are missed then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.simulation.publishers import Publishers
from tests.simulation.watched import WatchedStream
from tests.simulation.world import World


class Nats:
    """A server. nodes: the subscribers. `sent` has the values of each delivery."""

    def __init__(self) -> None:
        self.nodes = [0]
        self.sent: list[list[bytes]] = []

    def publish(
        self, subject: bytes, messages: list[tuple[bytes, bytes, bytes]], delay_us_max: int
    ) -> list[int]:
        self.sent.append([value for _, _, value in messages])
        return self.nodes


def publishers_of(nats: Nats, leading: SimpleNamespace | None = None) -> Publishers:
    process = leading or SimpleNamespace(silences=0)
    stream = SimpleNamespace(
        cluster=SimpleNamespace(machines=[SimpleNamespace(process=process)]),
        world=World(1),
        nats=nats,
        subject=b"orders",
        stream=SimpleNamespace(leader=0, leader_epoch=1),
        values=lambda ids: [b"%d" % number for number in ids],
        header_blocks=lambda ids: None,
    )
    return Publishers(cast(WatchedStream, stream), 0)


def test_what_a_scenario_had_still_to_send_is_not_sent_at_rest() -> None:
    nats = Nats()
    publishers = publishers_of(nats)
    publishers.publish(1)
    publishers.running = False
    publishers.publish(3, asking=True)
    publishers.publish(1, delay_us_max=40_000)
    assert nats.sent == [[b"0"], [b"1", b"2", b"3"]]
    assert publishers.unanswered_at_rest() == [1, 2, 3]


def test_only_the_leader_owes_an_answer() -> None:
    nats = Nats()
    publishers = publishers_of(nats)
    publishers.running = False
    nats.nodes = [1]
    publishers.publish(3, asking=True)
    assert publishers.unanswered_at_rest() == []
    nats.nodes = [1, 0]
    publishers.publish(2, asking=True)
    assert publishers.unanswered_at_rest() == [3, 4]


def test_a_leader_that_fell_silent_since_owes_no_answer() -> None:
    leading = SimpleNamespace(silences=2)
    publishers = publishers_of(Nats(), leading)
    publishers.running = False
    publishers.publish(1, asking=True)
    leading.silences = 3
    publishers.publish(1, asking=True)
    assert publishers.unanswered_at_rest() == [1]
