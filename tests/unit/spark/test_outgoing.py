"""In which order a task's rows leave, and what is awaited before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import pyspark_jetstream.publish as publish_module
import pyspark_jetstream.windows as windows_module
from jetstream_client import InvalidRequestError, MessageTooLargeError, UnavailableError
from jetstream_client.publishing.record_accumulator import RecordAccumulator, ends_of
from jetstream_client.values.types import Via
from pyspark_jetstream.ending import CutOffError
from pyspark_jetstream.publish import (
    BATCH_BYTES,
    BATCHES_KNOWN,
    IN_FLIGHT_BYTES,
    LONGEST_BYTES,
    WAITING_BYTES,
    Identity,
    _Outgoing,
)
from pyspark_jetstream.rows import by_subject
from pyspark_jetstream.transactions import Reached, Target
from pyspark_jetstream.windows import ROW_BYTES, windows

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

    def publish_many(self, values: list[bytes], *_: object, **__: object) -> list[Any]:
        if values[0].startswith(b"bad"):
            raise UnavailableError("the sender has ended")
        for value in values:
            self._sent.append(value)
            self._log.append(("sent", self._subject, value[:3]))
        return [SimpleNamespace(result=lambda: SimpleNamespace(duplicate=False, count=len(values)))]

    def close(self) -> None:
        if self._sent:
            self._log.append(("awaited", self._subject, self._sent[-1][:3]))


class Task:
    """A task that publishes rows, one by one."""

    def __init__(
        self, reached: Reached | None = None, via: Via = "nats", batch_bytes: int = NATS_BYTES
    ) -> None:
        """batch_bytes: of a batch that is taken."""
        self.log: list[tuple[str, str, bytes]] = []
        self.options: dict[str, Any] = {}
        self.producers: list[int] = []

        def publisher(subject: str, **options: Any) -> Publisher:
            self.options = options
            self.producers.append(options["producer_id"])
            return Publisher(self.log, subject, min(options["max_bytes"], batch_bytes))

        client: Any = SimpleNamespace(publisher=publisher)
        self.outgoing = _Outgoing(client, 30, Identity("query/7", 3), reached, via)

    def publish(self, value: bytes, subject: str = "a", *, has_headers: bool = False) -> None:
        headers = [[{"key": "Trace", "value": b"1"}] if has_headers else None]
        columns = {"value": pa.array([value]), "headers": pa.array(headers, HEADERS)}
        self.outgoing.publish(by_subject(pa.record_batch(columns), subject))

    def sent(self) -> list[bytes]:
        return [first for what, _, first in self.log if what == "sent"]


def test_rows_with_headers_are_sent_in_their_place_among_others() -> None:
    task = Task()
    for number in range(12):
        task.publish(b"%03d" % number, has_headers=number in (0, 3, 4, 11))
    task.outgoing.finish()
    assert task.sent() == [b"%03d" % number for number in range(12)]


def test_rows_are_sent_once_the_rows_before_them_are_acknowledged() -> None:
    """Else one that is refused for a moment would be stored after a later one."""
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
    subjects = [f"s{number}" for number in range(4)]
    for number in range(BATCHES_KNOWN + 1):
        for subject in subjects:
            task.publish(b"%03d" % number + LONG, subject)
    assert [what for what, *_ in task.log] == ["sent"] * len(subjects) * BATCHES_KNOWN
    for _ in range(BATCHES_KNOWN):
        task.publish(b"new" + LONG, "s2")
    assert [subject for what, subject, _ in task.log if what == "awaited"] == ["s2"]
    task.outgoing.finish()
    assert len(task.outgoing._sent) == 0


def test_what_waits_and_what_is_in_flight_is_bounded() -> None:
    task = Task()
    most = 0
    for number in range(3 * (WAITING_BYTES + IN_FLIGHT_BYTES) // BATCH_BYTES):
        task.publish(b"%03d" % number + LONG, f"s{number}")
        in_flight = sum(sent.size for sent in task.outgoing._sent.values())
        waiting = sum(five.size for five in task.outgoing._waiting.values())
        assert in_flight <= IN_FLIGHT_BYTES
        assert waiting <= WAITING_BYTES
        most = max(most, in_flight + waiting)
    assert most > (WAITING_BYTES + IN_FLIGHT_BYTES) * 0.9
    task.outgoing.finish()
    assert len(task.sent()) == number + 1


@pytest.mark.parametrize("seed", range(20))
def test_batches_and_their_producers_do_not_depend_on_how_spark_cuts_the_rows(seed: int) -> None:
    """Nor on where it cuts the rows off: the batches before are those of the whole partition."""
    random = Random(seed)
    rows = [
        (bytes(random.choice((1, 10, 200, 800))), f"s{random.choice((1, 1, 1, 2, 3))}")
        for _ in range(random.choice((50, 300, 900)))
    ]
    whole = pa.record_batch(dict(zip(("value", "subject"), zip(*rows, strict=True), strict=True)))

    def cut(stop: int) -> Iterator[pa.RecordBatch]:
        start = 0
        while start < stop:
            piece = whole.slice(start, min(stop - start, random.choice((1, 30, 100, 400))))
            yield piece
            start += len(piece)
        if stop < len(whole):
            raise CutOffError("as ending.whole does")

    def producers(stop: int) -> list[int]:
        task = Task()
        with suppress(CutOffError):
            for window in windows(cut(stop)):
                task.outgoing.publish(by_subject(window, ""))
            task.outgoing.finish()
        return task.producers

    with pytest.MonkeyPatch.context() as patch:  # All in a hundredth of its size.
        patch.setattr(windows_module, "ROWS", 100)
        patch.setattr(windows_module, "BYTES", 16_000)
        patch.setattr(publish_module, "BATCH_BYTES", 5_000)
        patch.setattr(publish_module, "WAITING_BYTES", 50_000)
        wanted = producers(len(rows))
        assert producers(len(rows)) == wanted
        cut_off = producers(random.randrange(len(rows)))
    assert cut_off == wanted[: len(cut_off)]


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
    assert task.log == [("sent", "a", b"000"), ("awaited", "a", b"000")]


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


def test_streams_that_have_all_rows_decide_as_before_when_those_of_others_leave() -> None:
    """Else the others' rows, which the server should recognise, would be in other batches."""
    subjects = [f"s{number}" for number in range(2 * WAITING_BYTES // BATCH_BYTES // BATCHES_KNOWN)]
    first, again = Task(), Task(Reached([Target(1, "s0", "s0", has_all=True)]))
    for task in (first, again):
        for number in range(BATCHES_KNOWN):
            for subject in subjects:
                task.publish(b"%03d" % number + LONG, subject)
        task.outgoing.finish()
    assert again.outgoing.duplicates == BATCHES_KNOWN
    assert set(again.producers) < set(first.producers)


def test_the_way_is_no_part_of_what_rows_are_recognised_by() -> None:
    tasks = [Task(via=via) for via in ("nats", "direct", "auto")]
    for task in tasks:
        task.publish(LONG)
        task.outgoing.finish()
    assert [task.options["via"] for task in tasks] == ["nats", "direct", "auto"]
    assert len({tuple(task.producers) for task in tasks}) == 1


@pytest.mark.parametrize(
    ("via", "advice"),
    [
        ("nats", "raise its max_payload to 1 MiB"),
        ("direct", "raise its ingest.batch_bytes_max"),
        ("auto", "raise ingest.batch_bytes_max, or NATS's max_payload, to 1 MiB"),
    ],
)
def test_who_takes_too_little_for_a_batch_is_named(via: Via, advice: str) -> None:
    task = Task(via=via, batch_bytes=BATCH_BYTES - 1)
    task.publish(b"short")
    with pytest.raises(InvalidRequestError, match=advice):
        task.outgoing.finish()
    assert task.sent() == []
