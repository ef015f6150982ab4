"""What must hold while a server is attacked, watched from outside by well-behaved clients.

* The control stream's bytes never change and can be read on both ports.
* Publishes with an ack are acknowledged, in order, and are at the offsets that the acks named.
* No message arrives on `forbidden.>`. Attackers may not publish there, so it would be the server's.
* Memory stays bounded, the process lives, its log shows no failure.
* Afterwards sockets, threads, waiting fetches and pending acks are back where they were.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import JetstreamError
from tests.fuzz.vitals import LogWatch, Vitals, vitals
from tests.support.api import Api, DataPlane, RawNats
from tests.support.server import ServerProcess

CONTROL = "control"
BEAT = "beat"
CONTROL_RECORDS = 2_000
RSS_MIB_MAX = 512
ACK_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 60.0
"""For a call over gRPC: its callers are served one after another, attackers included."""
SETTLE_SECONDS_MAX = 90.0
"""Longer than a data-plane client may stall, after which the last of them is dropped."""
BEAT_SECONDS = 0.02
SHED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""What a caller may be told while attackers take all the calls a server can serve."""


class Violation(Exception):
    """Something that must hold does not."""


def metric(server: ServerProcess, name: str) -> int:
    try:
        with urllib.request.urlopen(f"{server.http}/metrics", timeout=READ_SECONDS_MAX) as answer:
            text = answer.read().decode()
    except TimeoutError as error:
        raise Violation(f"/metrics did not answer within {READ_SECONDS_MAX} s") from error
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return int(float(line.split()[1]))
    raise Violation(f"there is no metric {name}")


