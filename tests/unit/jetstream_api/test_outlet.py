"""The lines of delivered messages follow the configuration of their consumer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.types import WallUs
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.config import AckPolicy, ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.records import Record
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.outlet import LeafOutlet

PUSHES = ConsumerConfig(
    name="c", ack_policy=AckPolicy.NONE, deliver_subject=b"to", deliver_group=b"one"
)


class Served:
    """Stands for a consumer."""

    def __init__(self) -> None:
        self.config = PUSHES
        self.created_us = 1
        self.replica = SimpleNamespace(stream=SimpleNamespace(name="s"))


class Link:
    """Stands for the leaf link."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def deliver(self, to: bytes, lines: bytes, count: int = 1) -> None:
        self.sent.append(lines)


@pytest.mark.parametrize(
    ("changed", "shown"),
    [({"deliver_group": b"two"}, b"@s.a two 5"), ({"headers_only": True}, b"Nats-Msg-Size: 5")],
)
def test_a_consumer_that_is_updated_delivers_as_it_is_then(
    changed: dict[str, Any], shown: bytes
) -> None:
    link, served = Link(), Served()
    outlet = LeafOutlet("d", "a", lambda *_: True)
    outlet.link = cast(LeafConnection, link)
    deliveries = [Delivery(Record(0, WallUs(5), b"s.a", b"value", b""), 1, 1, 0)]
    outlet.deliver(cast(Consumer, served), b"to", deliveries)
    served.config = replace(PUSHES, **changed)
    outlet.deliver(cast(Consumer, served), b"to", deliveries)
    first, second = link.sent
    assert b"@s.a one 5" in first
    assert shown not in first
    assert shown in second
