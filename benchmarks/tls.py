"""What TLS costs: whole batches over the data plane with and without it, and handshakes.

Two nodes, one plain and one with TLS, hold the same stream, which stays in the page cache. The
client fetches the same range again and again, two requests at a time, and looks at nothing of it.
Rates and processor time are of the same run, the two sides alternately; the client is Python in
this process, and often the slower end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import yaml

from benchmarks.pairs import Progress
from benchmarks.processes import HOST, data_folder, executable, free_port_base, server
from benchmarks.report import Column, Report, environment
from benchmarks.this_server import PORTS, STREAM
from benchmarks.usage import server_seconds
from examples.certificates.authority import Authority
from jetstream_client import Client, TlsConfig
from jetstream_client.transport.data_connection import DataConnection
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

VALUE = b"x" * 1024
RECORDS = 32_000
BATCH = 1_000
FETCH_BYTES = 16 * 1024 * 1024
AT_ONCE = 2
HANDSHAKES = 100
_TIMEOUT_SECONDS = 60.0

TITLE = "the data plane over TLS beside plain TCP"
COLUMNS = (
    Column("", lambda r: str(r["side"])),
    Column("MB/s", lambda r: f"{r['megabytes_per_second']:,.0f}"),
    Column("server ms/GB", lambda r: f"{r['server_ms_per_gigabyte']:,.0f}"),
    Column("client ms/GB", lambda r: f"{r['client_ms_per_gigabyte']:,.0f}"),
    Column("connections/s", lambda r: f"{r['connections_per_second']:,.0f}"),
)

Side = tuple[str, TlsConfig | None]
"""The address of the data plane, and how to speak to it."""


def run(seconds: float, pairs: int, progress: Progress) -> Report:
    """seconds: of each side in each pair."""
    with data_folder() as folder:
        authority = Authority(folder / "certificates")
        cert, key = map(str, authority.client("client"))
        tls = TlsConfig(str(authority.certificate_file), cert, key)
        plain_config: dict[str, object] = {}
        certificate, private_key = authority.issue("node", hosts=[HOST], serves=True)
        tls_config: dict[str, object] = {
            "tls": {
                "certificate_file": str(certificate),
                "key_file": str(private_key),
                "ca_file": str(authority.certificate_file),
                "client_auth": "required",
            }
        }
        with (
            _node(folder / "plain", plain_config, None) as plain,
            _node(folder / "tls", tls_config, tls) as secured,
        ):
            sides: dict[str, Side] = {"plain": (plain, None), "TLS": (secured, tls)}
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
            for pair in range(pairs):
                for name, side in sides.items():
                    measured = asyncio.run(_measure(side, seconds))
                    runs[name].append(measured)
                    progress(f"{pair + 1}/{pairs} {name}: {measured}")
    results = [
        {"side": name, **{figure: median(each[figure] for each in found) for figure in found[0]}}
        for name, found in runs.items()
    ]
    return Report("tls", "TLS 1.3, a certificate on both ends", "plain TCP", results, environment())


@contextmanager
def _node(folder: Path, config: dict[str, object], tls: TlsConfig | None) -> Iterator[str]:
    """A node with a full stream; the address of its data plane."""
    folder.mkdir()
    file = folder / "node.yaml"
    file.write_text(yaml.safe_dump(config))
    base = free_port_base(PORTS)
    command = [
        executable("jetstream-server"), "--dev", "--config", str(file),
        "--data", str(folder / "data"), "--port-base", str(base), "--log-level", "warning",
    ]  # fmt: skip
    with server(command, base, folder):
        with Client(f"{HOST}:{base}", tls=tls, timeout=30) as client:
            client.create_stream(STREAM, subject="bench", flush="none")
            with client.publisher("bench") as publisher:
                for _ in range(RECORDS // BATCH):
                    publisher.publish_many([VALUE] * BATCH)
        yield f"{HOST}:{base + 1}"


async def _measure(side: Side, seconds: float) -> dict[str, float]:
    address, tls = side
    connection = await DataConnection.open(address, _TIMEOUT_SECONDS, tls=tls)
    request = pb.DataFetchRequest(
        stream=common_pb2.StreamRef(name=STREAM), offset=0, bytes_max=FETCH_BYTES
    )
    await connection.fetch(request, _TIMEOUT_SECONDS)  # It is in the page cache from here on.
    servers, own, begun = server_seconds().nodes, time.process_time(), time.perf_counter()
    received = 0

    async def fetch() -> None:
        nonlocal received
        while time.perf_counter() - begun < seconds:
            received += len((await connection.fetch(request, _TIMEOUT_SECONDS)).batches)

    await asyncio.gather(*(fetch() for _ in range(AT_ONCE)))
    elapsed, gigabytes = time.perf_counter() - begun, received / 1e9
    figures = {
        "megabytes_per_second": received / 1e6 / elapsed,
        "server_ms_per_gigabyte": (server_seconds().nodes - servers) * 1000 / gigabytes,
        "client_ms_per_gigabyte": (time.process_time() - own) * 1000 / gigabytes,
    }
    await connection.close()
    begun = time.perf_counter()
    for _ in range(HANDSHAKES):
        await (await DataConnection.open(address, _TIMEOUT_SECONDS, tls=tls)).close()
    figures["connections_per_second"] = HANDSHAKES / (time.perf_counter() - begun)
    return figures
