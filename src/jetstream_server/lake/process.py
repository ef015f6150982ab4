"""The lake by a process of its own (reading.py), which is started again if it ends.

**safety** What a store sends may take all memory, or crash a library: here only the answers of our
own process are read. What it does not answer in time ends it.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import CorruptBatchError, JetstreamError, UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.clocks import MonotonicClock
from jetstream_server.lake.access import Group, Swept, SweptFolder
from jetstream_server.lake.stores import StoreError, StoreOptions

MODULE: Final = "jetstream_server.lake.reading"
RESTART_US: Final = 2_000_000
"""Between two starts, which cost a second of processor time each."""
SWEEP_SECONDS: Final = 3600.0
"""A listing, or the deletion of what is due."""
_END_SECONDS: Final = 1.0
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 65_536


@dataclass(slots=True)
class _Running:
    """idle: connections without a request; the one that was used last is taken, as each has a
    thread, whose first reads take twice as long. reason: why it was ended; "": it was not."""

    process: subprocess.Popen[bytes]
    idle: queue.LifoQueue[socket.socket]
    begun_us: MonotonicUs
    has_ended: bool = False
    reason: str = ""

    def end(self, after_seconds: float = 0.0) -> int | None:
        """End it, unless it ends by itself. Returns its exit status; None: it hangs in the kernel,
        as on a lost mount."""
        self.has_ended = True
        if after_seconds:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(after_seconds)
        self.process.kill()
        with suppress(queue.Empty):
            while True:
                self.idle.get_nowait().close()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_END_SECONDS)
        return None


class LakeProcess:
    """A Lake. connections: as many as there are threads that ask. seconds: how long one read may
    take."""

    def __init__(
        self, options: StoreOptions, connections: int, seconds: float, clock: MonotonicClock
    ) -> None:
        self.url = options.url.rstrip("/")
        self._options = options
        self._connections = connections
        self._seconds = seconds
        self._clock = clock
        self._running: _Running | None = None
        self._is_stopped = False

    def begin(self) -> None:
        """Start it, unless it runs. On the loop's thread: it ends with the thread that started
        it."""
        running = self._running
        if self._is_stopped:
            return
        if running is not None:
            if not running.has_ended and running.process.poll() is None:
                return
            if self._clock() - running.begun_us < RESTART_US:
                return
            running.end()
        with suppress(OSError):  # No descriptor or no memory is free. The next request tries again.
            self._running = self._start()

    def _start(self) -> _Running:
        with ExitStack() as mine, ExitStack() as their_ends:
            idle: queue.LifoQueue[socket.socket] = queue.LifoQueue()
            theirs = []
            for _ in range(self._connections):
                one, other = socket.socketpair()
                idle.put(mine.enter_context(one))
                theirs.append(their_ends.enter_context(other).fileno())
            told = {"store": asdict(self._options), "parent": os.getpid(), "connections": theirs}
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # What ends or hangs up a terminal is for the server alone.
                pass_fds=theirs,
            )
            mine.pop_all()
        return _Running(process, idle, self._clock())

    def stop(self) -> None:
        self._is_stopped = True
        if self._running is not None:
            self._running.end()

    def metadata(self, location: str) -> bytes:
        found: str = self._ask("metadata", location)
        return found.encode()

    def group(self, location: str, offset: int) -> Group:
        return Group(**self._ask("group", location, offset))

    def read_into(self, name: str, at: int, path: str) -> int:
        return int(self._ask("read_into", name, at, path))

    def offset_at(self, location: str, timestamp_us: int) -> int | None:
        found: int | None = self._ask("offset_at", location, timestamp_us)
        return found

    def appended_at(self, location: str, offset: int) -> int:
        return int(self._ask("appended_at", location, offset))

    def list_folder(self, folder: SweptFolder) -> int:
        return int(self._ask("list_folder", asdict(folder), seconds=SWEEP_SECONDS))

    def sweep(
        self, folder: SweptFolder, listing: int, location: str, now_us: MonotonicUs, dry_run: bool
    ) -> Swept:
        given = asdict(folder), listing, location, now_us, dry_run
        found = self._ask("sweep", *given, seconds=SWEEP_SECONDS)
        return Swept(**{**found, "waits": [(name, us) for name, us in found["waits"]]})

    def forget(self, folder: str) -> None:
        self._ask("forget", folder)

    def sweep_folders(
        self, cluster_id: str, grace_us: int, deleted: Collection[str], now_us: MonotonicUs
    ) -> Sequence[str]:
        given = cluster_id, grace_us, list(deleted), now_us
        found: list[str] = self._ask("sweep_folders", *given, seconds=SWEEP_SECONDS)
        return found

    def _ask(self, do: str, *given: Any, seconds: float | None = None) -> Any:
        running, limit = self._running, self._seconds if seconds is None else seconds
        if self._is_stopped:
            raise UnavailableError("this node stops")
        if running is None or running.has_ended:
            raise UnavailableError("the process that reads the lake has ended; try again")
        request = json.dumps({"do": do, "with": given}).encode() + b"\n"
        try:
            connection = running.idle.get_nowait()
            answer = _converse(connection, request, self._clock, limit)
        except TimeoutError:
            running.reason = f"the lake was not read within {limit:g} s"
            running.end()
            raise UnavailableError(running.reason) from None
        except (OSError, EOFError, ValueError, queue.Empty):
            if running.reason:
                raise UnavailableError(f"another read: {running.reason}; try again") from None
            status = running.end(_END_SECONDS)
            asked = given[0]["name"] if isinstance(given[0], dict) else given[0]
            raise UnavailableError(
                f"the process that reads the lake ended with status {status} at {asked}, as it "
                "does if what the store sends takes too much memory; try again"
            ) from None
        running.idle.put(connection)
        if "error" in answer:
            raise _error(answer["kind"], answer["error"])
        return answer["value"]


def _error(kind: str, reason: str) -> JetstreamError | OSError | ValueError:
    if kind == "corrupt":
        return CorruptBatchError(reason)
    if kind == "unavailable":
        return UnavailableError(reason)
    return StoreError(reason) if kind == "store" else ValueError(reason)


def _converse(
    connection: socket.socket, request: bytes, clock: MonotonicClock, seconds: float
) -> dict[str, Any]:
    """The line that it answers. Raises OSError, EOFError, ValueError; the connection is closed
    then."""
    deadline_us = clock() + round(seconds * 1e6)
    is_well = False
    try:
        connection.settimeout(seconds)
        connection.sendall(request)
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) > _LINE_BYTES_MAX:
                raise ValueError("the answer is too long")
            left = (deadline_us - clock()) / 1e6
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            piece = connection.recv(_PIECE_BYTES)
            if not piece:
                raise EOFError
            line += piece
        answer: dict[str, Any] = bounded_json.loads(line)
        is_well = True
        return answer
    finally:
        if not is_well:
            connection.close()