def _patiently(call: Callable[[], Any]) -> Any:
    """Under attack a server may shed load for a moment: refuse a call, or end a connection that
    seems not to read. Calls that may be repeated are repeated."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except JetstreamError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        except grpc.RpcError as error:
            if error.code() not in SHED or time.monotonic() > deadline:
                raise


class Publisher:
    """Publishes with an ack, one after another, and remembers what was acknowledged."""

    def __init__(self, url: str, instance: int = 0) -> None:
        self._nats = RawNats(url)
        self._inbox = f"_INBOX.{BEAT}.{os.urandom(6).hex()}"
        self._nats.subscribe(self._inbox)
        self._count = 0
        self.acknowledged: dict[int, bytes] = {}
        """Offset to value."""
        self.worst_seconds = 0.0

    def beat(self) -> None:
        """Raises Violation when no ack, or a wrong one, comes."""
        value = b"beat %d " % self._count + os.urandom(8)
        self._count += 1
        begun = time.monotonic()
        self._nats.publish(BEAT, value, self._inbox)
        try:
            answer = json.loads(self._nats.message(ACK_SECONDS_MAX)[1])
        except TimeoutError as error:
            raise Violation(f"no ack within {ACK_SECONDS_MAX} s") from error
        self.worst_seconds = max(self.worst_seconds, time.monotonic() - begun)
        if answer.get("stream") != BEAT or "error" in answer:
            raise Violation(f"a publish was refused: {answer}")
        offset = answer["seq"] - 1
        if self.acknowledged and offset <= max(self.acknowledged):
            raise Violation(f"acks went back to offset {offset}")
        self.acknowledged[offset] = value

    def close(self) -> None:
        self._nats.close()


class Oracle:
    """`prepare`, then `watch` in threads of its own until `finish`; `violation` is the first."""

    def __init__(self, server: ServerProcess, rss_mib_max: int = RSS_MIB_MAX) -> None:
        self.server = server
        self.violation = ""
        self.reads = 0
        self.worst_read_seconds = 0.0
        self.rss_mib = self.peak_mib = 0.0
        self._rss_mib_max = rss_mib_max
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.log = LogWatch(server.log_path)

    def prepare(self) -> None:
        """Create and fill the control stream, and note how things are before any attack."""
        api = Api(self.server.grpc)
        api.create(CONTROL, CONTROL)
        api.create(BEAT, BEAT)
        nats = RawNats(self.server.nats)
        nats.subscribe("_INBOX.control")
        for index in range(CONTROL_RECORDS):
            nats.publish(CONTROL, b"control %d " % index + bytes(index % 500), "_INBOX.control")
        for _ in range(CONTROL_RECORDS):
            nats.message()
        nats.close()
        self._control = api.fetch(CONTROL, bytes_max=64 << 20).batches
        assert sum(len(batch) for batch in iterate(self._control)) == CONTROL_RECORDS
        api.close()
        self.publisher = Publisher(self.server.nats)
        self.publisher.beat()
        self._spy = RawNats(self.server.nats)
        self._spy.subscribe("forbidden.>")
        self._spy.subscribe("_INBOXforbidden.>", 2)
        # From now on the node has a connection to its own gRPC port, for calls over HTTP.
        urllib.request.urlopen(f"{self.server.http}/v1/streams", timeout=READ_SECONDS_MAX).close()
        time.sleep(1.0)
        self.baseline = vitals(self.server.pid)

    def watch(self) -> None:
        for job, pause in (
            (self.publisher.beat, BEAT_SECONDS),
            (self._read, 0.5),
            (self._look, 0.25),
        ):
            thread = threading.Thread(target=self._repeat, args=(job, pause), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _repeat(self, job: Callable[[], None], pause: float) -> None:
        while not self._stop.wait(pause):
            try:
                job()
            except Exception as error:  # noqa: BLE001  whatever it is, the campaign is told
                if not self._stop.is_set():
                    self.violation = (
                        self.violation or f"{job.__name__}: {type(error).__name__}: {error}"
                    )
                return

    def _read(self) -> None:
        """The control stream on both ports, and the HTTP port's answer."""
        begun = time.monotonic()
        plane = DataPlane(self.server.data_address)
        plane.sock.settimeout(READ_SECONDS_MAX)
        _, tail = plane.fetch(CONTROL, bytes_max=64 << 20)
        plane.close()
        api = Api(self.server.grpc)
        batches = b""
        while len(batches) < len(self._control):
            offset = 0 if not batches else list(iterate(batches))[-1].header.next_offset
            batches += _patiently(partial(api.fetch, CONTROL, offset, bytes_max=1 << 20)).batches
        api.close()
        if tail != self._control or batches != self._control:
            raise Violation("the control stream has changed")
        with urllib.request.urlopen(
            f"{self.server.http}/readyz", timeout=READ_SECONDS_MAX
        ) as answer:
            if answer.status != 200:
                raise Violation(f"/readyz answers {answer.status}")
        self.reads += 1
        self.worst_read_seconds = max(self.worst_read_seconds, time.monotonic() - begun)

    def _look(self) -> None:
        """Check process, memory, log, and the subject on which publishing is forbidden."""
        now = self.now()
        self.rss_mib = now.rss_mib
        self.peak_mib = max(self.peak_mib, now.rss_mib)
        if now.rss_mib > self._rss_mib_max:
            raise Violation(f"{now.rss_mib:.0f} MiB of memory in use")
        for problem in self.log.problems():
            raise Violation(f"the log says: {problem[:2000]}")
        self._spy.sock.settimeout(0.001)
        try:
            data = self._spy.sock.recv(4096)
        except TimeoutError:
            return
        if b"MSG" in data:
            raise Violation(f"the server published where it must not: {data[:200]!r}")
        if b"PING" in data:
            self._spy.sock.sendall(b"PONG\r\n")

    def now(self) -> Vitals:
        process = self.server.process
        if process is None or process.poll() is not None:
            raise Violation(
                f"the server ended by itself: exit code {process and process.returncode}"
            )
        return vitals(self.server.pid)

    def finish(self) -> None:
        """When every attacker has gone: everything back where it was. Raises Violation."""
        self._stop.set()
        for thread in self._threads:
            thread.join(READ_SECONDS_MAX + ACK_SECONDS_MAX)
        if self.violation:
            raise Violation(self.violation)
        self._settle()
        self._read()
        self._look()
        self._check_acknowledged()
        self.publisher.close()
        self._spy.close()

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while unsettled := self._unsettled():
            if time.monotonic() > deadline:
                raise Violation(f"not back where it was: {', '.join(unsettled)}")
            time.sleep(0.5)

    def _unsettled(self) -> list[str]:
        now, before = self.now(), self.baseline
        found = [
            f"{name} {metric(self.server, name)}"
            for name in (
                "jetstream_data_plane_connections", "jetstream_waiting_fetches",
                "jetstream_pending_acks", "jetstream_uncommitted_bytes",
                "jetstream_streams_offline",
            )
            if metric(self.server, name)
        ]  # fmt: skip
        if now.sockets > before.sockets + 1:  # The last request for metrics may linger.
            found.append(f"{now.sockets} sockets, {before.sockets} before")
        if now.files > before.files + 600:  # The log keeps 512 of its files open.
            found.append(f"{now.files} files, {before.files} before")
        return found

    def _check_acknowledged(self) -> None:
        api = Api(self.server.grpc)
        values: dict[int, bytes | None] = {}
        for batch in api.read_all(BEAT):
            values.update(zip(batch.offsets(), batch.values(), strict=True))
        api.close()
        for offset, value in self.publisher.acknowledged.items():
            if values.get(offset) != value:
                raise Violation(
                    f"acknowledged at {offset}: {value!r}; read: {values.get(offset)!r}"
                )
