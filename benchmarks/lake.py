"""The lake: what it costs to copy there and to read from there, and whether all readers agree.

Three nodes, and a folder as the store. A stream with one replica gets `records` records of JSON,
and is read from the disk, and copied to a second node. Then it is given to the lake, and only the
last tenth stays on the disk, while acknowledged messages go to another stream of the same node
(`benchmarks.load`, second by second). The same reads and the same copy follow, and then the SDK,
`jetstream sql`, PyIceberg, Polars and DuckDB each tell count and digest of what they read. In the
end a table gets a commit an hour for `days` days, with objects that are not there: what of its
metadata is written anew with each commit, and what a sweep would leave.

Processor time is that of the process that copies, or of the node.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.request import urlopen

import duckdb
import polars
import pyarrow as pa
import yaml
from pyiceberg.table import StaticTable

from benchmarks.compaction import BASELINE_SECONDS, LOAD_BYTES
from benchmarks.jetstream_peer import SUBJECT
from benchmarks.pairs import Progress
from benchmarks.processes import data_folder, free_port_base, run_json
from benchmarks.report import Column, Report, environment, thousands
from benchmarks.this_server import STREAM
from benchmarks.usage import exact_processor_seconds, processor_seconds, resident_bytes
from examples.cluster.local import (
    NATS_PORT,
    PORTS_BETWEEN_NODES,
    LocalCluster,
    node_name,
)
from jetstream_client import Client
from jetstream_client.sql.stream_tables import StreamTable as QueriedStream
from jetstream_server.lake.parquet_object import ObjectFacts
from jetstream_server.lake.stores import StoreMissingError
from jetstream_server.lake.table import DAY_US, StoredObject, StreamTable

NODES = 3
NAME = "readings"
BATCH = 1_000
SHARE = 10
"""So many parts has the stream, and the last one stays on the disk."""
SEGMENTS = 20
FETCH_BYTES = 1 << 20
UPLOAD_BYTES_PER_SECOND = 16 << 20
"""Few enough that ingest is measured beside it for some seconds."""
PATIENCE_SECONDS = 120.0
COLD_READS = 5
HOUR_US = DAY_US // 24

TITLE = "a stream whose old records are in the lake"
COLUMNS = (Column("what", lambda r: r["what"]), Column("figure", lambda r: r["figure"]))


class Digest(NamedTuple):
    """Of records: how many, the sum of their offsets, and that of their values' CRC-32."""

    records: int
    offsets: int
    values: int

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], end: int) -> Digest:
        """Of the records below `end`."""
        count = offsets = values = 0
        for batch in batches:
            pairs = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            for offset, value in pairs:
                if offset < end:
                    count, offsets = count + 1, offsets + offset
                    values += zlib.crc32(value)
        return cls(count, offsets, values)


class Ground(NamedTuple):
    cluster: LocalCluster
    client: Client
    node: int
    """That leads both streams."""
    nats_port: int

    @property
    def pid(self) -> int:
        return self.cluster.pids()[node_name(self.node)]

    @property
    def http(self) -> str:
        return f"http://{self.cluster.config['nodes'][self.node]['http']}"

    @property
    def catalog(self) -> str:
        return f"{self.http}/iceberg"

    def metric(self, name: str) -> int:
        with urlopen(f"{self.http}/metrics") as answer:
            found = re.search(rf"^jetstream_{name}(_total)? (\S+)$", answer.read().decode(), re.M)
        assert found is not None, f"there is no metric {name}"
        return int(float(found[2]))


class Results(list[dict[str, Any]]):
    def note(self, what: str, figure: str, **raw: Any) -> None:
        self.append({"what": what, "figure": figure, **raw})


