"""What the checks of security cost on fetches, end to end: processor time of the node for a fetch.

Two nodes hold the same stream. One has security on, with rules, and the client shows it a token;
the other lets everybody in. The client fetches the same records again and again over one connection
to the data plane, a few requests at a time. The sides take turns, and begin in turn. Each pair of
runs gives a ratio; the median of the ratios counts, so that other work on the machine hits both
sides alike. Processor time is the kernel's, in nanoseconds, of all threads of the node.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.pairs import Progress, costs
from benchmarks.processes import HOST, data_folder, executable, free_port_base, server
from benchmarks.report import Column, Report, environment
from benchmarks.this_server import PORTS, STREAM
from benchmarks.usage import exact_processor_seconds
from jetstream_client import Client
from jetstream_client.transport.data_connection import DataConnection
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

VALUE = b"x" * 1024
BATCH = 100
RECORDS = 2_000
AT_ONCE = 4
RULES = 50
"""A deny rule and allow rules for other streams, beside the one that counts."""
READER = "user:reader"
WARM_UP = 500
_TIMEOUT_SECONDS = 60.0

TITLE = "processor time of a node for a fetch, with security off and on"
COLUMNS = (
    Column("bytes of a fetch", lambda r: f"{r['bytes']:,}"),
    Column("off, µs", lambda r: f"{r['off_us']:,.1f}"),
    Column("on, µs", lambda r: f"{r['on_us']:,.1f}"),
    Column("checks cost", lambda r: f"{r['cost_percent']:+.1f} %"),
    Column("from", lambda r: f"{r['cost_percent_least']:+.1f} %"),
    Column("to", lambda r: f"{r['cost_percent_most']:+.1f} %"),
)


class Side(NamedTuple):
    """data: the address of the data plane. token: "" without security."""

    data: str
    pid: int
    token: str


def run(sizes: list[int], fetches: int, pairs: int, progress: Progress) -> Report:
    """sizes: bytes that a fetch asks for; it gets at least one batch. fetches: of each run."""
    with (
        data_folder() as folder,
        _node(folder / "off", secured=False) as off,
        _node(folder / "on", secured=True) as on,
    ):
        results = [_measured(off, on, size, fetches, pairs, progress) for size in sizes]
    return Report(
        "checks",
        f"security on: a token, {RULES + 2} rules",
        "security off",
        results,
        environment(),
    )


def _measured(
    off: Side, on: Side, size: int, fetches: int, pairs: int, progress: Progress
) -> dict[str, float]:
    taken: dict[Side, list[float]] = {off: [], on: []}
    length = 0
    for pair in range(pairs):
        for side in (off, on) if pair % 2 == 0 else (on, off):
            microseconds, length = asyncio.run(_fetching(side, size, fetches))
            taken[side].append(microseconds)
        progress(
            f"{length:,} bytes, {pair + 1}/{pairs}: {taken[off][-1]:.1f} µs off, "
            f"{taken[on][-1]:.1f} µs on"
        )
    return {"bytes": length} | costs(taken[off], taken[on])


async def _fetching(side: Side, size: int, fetches: int) -> tuple[float, int]:
    """Processor time of the node for one fetch, in µs; and the bytes of one."""
    connection = await DataConnection.open(side.data, _TIMEOUT_SECONDS, side.token)
    request = pb.DataFetchRequest(
        stream=common_pb2.StreamRef(name=STREAM), offset=0, bytes_max=size
    )

    async def fetch(count: int) -> int:
        length = 0
        for _ in range(count):
            length = len((await connection.fetch(request, _TIMEOUT_SECONDS)).batches)
        return length

    length = await fetch(WARM_UP)
    each = -(-fetches // AT_ONCE)
    begun = exact_processor_seconds(side.pid)
    await asyncio.gather(*(fetch(each) for _ in range(AT_ONCE)))
    taken = exact_processor_seconds(side.pid) - begun
    await connection.close()
    return taken * 1e6 / (each * AT_ONCE), length


@contextmanager
def _node(folder: Path, *, secured: bool) -> Iterator[Side]:
    """A node with a full stream: a batch of one record, and larger ones after it."""
    folder.mkdir()
    base = free_port_base(PORTS)
    config = folder / "node.yaml"
    settings: dict[str, object] = {"security": {"enabled": True}, "credential": "of this benchmark"}
    config.write_text(yaml.safe_dump(settings if secured else {}))
    command = [
        executable("jetstream-server"), "--dev", "--config", str(config),
        "--data", str(folder / "data"), "--port-base", str(base), "--log-level", "warning",
    ]  # fmt: skip
    with server(command, base, folder) as pid:
        admin = _administrator(folder, base, settings) if secured else ""
        with Client(f"{HOST}:{base}", token=admin, timeout=30) as client:
            client.create_stream(STREAM, subject="bench", flush="none")
            client.publish("bench", VALUE)
            with client.publisher("bench") as publisher:
                for _ in range(RECORDS // BATCH):
                    publisher.publish_many([VALUE] * BATCH)
                    publisher.flush()
            token = _reader(client) if secured else ""
        yield Side(f"{HOST}:{base + 1}", pid, token)


def _administrator(folder: Path, base: int, settings: dict[str, object]) -> str:
    """The first administrator's token, as its command makes it on the node's machine."""
    names = ("grpc", "data", "raft", "http")
    node = {"id": 0, **{name: f"{HOST}:{base + at}" for at, name in enumerate(names)}}
    file = folder / "bootstrap.yaml"
    file.write_text(yaml.safe_dump({**settings, "nodes": [node]}))
    command = [executable("jetstream-server"), "token", "--bootstrap", "--config", str(file)]
    done = subprocess.run([*command, "--node-id", "0"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _reader(admin: Client) -> str:
    """The token of a principal that may only read."""
    admin.add_acl(READER, "read", stream=STREAM, subject="bench")
    admin.add_acl("*", "purge", allow=False, stream="audit*")
    for number in range(RULES):
        admin.add_acl(READER, "read", stream=f"other-{number}", subject=f"other.{number}.>")
    return admin.create_token(READER).text
