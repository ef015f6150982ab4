"""Spark with a principal of its own: by a token that is shown nowhere, or by a file with one."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_client import PermissionDeniedError
from pyspark_jetstream.options import write_options
from pyspark_jetstream.publish import Identity, publish
from tests.spark.conftest import EVENTS
from tests.spark.support import Collector, run_available
from tests.support.secured import SecuredServer, secured_server

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with secured_server(tmp_path_factory.mktemp("secured") / "data") as running:
        with running.client() as admin:
            admin.create_stream("orders", "orders")
            admin.create_stream("others", "others")
            admin.add_acl("user:spark", "read", stream="orders", subject="orders")
        yield running


@pytest.fixture(scope="module")
def token(secured: SecuredServer) -> str:
    with secured.client() as admin:
        return admin.create_token("user:spark").text


def shown(frame: DataFrame) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        frame.explain(mode="extended")
        frame.explain(mode="formatted")
    return out.getvalue()


def events_with(folder: Path, mark: str) -> str:
    """The event log, once it has something with that mark in it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        text = "".join(each.read_text(errors="replace") for each in folder.iterdir())
        if mark in text:
            return text
        assert time.monotonic() < deadline, f"no {mark} in the event log"
        time.sleep(0.2)


def files_in(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


def test_a_token_reads_and_writes_and_is_in_no_plan_event_checkpoint_or_error(
    spark: SparkSession, spark_said: Path, secured: SecuredServer, token: str, tmp_path: Path
) -> None:
    options = {"servers": secured.grpc, "token": token}
    rows = spark.createDataFrame([(b"one",), (b"two",)], "value binary").coalesce(1)
    rows.write.format("jetstream").mode("append").options(subject="orders", **options).save()

    frame = spark.read.format("jetstream").options(streams="orders", **options).load()
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"one", b"two"]
    plans = shown(frame)
    assert "jetstream" in plans.lower()

    stream = spark.readStream.format("jetstream").options(streams="orders", **options)
    stream = stream.option("startingOffsets", "earliest")
    sink = Collector()
    query = run_available(stream.load(), tmp_path / "checkpoint", sink)
    assert sink.offsets == [0, 1]
    progress = repr(query.recentProgress) + query._jsq.toString()

    errors = []
    for wrong in ({"streams": "others"}, {"streams": "orders", "token": token + "x"}):
        with pytest.raises(Exception, match=r"no such stream|the token is") as caught:
            spark.read.format("jetstream").options(**{**options, **wrong}).load().collect()
        errors.append(str(caught.value))

    marked = spark.range(1).selectExpr("id AS planted_mark")
    marked.collect()
    events = events_with(spark_said.parent / EVENTS, "planted_mark")
    assert "jetstream" in events  # The plans of the reads are in there.
    for place in (plans, progress, *errors, events, spark_said.read_text(errors="replace")):
        assert token not in place
    assert token.encode() not in files_in(tmp_path)


def test_a_token_file_is_read_where_the_tasks_run_and_may_be_replaced(
    spark: SparkSession, secured: SecuredServer, token: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token + "\n")
    options = {"servers": secured.grpc, "tokenFile": str(path)}
    rows = spark.createDataFrame([(b"file",)], "value binary").coalesce(1)
    rows.write.format("jetstream").mode("append").options(subject="orders", **options).save()
    with secured.client() as admin:
        path.write_text(admin.create_token("user:spark").text)
    frame = spark.read.format("jetstream").options(streams="orders", **options).load()
    assert b"file" in [bytes(row.value) for row in frame.collect()]


def test_without_a_token_the_error_says_what_to_do(
    spark: SparkSession, secured: SecuredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JETSTREAM_TOKEN", raising=False)
    reader = spark.read.format("jetstream").options(servers=secured.grpc, streams="orders")
    with pytest.raises(Exception, match="give a token"):
        reader.load().collect()


def test_a_write_past_nats_needs_the_right_write_and_the_error_names_it(
    secured: SecuredServer,
) -> None:
    with secured.client() as admin:
        admin.create_stream("straight", "straight.>")
        admin.add_acl("user:writer", "describe", stream="straight", subject="straight.>")
        token = admin.create_token("user:writer").text
        given = {"servers": secured.grpc, "token": token, "subject": "straight.eu"}
        options, rows = write_options({**given, "via": "direct"}), {"value": pa.array([b"one"])}
        with pytest.raises(PermissionDeniedError, match="--allow write --stream straight"):
            publish(options, iter([pa.record_batch(rows)]), Identity("write", 0))
        admin.add_acl("user:writer", "write", stream="straight", subject="straight.eu")
        assert publish(options, iter([pa.record_batch(rows)]), Identity("write", 0)) == (1, 0)
        assert admin.fetch("straight").values() == [b"one"]
