"""How much one node bears: what it takes in memory, and how late it gets.

    python -m tests.chaos.bounds [readers] [connections] [streams] [--minutes 10] [--json]

=============  ==================================================================================
readers        200 readers that take a stream's bytes slowly off their sockets, all together at
               50 MB/s, while as much is published to it
connections    10,000 connections to the data plane that have said hello, and then nothing
streams        1,000 streams, each with 100 messages a second
=============  ==================================================================================

Each has a node and a nats-server of its own. Beside the load, one message after the other is
published and its ack timed. Printed are resident memory (before, at most, at the end), how late the
event loop was, and the acks' times. Exit code 1 when the node refused or lost what it should bear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import selectors
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket
from benchmarks.round_trips import percentiles
from benchmarks.usage import resident_bytes
from examples.cluster.local import NATS_PORT
from jetstream_client import Client
from jetstream_protocol import frames
from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import OffsetOutOfRangeError, from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from tests.support.api import DataPlane
from tests.support.server import ServerProcess

MB = 1_000_000
MESSAGE_BYTES = 4096
SMALL_MESSAGE_BYTES = 128
KEPT_BYTES = 1 << 30
"""Of a stream that is published to for long."""
FETCH_BYTES = 1 << 20
WAIT_MS = 1_000
READ_BYTES = 1 << 16
SLOW_SOCKET_BYTES = 1 << 16
TICK_SECONDS = 0.05
PROBE_SECONDS = 0.05
ANSWER_SECONDS = 60.0
SPARE_DESCRIPTORS = 256
SERVER_DESCRIPTORS = 2_048
"""What a node keeps for everything but connections, and more; each connection counts twice."""
NO_RESPONDERS = b"NATS/1.0 503"
LIMIT_FACTOR = 2.0
"""How many more connections the node is allowed than there are."""
LAG_METRIC = "jetstream_event_loop_lag_seconds_bucket"


@dataclass(slots=True)
class Result:
    """Resident memory in bytes; load: what was asked for; done: what came of it."""

    case: str
    load: str
    resident_before: int = 0
    resident_most: int = 0
    resident_after: int = 0
    loop_lag_ms: dict[str, float] = field(default_factory=dict)
    """Upper bounds: of half of the measurements, of 99 %, of all."""
    ack_us: dict[str, float] = field(default_factory=dict)
    done: str = ""
    failures: list[str] = field(default_factory=list)

    def lines(self) -> str:
        memory = " / ".join(
            f"{size / 2**20:,.0f}"
            for size in (self.resident_before, self.resident_most, self.resident_after)
        )
        lag = " / ".join(f"{value:,.0f}" for value in self.loop_lag_ms.values())
        acks = " / ".join(f"{value / 1000:,.1f}" for value in self.ack_us.values())
        measured = " / ".join(name.removesuffix("_us") for name in self.ack_us)
        lines = [
            f"{self.case}: {self.load}",
            f"  done: {self.done}",
            f"  memory before / at most / at the end: {memory} MiB",
            f"  event loop late by, below: {lag} ms ({' / '.join(self.loop_lag_ms)})",
            f"  acknowledged after: {acks} ms ({measured})",
        ]
        return "\n".join([*lines, *(f"  FAILED: {each}" for each in self.failures)])


class Work(threading.Thread):
    """Runs `turn` until `end`, which raises what it raised."""

    def __init__(self, turn: Callable[[], None], pause_seconds: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._turn = turn
        self._pause_seconds = pause_seconds
        self._ending = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ending.wait(self._pause_seconds):
                self._turn()
        except Exception as error:  # noqa: BLE001  raised by `end`
            self._error = error

    def end(self) -> None:
        self._ending.set()
        self.join(ANSWER_SECONDS)
        if self._error is not None:
            raise self._error


class Probe:
    """Publishes one message at a time, to one subject after the other, and times its ack."""

    def __init__(self, client: NatsSocket, subjects: Sequence[str]) -> None:
        self.taken: list[int] = []
        self._subjects = subjects
        self._client = client
        self._client.subscribe("_INBOX.bounds", 1)

    def __call__(self) -> None:
        """Raises RuntimeError when it is refused, TimeoutError."""
        subject = self._subjects[len(self.taken) % len(self._subjects)]
        value = bytes(SMALL_MESSAGE_BYTES)
        line = f"PUB {subject} _INBOX.bounds {len(value)}\r\n".encode()
        start = time.perf_counter_ns()
        self._client.socket.sendall(line + value + b"\r\n")
        answer = b""
        while b"}\r\n" not in answer:
            answer += self._client.socket.recv(RECEIVE_BYTES)
            if b"PING\r\n" in answer:
                self._client.socket.sendall(b"PONG\r\n")
                answer = answer.replace(b"PING\r\n", b"")
            if NO_RESPONDERS in answer or b'"error"' in answer:
                raise RuntimeError(f"a message was refused: {answer[-300:]!r}")
        self.taken.append(time.perf_counter_ns() - start)


class Flood:
    """Publishes without asking for acks, so many messages a second, one subject after the other."""

    def __init__(
        self, client: NatsSocket, subjects: Sequence[str], length: int, per_second: float
    ) -> None:
        self.sent = 0
        value = bytes(length)
        self._lines = [f"PUB {each} {length}\r\n".encode() + value + b"\r\n" for each in subjects]
        self._per_second = per_second
        self._begun = time.monotonic()
        self._client = client

    def __call__(self) -> None:
        due = int((time.monotonic() - self._begun) * self._per_second)
        count = len(self._lines)
        block = b"".join(self._lines[number % count] for number in range(self.sent, due))
        self._client.socket.sendall(block)
        self.sent = due
        self._client.socket.setblocking(False)
        with suppress(BlockingIOError):
            if b"PING" in self._client.socket.recv(RECEIVE_BYTES):
                self._client.socket.sendall(b"PONG\r\n")
        self._client.socket.settimeout(ANSWER_SECONDS)


class SlowReaders:
    """Readers of one stream on a loop of their own; each takes `bytes_per_second` off its
    socket, whose buffer is small, so that the node cannot hand over an answer at once."""

    def __init__(
        self, address: tuple[str, int], stream: str, count: int, bytes_per_second: float
    ) -> None:
        self.received = 0
        self.skipped = 0
        """How often a reader began anew, because retention had overtaken it."""
        self.failures: list[str] = []
        self._stream = stream
        self._bytes_per_second = bytes_per_second
        self._planes = [DataPlane(address) for _ in range(count)]
        for plane in self._planes:
            plane.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_SOCKET_BYTES)
            plane.sock.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks = [
            asyncio.run_coroutine_threadsafe(self._read(each), self._loop) for each in self._planes
        ]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        asyncio.run_coroutine_threadsafe(self._cancelled(), self._loop).result(ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        for plane in self._planes:
            plane.close()
        self._loop.close()

    async def _cancelled(self) -> None:
        """Returns when no other task is left."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _read(self, plane: DataPlane) -> None:
        offset = 0
        try:
            while True:
                offset = await self._fetch(plane, offset)
        except (OSError, EOFError, AssertionError) as error:
            self.failures.append(f"a reader: {type(error).__name__}: {error}")

    async def _fetch(self, plane: DataPlane, offset: int) -> int:
        """Where to go on."""
        request = dataplane_pb2.DataFetchRequest(
            stream=common_pb2.StreamRef(name=self._stream),
            offset=offset,
            bytes_max=FETCH_BYTES,
            wait_ms_max=WAIT_MS,
        )
        frame = frames.encode(Kind.FETCH, 1, request.SerializeToString())
        await self._loop.sock_sendall(plane.sock, frame)
        prefix = frames.decode_prefix(
            await self._take(plane, frames.PREFIX_BYTES), frames.RESPONSE_BYTES_MAX
        )
        head = dataplane_pb2.DataFetchResponse.FromString(
            await self._take(plane, prefix.head_length)
        )
        tail = await self._take(plane, prefix.tail_length)
        if head.HasField("error"):
            error = from_proto(head.error)
            assert isinstance(error, OffsetOutOfRangeError), error
            self.skipped += 1
            return error.log_start_offset
        position = 0
        while position < len(tail):
            header = decode_header(tail, position)
            offset, position = header.next_offset, position + header.length
        return offset

    async def _take(self, plane: DataPlane, length: int) -> bytes:
        """No faster than it may."""
        pieces = []
        while length:
            piece = await self._loop.sock_recv(plane.sock, min(length, READ_BYTES))
            if not piece:
                raise EOFError("the node closed the connection")
            self.received += len(piece)
            length -= len(piece)
            pieces.append(piece)
            await asyncio.sleep(len(piece) / self._bytes_per_second)
        return b"".join(pieces)


