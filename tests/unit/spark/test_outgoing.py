"""In which order a task's rows leave, and what is awaited before."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client import MessageTooLargeError, UnavailableError
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
NATS_BYTES = 2 * BATCH_BYTES

LONG = bytes(BATCH_BYTES)
"""A row that has a batch for itself."""


class Publisher:
    """Notes what is sent and when it is awaited, as `(what, subject, first bytes)`."""

    def __init__(self, log: list[tuple[str, str, bytes]], subject: str, batch_bytes: int) -> None:
        self.batch_bytes = min(batch_bytes, NATS_BYTES)
        self._log = log
        self._subject = subject
        self._sent: list[bytes] = []

    def send(self, value: bytes, *_: object) -> Any:
        if value.startswith(b"bad"):
            raise UnavailableError("the sender has ended")
        self._sent.append(value)
        self._log.append(("sent", self._subject, value[:3]))
        return SimpleNamespace(result=lambda: SimpleNamespace(duplicate=False), hurry=lambda: None)

    def publish_many(self, values: list[bytes], _: object) -> list[Any]:
        parts = [self.send(value) for value in values]
        return [SimpleNamespace(result=lambda: SimpleNamespace(duplicate=False, count=len(parts)))]

    def close(self) -> None:
        if self._sent:
            self._log.append(("awaited", self._subject, self._sent[-1][:3]))


class Task:
    """A task that publishes rows, one by one."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, bytes]] = []
        self.options: dict[str, Any] = {}

        def publisher(subject: str, **options: Any) -> Publisher:
            self.options = options
            return Publisher(self.log, subject, options["max_bytes"])

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


def publish_all(task: Task, *values: bytes, has_headers: bool = False) -> None:
    for value in values:
        task.publish(value, has_headers=has_headers)
    task.outgoing.finish()


@pytest.mark.parametrize("has_headers", [False, True])
def test_the_longest_row_alone_decides_how_long_batches_are(has_headers: bool) -> None:
    """Not what NATS accepts."""
    task = Task()
    publish_all(task, b"0", b"1" + LONG, has_headers=has_headers)
    longest = task.options["max_bytes"]
    block = b"NATS/1.0\r\nTrace: 1\r\n\r\n" if has_headers else b""
    for bytes_max, fits in ((longest, True), (longest - 1, False)):
        buffer = buffer_of(task.options | {"max_bytes": bytes_max})
        with nullcontext() if fits else pytest.raises(MessageTooLargeError):
            buffer.put(b"1" + LONG, None, block)
    publish_all(task, b"2", has_headers=has_headers)
    assert task.options["max_bytes"] == BATCH_BYTES


@pytest.mark.parametrize("has_headers", [False, True])
def test_no_row_of_five_batches_is_sent_if_one_of_them_is_too_long(has_headers: bool) -> None:
    task = Task()
    task.publish(b"000" + LONG, "other")
    task.outgoing.finish()
    with pytest.raises(MessageTooLargeError, match=f"than a batch may hold: {NATS_BYTES}"):
        publish_all(task, LONG, bytes(NATS_BYTES), has_headers=has_headers)
    assert task.sent() == [b"000"]


@pytest.mark.parametrize("has_headers", [False, True])
def test_batches_before_a_failure_are_awaited_and_none_is_sent_that_lacks_rows(
    has_headers: bool,
) -> None:
    task = Task()
    with pytest.raises(UnavailableError):
        publish_all(task, b"000" + LONG, b"bad" + LONG, has_headers=has_headers)
    task.outgoing.abandon()
    awaited = [] if has_headers else [("awaited", "a", b"000")]
    assert task.log == [("sent", "a", b"000"), *awaited]


def buffer_of(options: dict[str, Any]) -> RecordAccumulator:
    return RecordAccumulator(
        batch_bytes=options["max_bytes"],
        buffer_bytes=options["buffer_bytes"],
        linger=options["linger"],
        delivery_timeout=30,
        clock=time.monotonic,
        wake=lambda: None,
    )


def test_no_batch_is_cut_because_the_buffer_is_full() -> None:
    """Then there would be more batches than the server remembers of a producer."""
    task = Task()
    with pytest.raises(MessageTooLargeError):
        publish_all(task, bytes(LONGEST_BYTES))
    buffer = buffer_of(task.options)
    for _ in range(BATCHES_KNOWN - 1):
        assert buffer.put(bytes(LONGEST_BYTES - ROW_BYTES), None, b"") is not None
    short: list[bytes | None] = [bytes(10_000)] * 50
    found = buffer.put_many(short, None, ends_of(short, None), 0)
    assert found is not None
    assert found[1:] == (0, len(short))
