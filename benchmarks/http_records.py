"""Records over HTTP, against the SDK in the same run: how many a second, and what one takes of the
node's processor.

One connection, one request after the other, on one node. Reading: the whole stream in one answer,
each line parsed, or each batch of Arrow opened; the SDK makes each value an object. Publishing:
lines of JSON, LINES in a request; the SDK's publisher sends batches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from statistics import median

import pyarrow as pa

from benchmarks import this_server
from benchmarks.jetstream_peer import SUBJECT
from benchmarks.pairs import Progress
from benchmarks.processes import HOST
from benchmarks.read_jetstream_log import FETCH_MESSAGES
from benchmarks.report import Column, Report, environment
from benchmarks.usage import processor_seconds
from jetstream_client import Client

LINES = 1_000
HTTP_PORT = 3
"""After that of gRPC."""
STREAM = this_server.STREAM
PATH = f"/v1/streams/{STREAM}/records"

TITLE = "records per second, and what one takes of the node's processor"
COLUMNS = (
    Column("load", lambda result: str(result["load"])),
    Column("size", lambda result: f"{result['size']} B"),
    Column("records/s", lambda result: f"{result['rate']:,.0f}"),
    Column("of the SDK", lambda result: f"{result['ratio']:.2f} ×"),
    Column("node", lambda result: f"{result['node_us']:.2f} µs"),
)

Load = Callable[[], int]
"""Returns how many records it has moved."""


def run(size: int, messages: int, rounds: int, progress: Progress) -> Report:
    with this_server.this_server() as addresses:
        host, _, port = addresses.grpc.rpartition(":")
        connection = HTTPConnection(host or HOST, int(port) + HTTP_PORT, timeout=60)
        with Client(addresses.grpc, timeout=60.0) as client:
            loads = _loads(client, connection, b"v" * size, messages)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in loads}
            for at in range(rounds):
                for name, load in loads.items():
                    progress(f"round {at + 1}: {name}")
                    found[name].append(_measured(load, addresses.pids))
        connection.close()
    rates = {name: median(rate for rate, _ in runs) for name, runs in found.items()}
    results = [
        {
            "load": name,
            "size": size,
            "rate": rates[name],
            "ratio": rates[name] / rates[f"SDK {name.split()[1]}"],
            "node_us": median(us for _, us in runs),
        }
        for name, runs in found.items()
    ]
    return Report(
        "http",
        f"one connection, {LINES} lines in a request",
        "none: JetStream has no HTTP",
        results,
        environment(),
    )


def _measured(load: Load, pids: list[int]) -> tuple[float, float]:
    """Records per second, µs of the node's processor for one."""
    before, begun = processor_seconds(pids), time.perf_counter()
    count = load()
    seconds = time.perf_counter() - begun
    return count / seconds, 1e6 * (processor_seconds(pids) - before) / count


def _loads(
    client: Client, connection: HTTPConnection, value: bytes, messages: int
) -> dict[str, Load]:
    """Each has its way and what it does for a name. The first writes what is read."""
    line = json.dumps({"value": value.decode()}).encode() + b"\n"

    def publish() -> int:
        with client.publisher(SUBJECT, via="direct") as publisher:
            publisher.publish_many([value] * messages)
        return messages

    def post() -> int:
        headers = {"Content-Type": "application/x-ndjson"}
        for _ in range(messages // LINES):
            connection.request("POST", PATH, line * LINES, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise RuntimeError(said.decode())
        return messages

    def read() -> int:
        count = 0
        while count < messages:
            found = client.fetch(STREAM, count, max_messages=min(FETCH_MESSAGES, messages - count))
            count += len(list(found.values()))
        return count

    def lines() -> int:
        return sum("value" in json.loads(each) for each in _answer(connection, "ndjson", messages))

    def arrow() -> int:
        connection.request("GET", f"{PATH}?format=arrow&limit={messages}")
        with connection.getresponse() as answer, pa.ipc.open_stream(answer) as batches:
            count: int = sum(batch.num_rows for batch in batches)
            answer.read()  # What follows the last batch, too.
            return count

    return {
        "SDK publishes": publish,
        "HTTP publishes": post,
        "SDK reads": read,
        "HTTP reads lines": lines,
        "HTTP reads Arrow": arrow,
    }


def _answer(connection: HTTPConnection, form: str, messages: int) -> Iterator[bytes]:
    connection.request("GET", f"{PATH}?format={form}&limit={messages}")
    yield from connection.getresponse()