def loop_lag(http: str) -> dict[float, int]:
    """The node's histogram: measurements up to each bound, in seconds."""
    with urllib.request.urlopen(f"{http}/metrics", timeout=ANSWER_SECONDS) as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{LAG_METRIC}{{le="([^"]+)"}} (\S+)$', text, re.MULTILINE)
    assert found, f"no {LAG_METRIC}"
    return {float(bound): int(float(count)) for bound, count in found}


def bounds_of(before: dict[float, int], after: dict[float, int]) -> dict[str, float]:
    """In milliseconds."""
    counts = sorted((bound, count - before.get(bound, 0)) for bound, count in after.items())
    total = counts[-1][1]
    return {
        name: 1000 * next(bound for bound, count in counts if count >= share * total)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


@dataclass(slots=True)
class Node:
    """A node, what is measured of it, and what ends with it."""

    server: ServerProcess
    result: Result
    ending: ExitStack

    def probe(self, subjects: Sequence[str]) -> Probe:
        """One that has had its first ack."""
        probe = Probe(self._nats(), subjects)
        probe()
        return probe

    def flood(self, subjects: Sequence[str], length: int, per_second: float) -> Flood:
        return Flood(self._nats(), subjects, length, per_second)

    def _nats(self) -> NatsSocket:
        return self.ending.enter_context(
            NatsSocket("127.0.0.1", self.server.port_base + NATS_PORT, ANSWER_SECONDS)
        )

    def watch(self, minutes: float, work: Sequence[Callable[[], None]], probe: Probe) -> None:
        """Let the work go on for so long, and measure; each is called again and again."""
        result, pid = self.result, self.server.pid
        result.resident_before = resident_bytes(pid)
        before = loop_lag(self.server.http)

        def look() -> None:
            result.resident_most = max(result.resident_most, resident_bytes(pid))

        threads = [Work(each, TICK_SECONDS) for each in work]
        threads += [Work(probe, PROBE_SECONDS), Work(look, 1.0)]
        for thread in threads:
            thread.start()
        time.sleep(minutes * 60)
        for thread in threads:
            try:
                thread.end()
            except (OSError, RuntimeError) as error:
                result.failures.append(f"{type(error).__name__}: {error}")
        look()
        result.resident_after = resident_bytes(pid)
        result.loop_lag_ms = bounds_of(before, loop_lag(self.server.http))
        if probe.taken:
            result.ack_us = percentiles(probe.taken)


def readers(node: Node, arguments: argparse.Namespace) -> None:
    rate = arguments.megabytes_per_second * MB
    node.result.load = (
        f"{arguments.readers} slow readers of a stream, {arguments.megabytes_per_second:g} MB/s"
    )
    with Client(node.server.grpc) as client:
        client.create_stream("bounds", "bounds", max_bytes=KEPT_BYTES)
        probe = node.probe(["bounds"])
        flood = node.flood(["bounds"], MESSAGE_BYTES, rate / MESSAGE_BYTES)
        begun = time.monotonic()
        slow = SlowReaders(
            node.server.data_address, "bounds", arguments.readers, rate / arguments.readers
        )
        node.ending.callback(slow.close)
        node.watch(arguments.minutes, [flood], probe)
        seconds = time.monotonic() - begun
        stored = client.describe_stream("bounds").high_watermark
        node.result.done = (
            f"{flood.sent * MESSAGE_BYTES / seconds / MB:.1f} MB/s published, "
            f"{stored * MESSAGE_BYTES / seconds / MB:.1f} MB/s stored, "
            f"{slow.received / seconds / MB:.1f} MB/s read, "
            f"{slow.skipped} times overtaken by retention"
        )
        node.result.failures += slow.failures[:5]


def connections(node: Node, arguments: argparse.Namespace) -> None:
    wanted = arguments.connections
    node.result.load = f"{wanted:,} connections that say nothing"
    with Client(node.server.grpc) as client:
        client.create_stream("bounds", "bounds")
    probe = node.probe(["bounds"])
    planes = []
    before = resident_bytes(node.server.pid)
    for _ in range(wanted):
        plane = DataPlane(node.server.data_address, hello=False)
        node.ending.callback(plane.close)
        with suppress(OSError, EOFError):  # It is missing in the end.
            plane.greet()
            planes.append(plane)
    node.watch(arguments.minutes, [], probe)
    node.result.resident_before = before
    with selectors.DefaultSelector() as selector:
        for plane in planes:
            selector.register(plane.sock, selectors.EVENT_READ)
        ended = len(selector.select(0))  # Nothing is sent to them: what can be read is the end.
    closed = wanted - len(planes) + ended
    node.result.done = f"{wanted - closed:,} are still open"
    if closed:
        node.result.failures.append(f"{closed} were closed")


def streams(node: Node, arguments: argparse.Namespace) -> None:
    count, rate = arguments.streams, arguments.rate
    node.result.load = f"{count:,} streams, {rate} messages a second each"
    subjects = [f"bounds.{number}" for number in range(count)]
    with Client(node.server.grpc, timeout=60) as client:
        for number, subject in enumerate(subjects):
            client.create_stream(f"bounds-{number}", subject, max_bytes=KEPT_BYTES // count)
        probe = node.probe(subjects)
        flood = node.flood(subjects, SMALL_MESSAGE_BYTES, count * rate)
        begun = time.monotonic()
        node.watch(arguments.minutes, [flood], probe)
        seconds = time.monotonic() - begun
        stored = sum(client.describe_stream(f"bounds-{n}").high_watermark for n in range(count))
        node.result.done = (
            f"{flood.sent / seconds:,.0f} messages a second published, "
            f"{stored / seconds:,.0f} stored"
        )


CASES = {"readers": readers, "connections": connections, "streams": streams}


def check_descriptors(arguments: argparse.Namespace) -> str:
    """Why this machine allows too few open files; "" when it allows enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = SPARE_DESCRIPTORS
    if "readers" in arguments.cases:
        needed = max(needed, 2 * arguments.readers + SERVER_DESCRIPTORS)
    if "connections" in arguments.cases:
        needed = max(needed, 2 * arguments.connections + SERVER_DESCRIPTORS)
    if hard >= needed or hard == resource.RLIM_INFINITY:
        return ""
    return (
        f"a process may open {hard} files here, and {needed} are needed: run "
        f"`ulimit -n {needed}` before, as root if that is refused, or take smaller numbers"
    )


def run(case: str, arguments: argparse.Namespace) -> Result:
    """One of CASES, on a node of its own."""
    limit = str(int(LIMIT_FACTOR * max(arguments.connections, arguments.readers)))
    environment = {
        "JETSTREAM_LIMITS__CONNECTIONS": limit,
        "JETSTREAM_LIMITS__CONNECTIONS_PER_ADDRESS": limit,
    }
    with ExitStack() as ending:
        folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="jetstream-bounds-"))
        server = ServerProcess(Path(folder, "data"), environment=environment)
        ending.callback(server.kill)
        server.start()
        node = Node(server, Result(case, ""), ending)
        CASES[case](node, arguments)
        if "Traceback" in server.log_text:
            node.result.failures.append("the node logged a traceback")
        return node.result


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.bounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each of them")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--megabytes-per-second", type=float, default=50.0)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=100, help="messages a second to each stream")
    parser.add_argument("--json", action="store_true", help="one object for each case")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases or [*CASES]
    if unknown := {*arguments.cases} - {*CASES}:
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if reason := check_descriptors(arguments):
        parser.error(reason)
    failed = False
    for case in arguments.cases:
        result = run(case, arguments)
        failed |= bool(result.failures)
        print(json.dumps(asdict(result)) if arguments.json else result.lines(), flush=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load average at the end: {load}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
