"""In which order a task's rows leave, and what is awaited before."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from jetstream_client.publishing.record_accumulator import RecordAccumulator, ends_of
from pyspark_jetstream.publish import (
    BATCH_BYTES,
    BATCHES_KNOWN,
    LONGEST_BYTES,
    OPEN_MAX,
    Identity,
    _Outgoing,
)
from pyspark_jetstream.rows import ROW_BYTES, by_subject

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LONG = bytes(BATCH_BYTES)
"""A row that has a batch for itself."""


class Publisher:
    """Notes what is sent and when it is awaited, as `(what, subject, first bytes)`."""

    batch_bytes = BATCH_BYTES

    def __init__(self, log: list[tuple[str, str, bytes]], subject: str) -> None:
        self._log = log
        self._subject = subject
        self._sent: list[bytes] = []

    def send(self, value: bytes, *_: object) -> Any:
        self._sent.append(value)
        self._log.append(("sent", self._subject, value[:3]))
        return SimpleNamespace(result=lambda: SimpleNamespace(duplicate=False), hurry=lambda: None)

    def publish_many(self, values: list[bytes], _: object) -> list[Any]:
        parts = [self.send(value) for value in values]
        return [SimpleNamespace(result=lambda: SimpleNamespace(duplicate=False, count=len(parts)))]

    def close(self) -> None:
        self._log.append(("awaited", self._subject, self._sent[-1][:3]))


class Task:
    """A task that publishes rows, one by one."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, bytes]] = []
        self.options: dict[str, Any] = {}

        def publisher(subject: str, **options: Any) -> Publisher:
            self.options = options
            return Publisher(self.log, subject)

        client: Any = SimpleNamespace(publisher=publisher)
        self.outgoing = _Outgoing(client, 30, Identity("query/7", 3))

    def publish(self, value: bytes, subject: str = "a", *, has_headers: bool = False) -> None:
        headers = [[{"key": "Trace", "value": b"1"}] if has_headers else None]
        columns = {"value": pa.array([value]), "headers": pa.array(headers, HEADERS)}
        for rows in by_subject(pa.record_batch(columns), subject):
            self.outgoing.publish(rows)

    def sent(self) -> list[bytes]:
        return [first for what, _, first in self.log if what == "sent"]


def test_rows_with_headers_are_sent_in_their_place_among_others() -> None:
    task = Task()
    for number in range(12):
        task.publish(b"%03d" % number, has_headers=number in (0, 3, 4, 11))
    task.outgoing.finish()
    assert task.sent() == [b"%03d" % number for number in range(12)]


def test_rows_are_sent_once_the_rows_before_them_are_acknowledged() -> None:
    """Else one that is refused for a moment would be stored behind a later one."""
    task = Task()
    for number in range(3 * BATCHES_KNOWN):
        task.publish(b"%03d" % number + LONG)
    task.outgoing.finish()
    waits = [index for index, (what, *_) in enumerate(task.log) if what == "awaited"]
    assert task.sent() == [b"%03d" % number for number in range(3 * BATCHES_KNOWN)]
    assert [task.log[index][2] for index in waits] == [b"004", b"009", b"014"]
    assert waits == [BATCHES_KNOWN, 2 * BATCHES_KNOWN + 1, 3 * BATCHES_KNOWN + 2]


def test_other_subjects_are_not_waited_for() -> None:
    task = Task()
    for number in range(BATCHES_KNOWN):
        for subject in range(OPEN_MAX):
            task.publish(b"%03d" % number + LONG, f"s{subject}")
    assert [what for what, *_ in task.log] == ["sent"] * OPEN_MAX * BATCHES_KNOWN
    for _ in range(BATCHES_KNOWN):
        task.publish(b"new" + LONG, "s5")
    assert [subject for what, subject, _ in task.log if what == "awaited"] == ["s5"]
    task.outgoing.finish()
    assert len(task.outgoing._sent) == 0


def test_no_batch_is_cut_because_the_buffer_is_full() -> None:
    """Then there would be more batches than the server remembers of a producer."""
    task = Task()
    task.publish(b"any")
    task.outgoing.finish()
    buffer = RecordAccumulator(
        batch_bytes=task.options["max_bytes"],
        buffer_bytes=task.options["buffer_bytes"],
        linger=task.options["linger"],
        delivery_timeout=30,
        clock=time.monotonic,
        wake=lambda: None,
    )
    for _ in range(BATCHES_KNOWN - 1):
        assert buffer.put(bytes(LONGEST_BYTES - ROW_BYTES), None, b"") is not None
    short: list[bytes | None] = [bytes(10_000)] * 50
    found = buffer.put_many(short, None, ends_of(short, None), 0)
    assert found is not None
    assert found[1:] == (0, len(short))
