"""The example's answer is the direct one, for made-up flights instead of the download."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.flights import replay
from examples.flights.dataset import Flight
from examples.spark import delays
from jetstream_client import AsyncClient, Client
from tests.spark.support import needs_admission_control
from tests.support.server import ServerProcess


def made_up(count: int) -> list[Flight]:
    return [
        Flight(
            carrier,
            f"flights.EWR.{carrier}",
            json.dumps({"carrier": carrier, "dep_delay": None if n % 9 == 0 else n - 50}).encode(),
        )
        for n in range(count)
        for carrier in ("UA", "B6")
    ]


@needs_admission_control
def test_streaming_over_the_flights_gives_the_direct_answer(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delays, "PER_BATCH", 900)
    source = made_up(1_000)

    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as publisher:
            await publisher.create_stream(replay.STREAM, subject=replay.SUBJECT)
            await publisher.create_stream("delays", subject="delays.>")
            await replay.publish(publisher, source, lambda _: None)

    asyncio.run(fill())
    found = delays.by_streaming(spark, server.grpc, tmp_path)
    assert found == delays.directly(source)
    assert len(list((tmp_path / "commits").glob("[0-9]*"))) >= 3
    delays.write_back(spark, server.grpc, found, "delays")
    written = {message.key: json.loads(message.value or b"") for message in client.fetch("delays")}
    assert written[b"UA"] == {
        "carrier": "UA",
        "flights": 1_000,
        "minutes": found["UA"].minutes,
    }
