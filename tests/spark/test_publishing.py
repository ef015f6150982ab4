"""A task's rows, published by a first attempt that dies somewhere and by a second one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jetstream_client import Client, InvalidRequestError, MessageTooLargeError
from pyspark_jetstream import windows
from pyspark_jetstream.options import write_options
from pyspark_jetstream.publish import BATCH_BYTES, Identity, publish
from tests.spark.support import Log
from tests.support.nats_server import NatsServer
from tests.support.server import running_server

ROW_BYTES = 50_000
ROWS = 200
"""Some twenty batches, of four producers."""


FIVE = 5 * BATCH_BYTES // ROW_BYTES
"""Rows that may wait until there are enough for a producer."""

WINDOW = windows.BYTES // ROW_BYTES + 1
"""Rows that may wait until there are enough for a window."""


class Died(Exception):
    pass


def batches(log: Log, rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows in record batches of 40, or only the first ones before the task dies."""
    assert ROWS * ROW_BYTES > 15 * BATCH_BYTES
    for start in range(0, ROWS, 40):
        if rows is not None and start >= rows:
            raise Died
        values = [b"%06d" % number + bytes(ROW_BYTES) for number in range(start, start + 40)]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


def with_headers(start: int, stop: int, *, null: bool = False) -> pa.RecordBatch:
    values = [b"%06d" % number + bytes(ROW_BYTES) for number in range(start, stop)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    one = None if null else [{"key": "Trace", "value": b"t"}]
    headers = pa.array([one] * len(values), kind)
    return pa.record_batch({"value": pa.array(values, pa.binary()), "headers": headers})


def stored(log: Log) -> list[int]:
    found = log.client.fetch(log.name, max_bytes=64 << 20)
    return [int((value or b"")[:6]) for value in found.values()]


@pytest.mark.parametrize("before", [0, 40, 120, 160])
def test_what_an_attempt_that_died_has_published_is_not_published_again(
    log: Log, before: int
) -> None:
    options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
    identity = Identity("query/7", 3)
    with pytest.raises(Died):
        publish(options, batches(log, before), identity)
    first = stored(log)
    assert first == list(range(len(first)))
    assert before - FIVE - WINDOW < len(first) <= before
    assert publish(options, batches(log), identity) == (ROWS, len(first))
    assert stored(log) == list(range(ROWS))
    assert publish(options, batches(log), identity) == (ROWS, ROWS)
    assert stored(log) == list(range(ROWS))


def test_rows_are_stored_in_their_order_if_only_some_record_batches_have_headers(log: Log) -> None:
    options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
    rows = [with_headers(number, number + 1, null=number % 3 > 0) for number in range(20)]
    for duplicates in (0, 20):
        assert publish(options, iter(rows), Identity("query/7", 3)) == (20, duplicates)
        assert stored(log) == list(range(20))


def test_rows_that_come_in_another_order_the_second_time_are_not_lost(log: Log) -> None:
    options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
    identity = Identity("query/7", 3)
    with pytest.raises(Died):
        publish(options, batches(log, 120), identity)
    assert stored(log)
    publish(options, reversed(list(batches(log))), identity)
    assert set(stored(log)) == set(range(ROWS))


def test_two_writes_of_a_batch_of_a_query_are_not_taken_for_one_another(log: Log) -> None:
    options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
    identity = Identity("query/7", 3)
    first, *others = batches(log)
    assert publish(options, iter([first]), identity) == (40, 0)
    assert publish(options, iter(others), identity) == (ROWS - 40, 0)
    assert publish(options, iter([first]), identity) == (40, 40)
    assert sorted(stored(log)) == list(range(ROWS))


def test_the_next_batch_of_a_query_is_not_taken_for_the_one_before(log: Log) -> None:
    options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
    for batch in (7, 8):
        assert publish(options, batches(log), Identity(f"query/{batch}", 3)) == (ROWS, 0)
    assert stored(log) == 2 * list(range(ROWS))


def test_rows_that_come_again_by_another_way_are_not_published_again(log: Log) -> None:
    """And the ways past NATS need none."""
    common, identity = {"servers": log.grpc, "subject": f"{log.name}.x"}, Identity("query/7", 3)
    ways = [{"via": "direct"}, {"via": "auto", "nats": "nats://127.0.0.1:1"}, {"via": "nats"}]
    for duplicates, way in zip((0, ROWS, ROWS), ways, strict=True):
        options = write_options({**common, **way})
        assert publish(options, batches(log), identity) == (ROWS, duplicates)
        assert stored(log) == list(range(ROWS))


@pytest.mark.parametrize("null", [False, True], ids=["headers", "no headers"])
def test_rows_that_come_again_when_nats_takes_longer_ones_are_all_stored(
    tmp_path: Path, null: bool
) -> None:
    with (
        NatsServer("max_payload: 1MB") as nats,
        running_server(tmp_path / "data", "--nats", nats.url) as server,
        Client(server.grpc, timeout=60) as client,
    ):
        log = Log.create(server.grpc, client, "raised")
        options = {"servers": log.grpc, "subject": f"{log.name}.x"}
        short = with_headers(0, FIVE, null=null)
        long = pa.record_batch(
            [pa.array([b"%06d" % FIVE + bytes(2_000_000)]), short["headers"][:1]],
            schema=short.schema,
        )
        rows = [short[:-10], long, short[-10:]]
        with pytest.raises(MessageTooLargeError, match=r"a record of 20000.. bytes"):
            publish(write_options(options), iter(rows), Identity("query/7", 3))
        nats.stop()
        nats.config = "max_payload: 6MB"
        nats.start()
        options["timeout"] = "31"  # For another client, as of another executor.
        publish(write_options(options), iter(rows), Identity("query/7", 3))
        assert stored(log) == [*range(FIVE - 10), FIVE, *range(FIVE - 10, FIVE)]


def test_a_nats_server_that_takes_too_little_is_refused_before_the_first_row(
    tmp_path: Path,
) -> None:
    """A batch cut in two would make more than the five that the server remembers."""
    with (
        NatsServer("max_payload: 256KB") as nats,
        running_server(tmp_path / "data", "--nats", nats.url) as server,
        Client(server.grpc, timeout=60) as client,
    ):
        log = Log.create(server.grpc, client, "small")
        options = write_options({"servers": log.grpc, "subject": f"{log.name}.x"})
        for columns in ({"value": [b"short"]}, with_headers(0, 1).to_pydict()):
            rows = pa.record_batch(columns, with_headers(0, 0).select(list(columns)).schema)
            with pytest.raises(InvalidRequestError, match="raise its max_payload to 1 MiB"):
                publish(options, iter([rows]), Identity("query/7", 3))
        assert stored(log) == []
