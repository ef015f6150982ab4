"""Flights and their delays by carrier, once by Spark as the stream comes in, once directly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json
from pyspark.sql.functions import sum as total

from examples.flights.dataset import Flight
from examples.flights.replay import STREAM

FLIGHT = "carrier STRING, origin STRING, dep_delay INT"
"""What is wanted of a payload; from_json leaves the rest."""

PER_BATCH = 100_000


@dataclass(frozen=True)
class Delays:
    """Of a carrier's flights; minutes are those of all that left, early ones counting less."""

    flights: int
    minutes: int


def by_streaming(spark: SparkSession, servers: str, checkpoint: Path) -> dict[str, Delays]:
    """Everything that is in the stream now, in as many micro-batches as it takes."""
    stream = (
        spark.readStream.format("jetstream")
        .option("servers", servers)
        .option("streams", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .load()
    )
    flights = stream.select(from_json(col("value").cast("string"), FLIGHT).alias("flight"))
    delays = flights.groupBy("flight.carrier").agg(
        count("*").alias("flights"), total("flight.dep_delay").alias("minutes")
    )
    latest: dict[str, Delays] = {}

    def keep(table: DataFrame, _: int) -> None:
        for row in table.collect():
            latest[row.carrier] = Delays(row.flights, row.minutes or 0)

    query = (
        delays.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return latest


def directly(source: Sequence[Flight]) -> dict[str, Delays]:
    """The same from the source itself."""
    flights: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for flight in source:
        flights[flight.carrier] += 1
        minutes[flight.carrier] += json.loads(flight.payload)["dep_delay"] or 0
    return {carrier: Delays(flights[carrier], minutes[carrier]) for carrier in flights}


def write_back(spark: SparkSession, servers: str, found: dict[str, Delays], stream: str) -> None:
    """One record for each carrier, on a subject of its own, the carrier as key."""
    rows = [(carrier, each.flights, each.minutes) for carrier, each in sorted(found.items())]
    table = spark.createDataFrame(rows, "carrier STRING, flights LONG, minutes LONG")
    records = table.selectExpr(
        "carrier AS key", f"concat('{stream}.', carrier) AS subject", "to_json(struct(*)) AS value"
    )
    records.coalesce(1).write.format("jetstream").mode("append").option("servers", servers).save()
