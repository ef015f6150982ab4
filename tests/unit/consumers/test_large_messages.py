"""Many large messages at once."""

from __future__ import annotations

from pathlib import Path

from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.pulls import Pull
from jetstream_server.jetstream_api.leaf.connection import ROOM_BYTES, WRITE_BYTES_MAX
from tests.support.loops import eventually, on_loop
from tests.support.node import Node
from tests.unit.consumers.test_new_leader import Client, consumer_of

COUNT = 128
MESSAGE_BYTES = 70 * 1024


class Link(Client):
    """As the leaf link: what would have to wait beyond its bound is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = self.dropped = 0

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        return self.waiting < ROOM_BYTES

    async def room(self) -> None:
        self.waiting = 0

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        length = sum(each.record.size for each in deliveries)
        if self.waiting + length > WRITE_BYTES_MAX:
            self.dropped += len(deliveries)
            return
        self.waiting += length
        super().deliver(consumer, to, deliveries)


@on_loop
async def test_no_more_is_sent_in_one_turn_than_the_link_holds(tmp_path: Path) -> None:
    """Readers who take turns: the messages of one inbox are bounded otherwise."""
    node = Node(tmp_path / "streams", segment_bytes=1 << 25)
    node.start()
    replica, link = node.create(), Link()
    node.append(replica, *(b"x" * MESSAGE_BYTES for _ in range(COUNT)))
    consumer = consumer_of(node, replica, link)
    consumer.pull(Pull(b"_INBOX.1", COUNT // 2))
    consumer.pull(Pull(b"_INBOX.2", COUNT // 2))
    await eventually(lambda: len(link.got) + link.dropped == COUNT)
    assert (link.dropped, sorted(link.got)) == (0, list(range(COUNT)))
    consumer.close("")
    node.replicas.close()
