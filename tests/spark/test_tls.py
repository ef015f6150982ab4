"""Spark over TLS: driver and executors read and write with the files that the options name."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from examples.certificates.authority import Authority
from jetstream_client import Client, TlsConfig
from tests.support.tls import tls_server


def test_spark_writes_and_reads_over_mutual_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    cert, key = map(str, authority.client("spark"))
    ca = str(authority.certificate_file)
    server = tls_server(tmp_path, authority)
    server.start()
    options = {"servers": server.grpc, "tlsCa": ca, "tlsCertificate": cert, "tlsKey": key}
    try:
        with Client(server.grpc, tls=TlsConfig(ca, cert, key)) as client:
            client.create_stream("orders", "orders")
        rows = spark.createDataFrame([(b"one",), (b"two",)], "value binary").coalesce(1)
        rows.write.format("jetstream").mode("append").options(subject="orders", **options).save()
        frame = spark.read.format("jetstream").options(streams="orders", **options).load()
        assert {bytes(row.value) for row in frame.collect()} == {b"one", b"two"}
    finally:
        server.kill()