def run(records: int, days: int, progress: Progress) -> Report:
    results = Results()
    with new_ground() as ground:
        size = fill(ground, records)
        progress(f"{records:,} records, {size / 1e6:,.0f} MB in the log")
        local = _scan(ground, records)
        before = _join(ground)
        _leave(ground)
        _copy(ground, size, results, progress)
        _reads(ground, records, local, results)
        after = _join(ground)
        kept = ground.metric("lake_cache_bytes")
        results.note(
            "a second node copies the stream: all of it / with the lake",
            f"{before:.2f} s / {after:.2f} s", before=before, after=after,
        )  # fmt: skip
        results.note(
            "memory of the node, bytes of its cache",
            f"{resident_bytes(ground.pid) / 1e6:,.0f} MB, {kept / 1e6:,.0f} MB on its disk",
        )
        progress("all readers")
        _agree(ground, records, results)
    progress(f"{days} days of commits")
    _year(days, results)
    about = f"{records:,} records of {size / records:,.0f} bytes; a folder on the same disk"
    return Report("lake", about, "none", results, environment())


@contextmanager
def new_ground() -> Iterator[Ground]:
    with data_folder() as folder:
        base = free_port_base(PORTS_BETWEEN_NODES * NODES)
        cluster = LocalCluster(folder / "cluster")
        cluster.create(NODES, base)
        (folder / "lake").mkdir()
        lake = {
            "url": (folder / "lake").as_uri(),
            "upload_bytes_per_second": UPLOAD_BYTES_PER_SECOND,
        }
        cluster.config_file.write_text(yaml.safe_dump(cluster.config | {"lake": lake}))
        try:
            cluster.start()
            with Client(",".join(cluster.grpc_addresses), timeout=60) as client:
                loaded = client.create_stream(STREAM, SUBJECT, replicas=1, flush="interval")
                yield Ground(cluster, client, loaded.leader, base + NATS_PORT)
        finally:
            cluster.stop()


def _values(records: int) -> Iterator[bytes]:
    for number in range(records):
        yield (
            b'{"id":%d,"sensor":"sensor-%04d","celsius":%d.%d,"state":"%b","note":"%b"}'
            % (
                number, number * 7919 % 1_000, number * 31 % 40, number % 10,
                (b"ok", b"warm", b"cold")[number % 3], b"%08x" % (number * 2654435761 % 2**32) * 6,
            )
        )  # fmt: skip


