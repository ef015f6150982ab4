"""The way from consumers to NATS clients: over the leaf link of the node that leads the stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

from jetstream_protocol.errors import UnavailableError
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.deliveries import GivenUp
from jetstream_server.consumers.pulls import Pull, Status
from jetstream_server.consumers.records import Record
from jetstream_server.jetstream_api.answers import status_headers
from jetstream_server.jetstream_api.consumer_answers import Lines
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.requests import api_name
from jetstream_server.metadata.state.streams import StreamMetadata

_FLOW_REQUEST: Final = "100 FlowControl Request"
_ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"


class LeafOutlet:
    """See the module. account: in the subjects of acknowledgements. may_commit: whether NATS
    clients may, on that stream, by that name."""

    def __init__(
        self, domain: str, account: str, may_commit: Callable[[StreamMetadata, str], bool]
    ) -> None:
        self._may_commit = may_commit
        self.link: LeafConnection | None = None
        """Set once, before the first consumer."""
        self.unheard: Callable[[list[Pull]], None] = lambda _: None
        """Called with pulls whose inboxes nobody hears any more. Set once, too."""
        self._domain = domain
        self._account = account
        self._lines: WeakKeyDictionary[Consumer, Lines] = WeakKeyDictionary()

    @property
    def _leaf(self) -> LeafConnection:
        assert self.link is not None
        return self.link

    @property
    def has_room(self) -> bool:
        return self._leaf.has_room

    @property
    def is_cut_off(self) -> bool:
        return not self._leaf.is_connected

    async def room(self) -> None:
        if not self._leaf.is_connected:
            raise UnavailableError("NATS is not connected")
        await self._leaf.room()

    def may_use(self, consumer: Consumer) -> bool:
        config = consumer.config
        return not config.is_durable or self._may_commit(consumer.replica.stream, config.name)

    def fits(self, record: Record) -> bool:
        return len(record.value) + len(record.headers) <= self._leaf.max_payload

    def reply_length(self, consumer: Consumer, delivery: Delivery) -> int:
        return self._lines_of(consumer).reply_length(delivery)

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None:
        self._leaf.deliver(to, self._lines_of(consumer).of(to, deliveries), len(deliveries))

    def _lines_of(self, consumer: Consumer) -> Lines:
        lines = self._lines.get(consumer)
        if lines is None or lines.config is not consumer.config:
            lines = Lines(consumer, self._domain, self._account, mark_of(consumer))
            self._lines[consumer] = lines
        return lines

    def status(self, consumer: Consumer, status: Status) -> None:
        headers = status_headers(status.text, status.headers)
        group = consumer.config.deliver_group
        if group and status.to == consumer.config.deliver_subject:
            length = len(headers)
            line = b"HMSG %b | %b %d %d\r\n%b\r\n" % (status.to, group, length, length, headers)
            self._leaf.deliver(status.to, line)
        else:
            self._leaf.send(status.to, b"", headers)

    def refuse(self, status: Status) -> None:
        self._leaf.refuse(status.to, status_headers(status.text, status.headers))

    def ask(self, consumer: Consumer, question: int) -> None:
        headers = status_headers(_FLOW_REQUEST)
        length, to = len(headers), consumer.config.deliver_subject
        reply = flow_subject(consumer, question).encode()
        group = consumer.config.deliver_group
        routing = b"+ %b %b" % (reply, group) if group else reply
        line = b"HMSG %b %b %d %d\r\n%b\r\n" % (to, routing, length, length, headers)
        self._leaf.deliver(to, line)

    def stalled(self, consumer: Consumer, question: int) -> dict[str, object]:
        return {"Nats-Consumer-Stalled": flow_subject(consumer, question)}

    def is_heard(self, to: bytes, group: bytes = b"") -> bool:
        return self._leaf.is_heard(to, group)

    def gave_up(self, consumer: Consumer, message: GivenUp) -> None:
        """Tell NATS clients that a message was delivered as often as it may be."""
        stream, name = api_name(consumer.replica.stream.name), consumer.config.name
        told = _advisory(stream, name, self._domain, message)
        subject = f"{_ADVISORY}.{stream}.{name}".encode()
        self._leaf.advise(subject, json.dumps(told, separators=(",", ":")).encode())


def _advisory(stream: str, name: str, domain: str, message: GivenUp) -> dict[str, Any]:
    return {
        "type": "io.nats.jetstream.advisory.v1.max_deliver",
        "id": f"{stream}-{name}-{message.offset}",
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "stream": stream,
        "consumer": name,
        "stream_seq": message.offset + 1,
        "deliveries": message.times,
        "domain": domain,
    }


def mark_of(consumer: Consumer) -> str:
    """Tells a consumer from an earlier one of the same name."""
    return f"{consumer.created_us:x}"


def flow_subject(consumer: Consumer, question: int) -> str:
    return f"$JS.FC.{api_name(consumer.replica.stream.name)}.{consumer.config.name}.{question}"
