"""What processes take of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def processor_shares(pids: list[int], seconds: float) -> list[float]:
    """Per cent of one core that each process takes."""
    before = [_processor_seconds(pid) for pid in pids]
    start = time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - start
    after = [_processor_seconds(pid) for pid in pids]
    return [100 * (b - a) / elapsed for a, b in zip(before, after, strict=True)]


def processor_seconds(pids: list[int]) -> float:
    """Until now, of all of them."""
    return sum(map(_processor_seconds, pids))


def exact_processor_seconds(pid: int) -> float:
    """Until now, of all threads, as exact as the kernel's clock of that process
    (clock_getcpuclockid(3)); the others here count in hundredths of a second."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


class ServerSeconds(NamedTuple):
    """Processor time of the servers that this process has started, and of their children."""

    nodes: float
    nats: float

    def since(self, before: ServerSeconds) -> ServerSeconds:
        return ServerSeconds(self.nodes - before.nodes, self.nats - before.nats)


def server_seconds() -> ServerSeconds:
    """Until now; of those that run."""
    nodes = nats = 0.0
    for pid in _descendants(os.getpid()):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"nats-server" in command.split(b"\0")[0]:
            nats += _processor_seconds(pid)
        elif b"jetstream-server" in command or b"jetstream_server" in command:
            nodes += _processor_seconds(pid)
    return ServerSeconds(nodes, nats)


def seconds_of_others(but: list[int]) -> float:
    """Processor time until now of all that this process has started, and that those have, also of
    what has ended since, without the processes named."""
    pids = [pid for pid in _descendants(os.getpid()) if pid not in but]
    return sum(_processor_seconds(pid, with_children=True) for pid in pids)


def _descendants(ancestor: int) -> Iterator[int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # It has ended meanwhile.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    for pid in parents:
        above = parents.get(pid)
        while above not in (None, ancestor):
            above = parents.get(above)
        if above == ancestor:
            yield pid


def _processor_seconds(pid: int, *, with_children: bool = False) -> float:
    """User and system time of all threads (proc(5): fields 14 and 15, counted from 1).
    with_children: and that of the children that have ended (16 and 17)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
