"""Refuses appends before the disk is full: when less than the reserve is free."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import structlog

from jetstream_server.replication.replica_manager import ReplicaManager

CHECK_SECONDS_MAX = 1.0
CHECK_SECONDS_MIN = 0.01
FASTEST_BYTES_PER_SECOND = 2 << 30
"""That no node appends more in a second is assumed between two checks."""

logger = structlog.get_logger("jetstream.server")


async def watch_space(folder: Path, reserve_bytes: int, replicas: ReplicaManager) -> None:
    """Check the free space for ever, and refuse appends while the disk is full."""
    while True:
        reason = why_full(folder, reserve_bytes)
        if bool(reason) != bool(replicas.full_reason):
            logger.log(
                logging.ERROR if reason else logging.INFO,
                "disk_full" if reason else "disk_has_room",
                reason=reason,
                reserve_bytes=reserve_bytes,
            )
        replicas.refuse_appends(reason)
        await asyncio.sleep(seconds_to_check(free_bytes(folder), reserve_bytes))


def seconds_to_check(free: int | None, reserve_bytes: int) -> float:
    """Until the next check: soon enough that at least half of the reserve is free then."""
    if free is None or free < reserve_bytes:
        return CHECK_SECONDS_MAX  # Nothing is appended now.
    seconds = (free - reserve_bytes / 2) / FASTEST_BYTES_PER_SECOND
    return min(max(seconds, CHECK_SECONDS_MIN), CHECK_SECONDS_MAX)


def free_bytes(folder: Path) -> int | None:
    """Free bytes in the file system of the folder; None: unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def why_full(folder: Path, reserve_bytes: int) -> str:
    """Why nothing more may be appended below `folder`; "" when there is space."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the free space of the data folder cannot be told: {error.strerror}"
    if free < reserve_bytes:
        return (
            f"no appends are taken, because the disk has {_mebibytes(free)} free, "
            f"below the reserve of {_mebibytes(reserve_bytes)}"
        )
    return ""


def _mebibytes(size: int) -> str:
    """Bytes as MiB: rounded down, so that what is below the reserve never reads like it."""
    return f"{size // (1 << 20) if size >= 10 << 20 else size * 10 // (1 << 20) / 10:g} MiB"
