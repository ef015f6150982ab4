"""What is kept of a durable consumer in `__cursors`, so that another node can go on. Pure.

    config, position, and of each open message: offset, consumer sequence, number of deliveries

What is below `position` and not open is done (deliveries.py), so this is all. A few bytes for each
open message.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from jetstream_protocol import bounded_json
from jetstream_protocol.generated.consumers_pb2 import StoredConsumer
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.consumers.config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.cursors.records import CONSUMER_PREFIX

_ENUMS: Final = {"deliver_policy": DeliverPolicy, "ack_policy": AckPolicy}


def stream_prefix(stream_id: int) -> bytes:
    """Of the keys of a stream's consumers: an id is never used again, so what a deleted stream has
    left cannot be taken for another's."""
    return CONSUMER_PREFIX + b"%d/" % stream_id


def consumer_key(stream_id: int, name: str) -> bytes:
    return stream_prefix(stream_id) + name.encode()


@dataclass(frozen=True, slots=True)
class Kept:
    """epoch: the leader epoch of the stream's leader that has stored it. opened: offset, sequence
    and count of each open message. selected: offsets to deliver first, then all from `rest` on."""

    config: ConsumerConfig
    position: int
    sequence: int
    last_offset: int
    opened: tuple[tuple[int, int, int], ...]
    selected: tuple[int, ...] = ()
    rest: int = 0
    epoch: int = 0
    created_us: WallUs = WallUs(0)

    @classmethod
    def of(
        cls,
        deliveries: Deliveries,
        selected: tuple[int, ...] = (),
        rest: int = 0,
        epoch: int = 0,
        created_us: WallUs = WallUs(0),
    ) -> Kept:
        return cls(
            deliveries.config,
            deliveries.position,
            deliveries.sequence,
            deliveries.last_offset,
            tuple((at, each.sequence, each.count) for at, each in deliveries.open.items()),
            selected,
            rest,
            epoch,
            created_us,
        )

    def before(self, end: int) -> Kept:
        """The same, where an election has lost the records from `end` on: others take their place,
        and are new. One that is to begin further on still is."""
        waits = not self.sequence and self.config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
        if waits or max(self.position, self.rest) <= end:
            return self
        return dataclasses.replace(
            self,
            position=min(self.position, end),
            last_offset=min(self.last_offset, end - 1),
            opened=tuple(each for each in self.opened if each[0] < end),
            selected=tuple(each for each in self.selected if each < end),
            rest=min(self.rest, end),
        )

    def into(self, deliveries: Deliveries, now_us: MonotonicUs) -> None:
        """Have a new leader's deliveries begin with this."""
        deliveries.position = self.position
        deliveries.sequence = self.sequence
        deliveries.last_offset = self.last_offset
        deliveries.restore(self.opened, now_us)

    def encode(self) -> bytes:
        return StoredConsumer(
            config=config_to_json(self.config),
            position=self.position,
            sequence=self.sequence,
            last_offset=self.last_offset,
            offsets=_steps([each[0] for each in self.opened]),
            sequences=[each[1] for each in self.opened],
            counts=[each[2] for each in self.opened],
            selected=_steps(list(self.selected)),
            rest=self.rest,
            leader_epoch=self.epoch,
            created_us=self.created_us,
        ).SerializeToString()

    @classmethod
    def decode(cls, value: bytes) -> Kept:
        """Raises ValueError for what is no such record."""
        try:
            found = StoredConsumer.FromString(value)
            config = config_from_json(found.config)
        except (DecodeError, TypeError, AttributeError) as error:
            raise ValueError(f"no record of a consumer: {error}") from error
        opened = zip(_sums(found.offsets), found.sequences, found.counts, strict=True)
        return cls(
            config,
            found.position,
            found.sequence,
            found.last_offset,
            tuple(opened),
            tuple(_sums(found.selected)),
            found.rest,
            found.leader_epoch,
            WallUs(found.created_us),
        )


def epoch_of(value: bytes) -> int:
    """The leader epoch in a record."""
    return StoredConsumer.FromString(value).leader_epoch


def _steps(ascending: list[int]) -> list[int]:
    """The differences: they are short."""
    return [each - before for each, before in zip(ascending, [0, *ascending], strict=False)]


def _sums(steps: Any) -> list[int]:
    found, total = [], 0
    for each in steps:
        total += each
        found.append(total)
    return found


def config_to_json(config: ConsumerConfig) -> str:
    """Only what differs from the defaults."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "name" or value != field.default:
            found[field.name] = value.decode() if isinstance(value, bytes) else value
    return json.dumps(found, separators=(",", ":"))


def config_from_json(text: str) -> ConsumerConfig:
    """Fields of later versions are passed over. Raises ValueError."""
    given = bounded_json.loads(text)
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError("no configuration of a consumer")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(ConsumerConfig):
        if field.name in given:
            value = given[field.name]
            if field.name in _ENUMS:
                value = _ENUMS[field.name](value)
            elif field.name == "metadata":
                value = tuple((key, text) for key, text in value)
            elif isinstance(value, list):
                value = tuple(value)
            elif field.name in ("deliver_subject", "deliver_group"):
                value = value.encode()
            found[field.name] = value
    return ConsumerConfig(**found)
