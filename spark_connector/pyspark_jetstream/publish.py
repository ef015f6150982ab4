"""A task's rows to NATS, acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from jetstream_client import AsyncClient
from pyspark_jetstream.options import WriteOptions
from pyspark_jetstream.rows import Rows, by_subject

WINDOW = 4_000
"""Publishes that wait for their acknowledgements at a time."""


@dataclass(frozen=True)
class Identity:
    """What a second attempt at the same rows has in common with the first.

    run: the streaming query and its batch, or the write. partition: Spark's number of the task.
    """

    run: str
    partition: int


def publish(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], identity: Identity
) -> tuple[int, int]:
    """How many rows were published, and how many of them were there already."""
    return asyncio.run(_publish(options, batches))


async def _publish(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    count = 0
    async with AsyncClient.from_config(options.config) as client:
        for batch in batches:
            for rows in by_subject(batch, options.subject):
                for start in range(0, len(rows), WINDOW):
                    await _window(client, rows, range(start, min(start + WINDOW, len(rows))))
                count += len(rows)
    return count, 0


async def _window(client: AsyncClient, rows: Rows, numbers: range) -> None:
    await asyncio.gather(
        *(
            client.publish(
                rows.subject,
                rows.values[number],
                key=None if rows.keys is None else rows.keys[number],
                headers=None if rows.headers is None else dict(rows.headers[number] or ()),
            )
            for number in numbers
        )
    )
