"""Consumers that only the leader of their stream knows, as it tells the other copies. Pure.

A consumer that is not durable is gone with its leader. The reader of an *ordered* consumer, as the
libraries call it, would notice that by missing heartbeats, up to 90 s later. So the nodes that have
a copy of the stream are told of each such consumer once: what it is called, what it wants, and
where it has begun. One that becomes the leader has it deliver one more message, with a consumer
sequence that does not follow: the reader sees the gap, drops the message, and begins anew behind
the last one that it has.

It begins at the start again, not where it was: a reader that has missed anything is sent a message
at once, and where nothing was delivered is no gap to see.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Final

from jetstream_protocol import bounded_json
from jetstream_protocol.types import StreamId, WallUs
from jetstream_server.consumers.config import AckPolicy, ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.kept import Kept, config_from_json, config_to_json
from jetstream_server.jetstream_api.by_stream import ByStream

REPORTED_MAX: Final = 10_000
"""Remembered by one node; the oldest are forgotten first."""
REPORTED_BYTES_MAX: Final = 16 * 1024 * 1024
MESSAGE_BYTES: Final = 256 * 1024
"""Of names and configurations in one message between nodes, about."""

SEQUENCE_BEHIND_A_GAP: Final = 2**40
"""The consumer sequence before the message that its reader must not expect. Numbers of JavaScript
hold it."""


def is_reported(consumer: Consumer) -> bool:
    """Whether the other copies are told of it, as of an ordered one: all libraries ask for those to
    be kept in memory, or for flow control. Other readers learn otherwise that a consumer is gone,
    and must not be sent a message twice."""
    config = consumer.config
    return _is_lost(config) and (config.mem_storage or config.flow_control)


def _is_lost(config: ConsumerConfig) -> bool:
    return not config.is_durable and config.ack_policy is AckPolicy.NONE


def reports(begun: Iterable[Consumer], ended: Iterable[str]) -> Iterator[bytes]:
    """Messages that tell of consumers: none without news."""
    names, found, length = list[str](), list[list[object]](), 0
    news: list[str | Consumer] = [*ended, *begun]
    for each in news:
        if isinstance(each, str):
            names.append(each)
            length += len(each)
        else:
            text = config_to_json(each.config)
            found.append([text, each.first_offset, each.created_us])
            length += len(text)
        if length >= MESSAGE_BYTES:
            yield _report(found, names)
            names, found, length = [], [], 0
    if names or found:
        yield _report(found, names)


def _report(begun: list[list[object]], ended: list[str]) -> bytes:
    return json.dumps({"begun": begun, "ended": ended}, separators=(",", ":")).encode()


class ReportedConsumers:
    """See the module."""

    def __init__(self) -> None:
        self._reported: ByStream[str, tuple[str, int, int]] = ByStream()
        """Configuration, first offset, time of creation, by name."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._reported)

    def take(self, stream_id: StreamId, report: bytes) -> None:
        """Take a message of the leader. Raises ValueError for what is none."""
        if not report:
            return  # A leader of an older version tells nothing.
        found = bounded_json.loads(report)
        try:
            for name in found["ended"]:
                self._forgotten(self._reported.pop(stream_id, name))
            for text, first_offset, created_us in found["begun"]:
                self._remember(stream_id, text, int(first_offset), int(created_us))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no news of consumers: {error}") from error

    def _remember(self, stream_id: StreamId, text: str, first_offset: int, created_us: int) -> None:
        name = _config_of(text).name
        if not (0 <= first_offset < 2**63 and 0 <= created_us < 2**63):
            raise ValueError("a number is out of bounds")
        self._forgotten(self._reported.pop(stream_id, name))
        self._reported.put(stream_id, name, (text, first_offset, created_us))
        self._bytes += len(text)
        while len(self._reported) > REPORTED_MAX or self._bytes > REPORTED_BYTES_MAX:
            self._forgotten(self._reported.pop_oldest())

    def _forgotten(self, found: tuple[str, int, int] | None) -> None:
        if found is not None:
            self._bytes -= len(found[0])

    def forget(self, stream_id: StreamId, epoch: int = 0) -> list[Kept]:
        """Forget the consumers of a stream, and return them as a leader of that epoch has them
        go on."""
        found = []
        for reported in self._reported.pop_all(stream_id):
            self._forgotten(reported)
            text, first, created_us = reported
            before = SEQUENCE_BEHIND_A_GAP
            config, created = config_from_json(text), WallUs(created_us)
            found.append(Kept(config, first, before, first - 1, (), (), first, epoch, created))
        return found


def _config_of(text: str) -> ConsumerConfig:
    """Raises ValueError for what no leader of this version tells. **safety** A node that takes over
    the stream serves by it, and would end by a field of another type."""
    config = config_from_json(text)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not field.default and type(value) is not _type_of(field):
            raise ValueError(f"{field.name} is not of its type")
    if not all(isinstance(each, str) and each.encode() for each in config.filters):
        raise ValueError("a filter is no text")
    words = config.name, config.deliver_subject.decode(), config.deliver_group.decode()
    if not all(map(str.isprintable, words)):
        raise ValueError("a name has characters that no line to NATS can hold")
    if not _is_lost(config):
        raise ValueError("no consumer that is lost with its leader")
    return config


def _type_of(field: dataclasses.Field[object]) -> type:
    if field.default is dataclasses.MISSING:
        return str  # The name.
    return int if field.default is None else type(field.default)
