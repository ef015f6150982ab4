"""Recovery: a start after kill -9 with an unflushed log, against just reading its bytes.

The log is one segment that no checkpoint covers, so the start checks every byte of it. From time
and processor time of that start those of the next one are taken off, which comes after a clean stop
and checks nothing. Reading: one process that reads the same file into one buffer. Both find the
file in the page cache.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.pairs import Progress
from benchmarks.processes import HOST, data_folder, executable, free_port_base, run_json, server
from benchmarks.report import Column, Report, environment, times
from benchmarks.this_server import PORTS, STREAM
from benchmarks.usage import processor_seconds
from jetstream_client import Client

BATCH_BYTES = 1 << 20
SEGMENT = "2GiB"

TITLE = "a start after kill -9, for each unflushed GB of log, medians"
COLUMNS = (
    Column("value", lambda r: f"{r['size']} B"),
    Column("GB", lambda r: f"{r['gigabytes']:.2f}"),
    Column("ours: s/GB", lambda r: f"{r['ours_seconds']:.2f}"),
    Column("reading: s/GB", lambda r: f"{r['peer_seconds']:.2f}"),
    Column("ratio", lambda r: times(r["ratio"])),
    Column("ours: processor s/GB", lambda r: f"{r['ours_processor_seconds']:.2f}"),
    Column("reading", lambda r: f"{r['peer_processor_seconds']:.2f}"),
    Column("ratio", lambda r: times(r["processor_ratio"])),
    Column("a clean start: s", lambda r: f"{r['clean_seconds']:.2f}"),
)

Found = dict[str, float]


def run(sizes: list[int], megabytes: int, pairs: int, progress: Progress) -> Report:
    """sizes: of the values. megabytes: of values in the log."""
    results = []
    for size in sizes:
        runs = []
        for number in range(pairs):
            runs.append(_measure(size, megabytes * 1_000_000 // size))
            told = ", ".join(f"{name} {value:.2f}" for name, value in runs[-1].items())
            progress(f"{size} B, {number + 1} of {pairs}: {told}")
        results.append(_result(size, runs))
    return Report(
        "recover",
        "this server: a start after kill -9, less the same start after a clean stop",
        "one process that reads the same file",
        results,
        environment(),
    )


def _measure(size: int, messages: int) -> Found:
    with data_folder() as folder:
        file = folder / "node.yaml"
        file.write_text(yaml.safe_dump({"log": {"segment_bytes": SEGMENT}}))
        base = free_port_base(PORTS)
        command = [
            executable("jetstream-server"), "--dev", "--config", str(file),
            "--data", str(folder / "data"), "--port-base", str(base), "--log-level", "warning",
        ]  # fmt: skip
        with server(command, base, folder) as pid:
            _fill(f"{HOST}:{base}", size, messages)
            os.kill(pid, signal.SIGKILL)
        segments = sorted((folder / "data" / "streams").rglob("*.log"))
        segment = max(segments, key=lambda each: each.stat().st_size)
        found = {"bytes": float(segment.stat().st_size)}
        read = run_json("benchmarks.recover", str(segment))
        found |= {"read_seconds": read["seconds"], "read_processor": read["processor_seconds"]}
        for start in ("scan", "clean"):
            begun = time.perf_counter()
            with server(command, base, folder) as pid:
                found[f"{start}_seconds"] = time.perf_counter() - begun
                found[f"{start}_processor"] = processor_seconds([pid])
                with Client(f"{HOST}:{base}") as client:
                    kept = client.describe_stream(STREAM).log_end_offset
        if kept != messages:
            raise RuntimeError(f"{messages} messages were stored, {kept} are there")
        return found


def _fill(grpc: str, size: int, messages: int) -> None:
    values = [os.urandom(size) for _ in range(max(1, min(messages, BATCH_BYTES // size)))]
    with Client(grpc, timeout=30) as client:
        client.create_stream(STREAM, subject="bench", flush="none")
        with client.publisher("bench") as publisher:
            for first in range(0, messages, len(values)):
                publisher.publish_many(values[: messages - first])


def _result(size: int, runs: list[Found]) -> dict[str, Any]:
    """Seconds for each GB."""

    def middle(of: str, less: str = "") -> float:
        return median((run[of] - (run[less] if less else 0.0)) * 1e9 / run["bytes"] for run in runs)

    ours, peer = middle("scan_seconds", "clean_seconds"), middle("read_seconds")
    ours_used, peer_used = middle("scan_processor", "clean_processor"), middle("read_processor")
    return {
        "size": size,
        "gigabytes": runs[0]["bytes"] / 1e9,
        "ours_seconds": ours,
        "peer_seconds": peer,
        "ratio": round(ours / peer, 2),
        "ours_processor_seconds": ours_used,
        "peer_processor_seconds": peer_used,
        "processor_ratio": round(ours_used / peer_used, 2),
        "clean_seconds": median(run["clean_seconds"] for run in runs),
        "runs": runs,
    }


def read(file: Path) -> Found:
    """Read the whole file into one buffer, again and again."""
    buffer = bytearray(BATCH_BYTES)
    begun, processor = time.perf_counter(), time.process_time()
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass
    return {
        "seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - processor,
    }


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(read(Path(sys.argv[1]))))
