"""Spark with a principal of its own by a client certificate: executors get the names of files, and
the key is shown nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import Client
from tests.spark.conftest import EVENTS
from tests.spark.support import Collector, run_available
from tests.spark.test_tokens import events_with, files_in, shown
from tests.support.secured import SecuredTlsServer, administered

Options = dict[str, str]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredTlsServer]:
    with administered(SecuredTlsServer(tmp_path_factory.mktemp("certified"))) as running:
        operator = running.tls(running.authority.client("operator"))
        with Client(running.grpc, token=running.admin, tls=operator) as admin:
            admin.create_stream("orders", "orders")
            admin.create_stream("others", "others")
            admin.add_acl("user:spark", "read", stream="orders", subject="orders")
        yield running


def options_of(server: SecuredTlsServer, name: str) -> Options:
    """What a job needs to be the principal `user:NAME`."""
    certificate, key = map(str, server.authority.client(name))
    ca = str(server.authority.certificate_file)
    return {
        "servers": server.grpc,
        "tlsCa": ca,
        "tlsCertificate": certificate,
        "tlsKey": key,
    }


def secret_of(options: Options) -> str:
    """A line of the key that nothing else has."""
    lines = Path(options["tlsKey"]).read_text().splitlines()
    assert "PRIVATE KEY" in lines[0]
    return max(lines[1:-1], key=len)


def test_a_certificate_reads_and_writes_and_its_key_is_in_no_plan_event_checkpoint_or_error(
    spark: SparkSession, spark_said: Path, certified: SecuredTlsServer, tmp_path: Path
) -> None:
    options = options_of(certified, "spark")
    rows = spark.createDataFrame([(b"one",), (b"two",)], "value binary").repartition(2)
    rows.write.format("jetstream").mode("append").options(subject="orders", **options).save()

    frame = spark.read.format("jetstream").options(streams="orders", **options).load()
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"one", b"two"]
    plans = shown(frame)
    assert "jetstream" in plans.lower()

    stream = spark.readStream.format("jetstream").options(streams="orders", **options)
    sink = Collector()
    query = run_available(
        stream.option("startingOffsets", "earliest").load(), tmp_path / "checkpoint", sink
    )
    assert sink.offsets == [0, 1]
    progress = repr(query.recentProgress) + query._jsq.toString()

    with pytest.raises(Exception, match="no such stream") as caught:
        spark.read.format("jetstream").options(streams="others", **options).load().collect()

    spark.range(1).selectExpr("id AS certificate_mark").collect()
    events = events_with(spark_said.parent / EVENTS, "certificate_mark")
    assert "jetstream" in events  # The plans of the reads are in there.
    secret = secret_of(options)
    said = spark_said.read_text(errors="replace")
    for place in (plans, progress, str(caught.value), events, said, certified.log_text):
        assert secret not in place
    assert secret.encode() not in files_in(tmp_path)


def test_another_certificate_is_another_principal(
    spark: SparkSession, certified: SecuredTlsServer
) -> None:
    options = options_of(certified, "nobody")
    with pytest.raises(Exception, match="no such stream"):
        spark.read.format("jetstream").options(streams="orders", **options).load().collect()
    rows = spark.createDataFrame([(b"no",)], "value binary").coalesce(1)
    with pytest.raises(Exception, match="orders"):
        rows.write.format("jetstream").mode("append").options(
            subject="orders", timeout="6s", **options
        ).save()
