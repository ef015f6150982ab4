"""What encryption at rest costs a node: one batch, encoded and decoded, with and without it.

In this process, without server, disk or network: the median of many rounds of each. A server
encodes when it appends; it decrypts when it is read from, and the reader decodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.pairs import Progress
from benchmarks.report import Column, Report, environment
from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.types import WallUs
from jetstream_server.log.encryption import Keys

ROUND = 20
TITLE = "microseconds of the processor for a batch"
COLUMNS = (
    Column("batch", lambda r: f"{r['records']} × {r['size']} B"),
    Column("encode", lambda r: f"{r['encode_us']:,.1f}"),
    Column("encrypt", lambda r: f"{r['encrypt_us']:,.1f}"),
    Column("decode", lambda r: f"{r['decode_us']:,.1f}"),
    Column("decrypt", lambda r: f"{r['decrypt_us']:,.1f}"),
    Column("encrypt, ns a message", lambda r: f"{1000 * r['encrypt_us'] / r['records']:,.0f}"),
    Column("decrypt, ns a message", lambda r: f"{1000 * r['decrypt_us'] / r['records']:,.0f}"),
)


def run(sizes: list[int], batches: list[int], seconds: float, progress: Progress) -> Report:
    """batches: numbers of records. seconds: of each figure."""
    results = [_measured(records, size, seconds) for size in sizes for records in batches]
    for result in results:
        progress(f"{result['records']} records of {result['size']} bytes")
    return Report(
        "encryption",
        "AES-256-GCM of each batch body, as the log does it",
        "the same batches without it: encode and decode",
        results,
        environment(),
    )


def _measured(records: int, size: int, seconds: float) -> dict[str, Any]:
    values = [os.urandom(size) for _ in range(records)]
    encryption = Keys([os.urandom(32)], os.urandom).of_stream(1)
    batch = encode(values, b"orders.eu")
    batch.stamp(0, 0, WallUs(0))
    plain, stored = batch.to_bytes(), encryption.encrypt(batch).to_bytes()

    def encoding() -> None:
        encode(values, b"orders.eu").stamp(0, 0, WallUs(0))

    return {
        "records": records,
        "size": size,
        "encode_us": _microseconds(encoding, seconds),
        "encrypt_us": _microseconds(lambda: encryption.encrypt(batch), seconds),
        "decode_us": _microseconds(lambda: Batch.decode(plain).values(), seconds),
        "decrypt_us": _microseconds(lambda: encryption.decrypt(stored), seconds),
    }


def _microseconds(work: Callable[[], object], seconds: float) -> float:
    """Of one call, the median of rounds of ROUND calls; of this process's processor time."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not taken:
        begun = time.process_time_ns()
        for _ in range(ROUND):
            work()
        taken.append((time.process_time_ns() - begun) / ROUND / 1000)
    return median(taken)
