"""Key compaction: what a pass costs, and how much acknowledged ingest slows meanwhile.

One node. A stream is filled with `records` records of 100-byte values under `keys` keys in random
order, by the batched publisher. Then the load of `benchmarks.load` (plain messages of 128 bytes,
each acknowledged) runs against another stream of the node, second by second: first alone, then
while the first stream is compacted. Time and sizes are what `describe` says of the pass; memory is
the peak of the compaction process, as the kernel counts it.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.pairs import Progress
from benchmarks.processes import run_json
from benchmarks.report import Column, Report, environment, thousands
from benchmarks.this_server import STREAM, this_server
from jetstream_client import Client, CompactionInfo

VALUE = b"v" * 100
BATCH = 4_000
SEGMENTS = 20
"""What is in the last segment is not compacted: a twentieth of the stream."""
LOAD_BYTES = 128
BASELINE_SECONDS = 5
PASS_SECONDS_MAX = 1_800.0

TITLE = "one pass over one stream, beside acknowledged ingest into another"
COLUMNS = (
    Column("records", lambda r: f"{r['records']:,}"),
    Column("keys", lambda r: f"{r['keys']:,}"),
    Column("seconds", lambda r: f"{r['seconds']:.1f}"),
    Column("k records/s", lambda r: thousands(r["records"] / r["seconds"])),
    Column("MiB before", lambda r: f"{r['bytes_before'] / 2**20:,.0f}"),
    Column("MiB after", lambda r: f"{r['bytes_after'] / 2**20:,.0f}"),
    Column("peak MiB", lambda r: f"{r['peak_bytes'] / 2**20:,.0f}"),
    Column("k acked/s alone", lambda r: thousands(r["rate_alone"])),
    Column("k acked/s meanwhile", lambda r: thousands(r["rate_meanwhile"])),
)


class Pass(NamedTuple):
    """What was seen while the stream was compacted."""

    info: CompactionInfo
    peak_bytes: int
    rates: list[float]


def run(records: int, keys: int, progress: Progress) -> Report:
    with this_server("group") as addresses, Client(addresses.grpc) as client:
        segment_bytes = max(records * len(VALUE) // SEGMENTS, 1 << 16)
        client.create_stream("keyed", "keyed", segment_bytes=segment_bytes, flush="none")
        progress(f"storing {records:,} records")
        _fill(client, records, keys)
        alone = [_rate(addresses.nats_port) for _ in range(BASELINE_SECONDS)]
        progress(f"alone: {thousands(median(alone))} k acked/s; compacting")
        seen = _compact(client, addresses.pids[0], addresses.nats_port)
    result = {
        "records": records,
        "keys": keys,
        "seconds": seen.info.duration,
        "bytes_before": seen.info.bytes_before,
        "bytes_after": seen.info.bytes_after,
        "records_removed": seen.info.records_removed,
        "peak_bytes": seen.peak_bytes,
        "rate_alone": median(alone),
        "rate_meanwhile": median(seen.rates),
        "rates_meanwhile": seen.rates,
    }
    ours = f"values of {len(VALUE)} bytes; load of {LOAD_BYTES} bytes into {STREAM}, flush: group"
    return Report("compaction", ours, "none", [result], environment())


def _fill(client: Client, records: int, keys: int) -> None:
    draw = random.Random(keys)
    with client.publisher("keyed", linger=0.0, max_bytes=1 << 20) as publisher:
        for start in range(0, records, BATCH):
            count = min(BATCH, records - start)
            names = [b"key-%012d" % draw.randrange(keys) for _ in range(count)]
            publisher.publish_many([VALUE] * count, keys=names)


def _rate(nats_port: int) -> float:
    """Acknowledged messages a second, for about a second."""
    result = run_json(
        "benchmarks.load", "--port", str(nats_port), "--subject", SUBJECT,
        "--size", str(LOAD_BYTES), "--seconds", "1", "--warm-up", "0",
    )  # fmt: skip
    return float(result["messages"] / result["seconds"])


def _compact(client: Client, pid: int, nats_port: int) -> Pass:
    """Turn compaction on, and watch until the pass has ended. Raises TimeoutError."""
    client.alter_stream("keyed", compact=True)
    rates: list[float] = []
    peak = 0
    deadline = time.monotonic() + PASS_SECONDS_MAX
    while time.monotonic() < deadline:
        rate = _rate(nats_port)
        memory = _peak_of_worker(pid)
        if memory:
            peak = max(peak, memory)
            rates.append(rate)
        found = client.describe_stream("keyed").compaction
        if found is not None and found.ended_at is not None:
            return Pass(found, peak, rates or [rate])
    raise TimeoutError(f"the pass has not ended within {PASS_SECONDS_MAX:g} s")


def _peak_of_worker(pid: int) -> int:
    """The peak resident bytes of the process that compacts for that node; 0: there is none."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in task.joinpath("children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                status = Path(f"/proc/{child}/status").read_text()
            except FileNotFoundError:
                continue
            if b"compaction.worker" in command and "VmHWM" in status:
                return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return 0
