"""Reading a topic of Kafka, partition by partition. Needs the extra `kafka`.

Offsets, keys, null values and times (of the producer or the log, as the topic has them) are kept.
Headers become a NATS header block. Offsets without a record (compacted, control records) stay gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from jetstream_client.migration.records import Records
from jetstream_protocol.errors import InvalidRequestError, NotFoundError, UnavailableError
from jetstream_protocol.extras import needed_by

POLL_RECORDS = 10_000
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class KafkaTopic:
    """`with KafkaTopic(…) as topic`: `bounds`, then `records` of each partition. Blocks."""

    def __init__(self, servers: str, topic: str) -> None:
        with needed_by("reading Kafka", "kafka"):
            import kafka
        self._kafka = kafka
        self._servers = servers
        self._topic = topic
        self._consumer: Any = None

    def __enter__(self) -> KafkaTopic:
        try:
            self._consumer = self._kafka.KafkaConsumer(
                bootstrap_servers=self._servers.split(","),
                enable_auto_commit=False,
                group_id=None,
                isolation_level="read_committed",
                max_poll_records=POLL_RECORDS,
            )
        except self._kafka.errors.KafkaError as error:
            raise UnavailableError(
                f"cannot connect to Kafka at {self._servers}: {error}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close(autocommit=False)

    def bounds(self, timeout: float) -> dict[int, tuple[int, int]]:
        """Of each partition its first offset, and the one after its last."""
        try:
            partitions = self._consumer.partitions_for_topic(self._topic)
            if not partitions:
                raise NotFoundError(f"Kafka at {self._servers} has no topic {self._topic!r}")
            found = [self._kafka.TopicPartition(self._topic, each) for each in sorted(partitions)]
            starts = self._consumer.beginning_offsets(found)
            ends = self._consumer.end_offsets(found)
        except self._kafka.errors.KafkaError as error:
            raise UnavailableError(f"Kafka at {self._servers} does not answer: {error}") from error
        return {each.partition: (starts[each], ends[each]) for each in found}

    def records(
        self, partition: int, start: int, end: int, subject: bytes, timeout: float
    ) -> Iterator[Records]:
        """The records of [start, end). Raises UnavailableError when none comes for `timeout`."""
        where = self._kafka.TopicPartition(self._topic, partition)
        self._consumer.assign([where])
        self._consumer.seek(where, start)
        while self._consumer.position(where) < end:
            before = self._consumer.position(where)
            found = self._consumer.poll(timeout_ms=round(timeout * 1000)).get(where, [])
            wanted = [record for record in found if record.offset < end]
            if wanted:
                yield _records(wanted, subject)
            elif self._consumer.position(where) == before:
                raise UnavailableError(
                    f"Kafka sends nothing of {self._topic}-{partition} from offset {before} on"
                )


def _records(records: Sequence[Any], subject: bytes) -> Records:
    return Records(
        [record.offset for record in records],
        [max(0, record.timestamp) * 1000 for record in records],
        [subject] * len(records),
        [record.key for record in records],
        [record.value for record in records],
        [header_block(record.headers, record.offset) for record in records],
    )


def header_block(headers: Sequence[tuple[str, bytes | None]], offset: int) -> bytes:
    """As NATS writes it. Raises InvalidRequestError for what a header of NATS cannot hold."""
    if not headers:
        return b""
    lines = [b"NATS/1.0"]
    for name, value in headers:
        encoded = name.encode()
        content = value or b""
        if not _NAME.fullmatch(encoded) or re.search(rb"[\r\n\0]", content):
            raise InvalidRequestError(
                f"header {name!r} of the record at offset {offset} cannot be a header of NATS: "
                "line breaks, NUL, and names of other than visible characters"
            )
        lines.append(encoded + b": " + content)
    return b"\r\n".join(lines) + b"\r\n\r\n"
