"""What processes take of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def processor_shares(pids: list[int], seconds: float) -> list[float]:
    """Per cent of one core that each process takes."""
    before = [_processor_seconds(pid) for pid in pids]
    start = time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - start
    after = [_processor_seconds(pid) for pid in pids]
    return [100 * (b - a) / elapsed for a, b in zip(before, after, strict=True)]


def _processor_seconds(pid: int) -> float:
    """User and system time of all threads (proc(5): fields 14 and 15, counted from 1)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