def fill(ground: Ground, records: int, schema: str = "") -> int:
    """Returns the bytes of its log."""
    client = ground.client
    segment_bytes = max(records * 180 // SEGMENTS, 1 << 16)
    client.create_stream(
        NAME, NAME, replicas=1, flush="interval", segment_bytes=segment_bytes, duplicate_window=0
    )
    if schema:
        client.set_schema(NAME, schema)
    client.reassign_stream(NAME, [ground.node])
    until(lambda: client.describe_stream(NAME).leader == ground.node, "the stream moves")
    values = list(_values(records))
    with client.publisher(NAME, linger=0.0, max_bytes=1 << 20) as publisher:
        for first in range(0, records, BATCH):
            publisher.publish_many(values[first : first + BATCH])
        publisher.flush()
    return _log_bytes(ground)


def _log_bytes(ground: Ground, node: int | None = None) -> int:
    stream_id = ground.client.describe_stream(NAME).id
    folder = ground.cluster.data(ground.node if node is None else node) / "streams" / str(stream_id)
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def until(holds: Callable[[], bool], what: str) -> float:
    """Seconds that it took. Raises TimeoutError."""
    begun = time.perf_counter()
    while not holds():
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            raise TimeoutError(f"{what}: not within {PATIENCE_SECONDS:g} s")
        time.sleep(0.02)
    return time.perf_counter() - begun


class Scanned(NamedTuple):
    """Of a whole stream: on the clock, and of the node's processor."""

    seconds: float
    node_seconds: float


def _scan(ground: Ground, records: int) -> Scanned:
    """Fetch all batches, as a reader is sent them."""
    used, begun, offset = exact_processor_seconds(ground.pid), time.perf_counter(), 0
    while offset < records:
        offset = ground.client.fetch_batches(NAME, offset, max_bytes=FETCH_BYTES).next_offset
    seconds = time.perf_counter() - begun
    return Scanned(seconds, exact_processor_seconds(ground.pid) - used)


def _join(ground: Ground) -> float:
    """Seconds until a second node, which has nothing, is in sync."""
    client, other = ground.client, next(n for n in range(NODES) if n != ground.node)
    client.reassign_stream(NAME, [ground.node, other])
    return until(lambda: other in client.describe_stream(NAME).isr, "the second node joins")


def _leave(ground: Ground) -> None:
    client = ground.client
    client.reassign_stream(NAME, [ground.node])
    until(lambda: [*client.describe_stream(NAME).isr] == [ground.node], "the second node leaves")


# Copies.


class _Worker:
    """Watches the process that copies, whose life may be short."""

    def __init__(self, pid: int) -> None:
        self._node = pid
        self._seconds: dict[int, float] = {}
        self.peak_bytes = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(0.02):
            for task in Path(f"/proc/{self._node}/task").iterdir():
                try:
                    children = (task / "children").read_text().split()
                except OSError:
                    continue  # A thread that has ended.
                for child in children:
                    self._look(int(child))

    def _look(self, pid: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
            if b"lake.worker" in command and "VmHWM" in status:
                self._seconds[pid] = processor_seconds([pid])
                peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                self.peak_bytes = max(self.peak_bytes, peak)
        except OSError:
            pass  # It has ended meanwhile.


def _copy(ground: Ground, size: int, results: Results, progress: Progress) -> None:
    client = ground.client
    alone = [_rate(ground.nats_port) for _ in range(BASELINE_SECONDS)]
    progress(f"alone: {thousands(median(alone))} k acked/s; copying")
    worker, begun = _Worker(ground.pid), time.perf_counter()
    client.alter_stream(NAME, lake=True, local_max_bytes=size // SHARE)
    beside: list[float] = []
    goal = size * (SEGMENTS - 2) // SEGMENTS
    while ground.metric("lake_copied_bytes") < goal:
        beside.append(_rate(ground.nats_port))
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            raise TimeoutError(client.describe_lake(NAME).problem or "the copies take too long")
    seconds = time.perf_counter() - begun
    worker.end()
    copied, stored = ground.metric("lake_copied_bytes"), ground.metric("lake_stored_bytes")
    each = worker.seconds * 1e9 / copied
    results.note(
        "copies: processor time",
        f"{each:.1f} ms/MB: {1000 / each:,.0f} MB/s a core; {stored / copied:.1%} of the size",
        ms_per_megabyte=each, megabytes_per_second=copied / seconds / 1e6,
    )  # fmt: skip
    ratio = median(beside) / median(alone)
    results.note(
        f"ingest beside them (at {copied / seconds / 1e6:.0f} MB/s), of that alone",
        f"{ratio:.2f} × ({thousands(median(beside))} and {thousands(median(alone))} k acked/s)",
        alone=alone, beside=beside,
    )  # fmt: skip
    results.note("memory of the process that copies", f"{worker.peak_bytes / 1e6:,.0f} MB")
    until(lambda: _log_bytes(ground) <= size * 2 // SHARE, "old records leave the disk")


def _rate(nats_port: int) -> float:
    """Acknowledged messages a second, for about a second."""
    result = run_json(
        "benchmarks.load", "--port", str(nats_port), "--subject", SUBJECT,
        "--size", str(LOAD_BYTES), "--seconds", "1", "--warm-up", "0",
    )  # fmt: skip
    return float(result["messages"] / result["seconds"])


# Reads.


def _reads(ground: Ground, records: int, local: Scanned, results: Results) -> None:
    client, end = ground.client, ground.client.describe_lake(NAME).end_offset
    assert ground.metric("lake_reads") == 0, "nothing was read from there yet"
    firsts = []
    for number in range(COLD_READS):
        begun = time.perf_counter()
        client.fetch(NAME, end * number // SHARE, max_messages=1)
        firsts.append((time.perf_counter() - begun) * 1000)
    results.note(
        "first record of a cold fetch",
        f"median {median(firsts):.0f} ms, worst {max(firsts):.0f} ms (the node's first)",
        milliseconds=firsts,
    )  # fmt: skip
    cold, warm = _scan(ground, records), _scan(ground, records)
    for name, found in (("from the disk", local), ("cold", cold), ("warm", warm)):
        results.note(
            f"all batches, {name}",
            f"{found.seconds:.2f} s, {found.node_seconds:.2f} s of the node's processor",
            **found._asdict(),
        )


def _agree(ground: Ground, records: int, results: Results) -> None:
    """Raises AssertionError unless all readers tell the same."""
    client, found = ground.client, ground.client.describe_lake(NAME)
    url, end = found.table_url, found.end_offset
    static = StaticTable.from_metadata(url)
    files = [each.file.file_path for each in static.scan().plan_files()]
    columns = ("offset", "value")

    def by_sql() -> pa.Table:
        connection = duckdb.connect()
        connection.register(NAME, QueriedStream([client.scan(NAME)], None))
        found: Any = connection.sql(f'select "offset", value from {NAME}')
        return found.to_arrow_table()

    def by_duckdb() -> pa.Table:
        query = 'select "offset", value from read_parquet($1)'
        found: Any = duckdb.sql(query, params=[files])
        return found.to_arrow_table()

    whole: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {
        "SDK": lambda: client.scan(NAME, columns=columns),
        "jetstream sql": lambda: by_sql().to_batches(),
    }
    table: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {
        "PyIceberg": lambda: static.scan(selected_fields=columns).to_arrow().to_batches(),
        "Polars": lambda: (
            polars.scan_iceberg(url).select(columns).collect().to_arrow().to_batches()
        ),
        "DuckDB": lambda: by_duckdb().to_batches(),
    }
    for readers, below in ((whole, records), (table, end)):
        wanted = Digest.of(client.scan(NAME, columns=columns), below)
        assert wanted.records == below, f"the SDK reads {wanted} below {below}"
        for name, read in readers.items():
            begun = time.perf_counter()
            digest = Digest.of(read(), below)
            assert digest == wanted, f"{name} reads {digest}, not {wanted}"
            seconds = time.perf_counter() - begun
            results.note(
                f"{name}: {'stream' if below == records else 'table'}",
                f"{digest.records:,} records, the same digest ({seconds:.1f} s)",
            )


# Metadata.


class _Memory:
    """A store that keeps metadata."""

    url = "s3://nowhere"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        if name not in self.objects:
            raise StoreMissingError(name)
        data = self.objects[name]
        return data[position:] if length < 0 else data[position : position + length]

    def list(self, prefix: str) -> Sequence[Any]:
        return ()

    def folders(self, prefix: str) -> Sequence[str]:
        return ()

    def delete(self, *names: str) -> None:
        for name in names:
            self.objects.pop(name, None)


def _year(days: int, results: Results) -> None:
    """A commit an hour, each of an object with a thousand records."""
    store = _Memory()
    table = StreamTable(store, store.url, "cluster/1-0", {"jetstream.stream": "readings"})
    location, took, written = "", [], []
    for number in range(24 * days):
        begun, before = time.process_time(), sum(map(len, store.objects.values()))
        location = table.append(location, _object(number), lambda *_: None)
        took.append(time.process_time() - begun)
        written.append(sum(map(len, store.objects.values())) - before)
        if number % 24 == 23:
            _sweep(table, store, location)
    left = sum(map(len, store.objects.values()))
    results.note(
        f"metadata after {days} days of 24 commits",
        f"{left / 1e3:,.0f} kB in {len(store.objects)} objects, once swept",
        bytes=left, objects=len(store.objects),
    )  # fmt: skip
    results.note(
        "one commit: processor time, bytes written (the last day)",
        f"{median(took[-24:]) * 1000:.0f} ms (worst {max(took[-24:]) * 1000:.0f}), "
        f"{sum(written[-24:]) / 24e3:,.0f} kB",
        milliseconds=[each * 1000 for each in took],
    )


def _sweep(table: StreamTable, store: _Memory, location: str) -> None:
    """Grace times do not matter here."""
    needed = table.reached(location)
    for name in store.objects.keys() - needed:
        store.delete(name)


def _object(number: int) -> StoredObject:
    """An hour's records."""
    begin, first_us = number * 1_000, number * HOUR_US
    facts = ObjectFacts(
        begin, begin + 1_000, 1_000, 200_000, 1, 1, first_us, first_us + HOUR_US - 1, NAME, NAME
    )
    name = f"cluster/1-0/data/{begin:020}-{begin + 1_000:020}-1-{number:016x}.parquet"
    return StoredObject(name, 30_000, facts, (4,))
