"""A stream being ingested on a real log, for tests of what arrives and what is answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetstream_protocol.batch import Batch, iterate
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.stream_ingest import Bounds, StreamIngest
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import SETTING_LEVELS
from jetstream_server.replication.replica import Replica
from tests.support.log_disk import FaultyDisk
from tests.support.node import Node

INBOX = b"_INBOX.a"


@dataclass
class Stream:
    """A stream being ingested, and what was written to NATS for it."""

    node: Node
    replica: Replica
    bounds: Bounds
    ingest: StreamIngest = field(init=False)
    written: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    def lead_anew(self) -> None:
        """A leadership begins, over what the log holds: nothing is pending."""
        self.ingest = StreamIngest(
            self.replica, self.node.replicas, AckPolicy(), self.bounds, self.write
        )
        self.replica.on_commit = lambda _: self.ingest.committed()

    def deliver(
        self,
        *messages: tuple[bytes, bytes],
        headers: list[bytes] | None = None,
        subject: bytes = b"",
    ) -> None:
        """(value, reply) each, as one read of the connection brought them."""
        values, replies = [m[0] for m in messages], [m[1] for m in messages]
        subjects = [subject or b"orders.%d" % index for index in range(len(messages))]
        self.ingest.deliver(Delivery(1, subjects, replies, values, headers))

    def answers(self) -> list[tuple[str, dict[str, Any]]]:
        """(reply subject, payload) of everything written since the last call."""
        wire, found = b"".join(self.written), []
        self.written.clear()
        while wire:
            line, _, rest = wire.partition(b"\r\n")
            _, subject, length = line.split(b" ")
            found.append((subject.decode(), json.loads(rest[: int(length)])))
            wire = rest[int(length) + 2 :]
        return found

    def acked(self) -> list[tuple[str, int]]:
        return [(reply, payload["seq"]) for reply, payload in self.answers()]

    def nacked(self) -> list[tuple[str, int]]:
        return [(reply, payload["error"]["err_code"]) for reply, payload in self.answers()]

    def batches(self) -> list[Batch]:
        """Everything appended, committed or not."""
        log = self.replica.log
        found = log.read(0, 1 << 30, log.log_end_offset)
        return [] if found is None else list(iterate(log.pread(found)))

    def values(self) -> list[bytes | None]:
        return [value for each in self.batches() for value in each.values()]


def stream_on(
    tmp_path: Path,
    *,
    bounds: Bounds | None = None,
    disk: FaultyDisk | None = None,
    **config: object,
) -> Stream:
    level = max((SETTING_LEVELS[name] for name in config), default=FeatureLevel(1))
    node = Node(tmp_path / "streams", disk=disk, level=level if level > 1 else None)
    node.start()
    replica = node.create(config=config)
    bounds = bounds or Bounds(1000, 1 << 20)
    stream = Stream(node, replica, bounds)
    stream.lead_anew()
    return stream
