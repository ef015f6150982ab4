"""The data plane against a bare `os.sendfile` of the same file, over loopback.

Both send the same bytes of the same segment file out of the page cache to the same client: a
blocking socket that reads into one buffer and looks at nothing, with two requests under way. So
what differs is what the node does besides sendfile.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import this_server
from benchmarks.jetstream_peer import SUBJECT
from benchmarks.nats_socket import SOCKET_BUFFER_BYTES
from benchmarks.pairs import Progress
from benchmarks.processes import HOST, data_folder, free_port_base, server
from benchmarks.report import Column, Report, environment, times
from benchmarks.usage import processor_seconds
from jetstream_client import Client
from jetstream_protocol import frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

VALUE = b"x" * 1024
BATCH = 1_000
RECORDS = 32_000
FETCH_BYTES = 16 * 1024 * 1024
AT_ONCE = 2
RANGE = struct.Struct("<QQ")
"""What the bare server is asked for: offset and length."""

TITLE = "bytes out of the page cache over loopback, medians; MB/s: above 1 × ours is faster"
COLUMNS = (
    Column("", lambda r: str(r["what"])),
    Column("ours", lambda r: f"{r['ours']:,.0f}"),
    Column("sendfile", lambda r: f"{r['peer']:,.0f}"),
    Column("ratio", lambda r: times(r["ratio"])),
)

FIGURES = {
    "megabytes_per_second": "MB/s",
    "server_ms_per_gigabyte": "processor time of the server, ms/GB",
    "client_ms_per_gigabyte": "processor time of the client, ms/GB",
}


class Side(NamedTuple):
    """port: where it listens. pid: of the server. request: the bytes that ask once. answer_bytes:
    the length of each answer. greeting: what is sent first, and how long its answer is."""

    port: int
    pid: int
    request: bytes
    answer_bytes: int
    greeting: tuple[bytes, int] = (b"", 0)


def run(seconds: float, pairs: int, progress: Progress) -> Report:
    """seconds: of each side in each pair."""
    with this_server.this_server("none") as addresses:
        with Client(addresses.grpc, timeout=30) as client, client.publisher(SUBJECT) as publisher:
            for _ in range(RECORDS // BATCH):
                publisher.publish_many([VALUE] * BATCH)
        ours = _our_side(addresses)
        # Of one stream: the largest file is its segment.
        files = (addresses.folder / "data" / "streams").rglob("*.log")
        segment = max(files, key=lambda file: file.stat().st_size)
        length = min(ours.answer_bytes, segment.stat().st_size)
        with _bare_server(segment) as (port, pid):
            bare = Side(port, pid, RANGE.pack(0, length), length)
            measure = {"ours": partial(_measure, ours), "peer": partial(_measure, bare)}
            runs = _alternately(measure, seconds, pairs, progress)
    results = []
    for name, what in FIGURES.items():
        middle = {side: median(found[name] for found in runs[side]) for side in runs}
        ratio = round(middle["ours"] / middle["peer"], 2) if middle["peer"] else 0.0
        results.append({"figure": name, "what": what, **middle, "ratio": ratio})
    return Report(
        "raw",
        f"the data plane of a node, answers of {ours.answer_bytes:,} bytes, {AT_ONCE} at a time",
        "os.sendfile of the same file by a process with one thread",
        results,
        environment(),
    )


def _alternately(
    measure: Mapping[str, Callable[[float], dict[str, float]]],
    seconds: float,
    pairs: int,
    progress: Progress,
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in measure}
    for number in range(pairs):
        for side in list(measure)[:: 1 if number % 2 == 0 else -1]:
            runs[side].append(measure[side](seconds))
        told = ", ".join(f"{s} {runs[s][-1]['megabytes_per_second']:,.0f} MB/s" for s in runs)
        progress(f"pair {number + 1} of {pairs}: {told}")
    return runs


def _our_side(addresses: this_server.Addresses) -> Side:
    """The frames that ask a node, and the length of what it answers."""
    hello = frames.encode(
        Kind.HELLO,
        0,
        pb.Hello(version=frames.PROTOCOL_VERSION, client="benchmarks").SerializeToString(),
    )
    request = pb.DataFetchRequest(
        stream=common_pb2.StreamRef(name=this_server.STREAM), offset=0, bytes_max=FETCH_BYTES
    )
    fetch = frames.encode(Kind.FETCH, 1, request.SerializeToString())
    port = this_server.data_plane_port(addresses, 0)
    with socket.create_connection((HOST, port), timeout=30) as sock:
        sock.sendall(hello)
        greeted = _frame_bytes(sock)
        sock.sendall(fetch)
        answer = _frame_bytes(sock)
    return Side(port, addresses.pids[0], fetch, answer, (hello, greeted))


def _frame_bytes(sock: socket.socket) -> int:
    """Take in one whole frame, and return its length."""
    prefix = sock.recv(frames.PREFIX_BYTES, socket.MSG_WAITALL)
    decoded = frames.decode_prefix(prefix, frames.RESPONSE_BYTES_MAX)
    rest = decoded.head_length + decoded.tail_length
    _receive(sock, memoryview(bytearray(max(1, rest))), rest)
    return frames.PREFIX_BYTES + rest


def _measure(side: Side, seconds: float) -> dict[str, float]:
    buffer = memoryview(bytearray(side.answer_bytes))
    with socket.create_connection((HOST, side.port), timeout=30) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        greeting, answer = side.greeting
        if greeting:
            sock.sendall(greeting)
            _receive(sock, buffer, answer)
        sock.sendall(side.request * AT_ONCE)
        servers, own = processor_seconds([side.pid]), time.process_time()
        begun = time.perf_counter()
        answers = 0
        while time.perf_counter() - begun < seconds or answers < AT_ONCE:
            _receive(sock, buffer, side.answer_bytes)
            answers += 1
            sock.sendall(side.request)
        elapsed = time.perf_counter() - begun
        gigabytes = answers * side.answer_bytes / 1e9
        return {
            "megabytes_per_second": 1000 * gigabytes / elapsed,
            "server_ms_per_gigabyte": 1000 * (processor_seconds([side.pid]) - servers) / gigabytes,
            "client_ms_per_gigabyte": 1000 * (time.process_time() - own) / gigabytes,
        }


def _receive(sock: socket.socket, buffer: memoryview, count: int) -> None:
    """Take in exactly so many bytes. Raises ConnectionError."""
    received = 0
    while received < count:
        got = sock.recv_into(buffer[received:count])
        if not got:
            raise ConnectionError("the server closed the connection")
        received += got


@contextmanager
def _bare_server(file: Path) -> Iterator[tuple[int, int]]:
    """Its port and process id."""
    port = free_port_base(1)
    command = [sys.executable, "-m", "benchmarks.raw", str(port), str(file)]
    with data_folder() as folder, server(command, port, folder) as pid:
        yield port, pid


def serve(port: int, file: Path) -> None:
    """Send ranges of the file to one connection after another."""
    with file.open("rb") as opened, socket.create_server((HOST, port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                while request := connection.recv(RANGE.size, socket.MSG_WAITALL):
                    offset, length = RANGE.unpack(request)
                    end = offset + length
                    try:
                        while offset < end:
                            offset += os.sendfile(
                                connection.fileno(), opened.fileno(), offset, end - offset
                            )
                    except ConnectionError:
                        break


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
