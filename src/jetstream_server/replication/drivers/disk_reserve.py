"""Refuses appends before the disk is full: when less than the reserve is free, and tells the
metadata group, which places nothing there then. Keeps room for the metadata in a file, because
others may fill the disk to the last byte."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import NodeId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.raft.reserve import keep_room
from jetstream_server.metadata.state.commands import DISK_LEVEL, NoteDisk
from jetstream_server.replication.replica_manager import ReplicaManager

CHECK_SECONDS_MAX = 1.0
CHECK_SECONDS_MIN = 0.01
FASTEST_BYTES_PER_SECOND = 2 << 30
"""Upper bound on what a node appends in a second; it sets the time between two checks."""

ROOM_US = 60_000_000
"""How long a disk has had room before the group is told. A disk that fills, and is emptied by
retention, again and again so makes two commands a minute at most."""
RETRY_SECONDS = 1.0

logger = structlog.get_logger("jetstream.server")


class DiskMark:
    """Keeps `disk_full` of this node in the metadata as its disk is: set at once, and taken away
    after ROOM_US. Call `look` with every check."""

    def __init__(
        self, metadata: RaftMetadataLog, node_id: int, *, monotonic_clock: MonotonicClock
    ) -> None:
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._monotonic_clock = monotonic_clock
        self._full_at_us = monotonic_clock()
        self._telling: asyncio.Task[None] | None = None

    def look(self, is_full: bool) -> None:
        now_us = self._monotonic_clock()
        if is_full:
            self._full_at_us = now_us
        elif now_us - self._full_at_us < ROOM_US:
            return
        tables, run = self._metadata.registry, self._metadata.incarnation
        node = tables.nodes.get(self._node_id)
        if node is None or node.incarnation != run or node.disk_full == is_full:
            return
        if tables.settings.feature_level >= DISK_LEVEL and self._telling is None:
            command = NoteDisk(node_id=self._node_id, node_incarnation=run, full=is_full)
            self._telling = run_in_background(self._tell(command), "telling of the disk")

    async def _tell(self, command: NoteDisk) -> None:
        try:
            await self._metadata.propose(command)
        except JetstreamError as error:
            logger.info("disk_not_told", reason=error.message)
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._telling = None


async def watch_space(
    folder: Path, reserve_bytes: int, replicas: ReplicaManager, mark: DiskMark
) -> None:
    """Check the free space for ever, and refuse appends while the disk is full."""
    while True:
        reason, seconds = check_space(folder, reserve_bytes)
        if bool(reason) != bool(replicas.full_reason):
            logger.log(
                logging.ERROR if reason else logging.INFO,
                "disk_full" if reason else "disk_has_room",
                reason=reason,
                reserve_bytes=reserve_bytes,
            )
        replicas.refuse_appends(reason)
        mark.look(bool(reason))
        await asyncio.to_thread(keep_room, str(folder / "metadata"), reserve_bytes // 2)
        await asyncio.sleep(seconds)


def check_space(folder: Path, reserve_bytes: int) -> tuple[str, float]:
    """Why nothing more may be appended below `folder`, "" when there is space; and the seconds
    until the next check."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        reason = f"the free space of the data folder is unknown: {error.strerror}"
        return reason, CHECK_SECONDS_MAX
    if free < reserve_bytes:
        reason = (
            f"no appends are taken, because the disk has {_mebibytes(free)} free, "
            f"below the reserve of {_mebibytes(reserve_bytes)}"
        )
        return reason, CHECK_SECONDS_MAX
    return "", seconds_to_check(free, reserve_bytes)


def seconds_to_check(free: int, reserve_bytes: int) -> float:
    """How long at least half of the reserve stays free, whatever is appended. Not shorter than
    CHECK_SECONDS_MIN, which is enough for reserves of 41 MiB."""
    seconds = (free - reserve_bytes / 2) / FASTEST_BYTES_PER_SECOND
    return min(max(seconds, CHECK_SECONDS_MIN), CHECK_SECONDS_MAX)


def free_bytes(folder: Path) -> int | None:
    """Free bytes in the file system of the folder; None: unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _mebibytes(size: int) -> str:
    """Bytes as MiB: rounded down, so that what is below the reserve never reads like it."""
    return f"{size // (1 << 20) if size >= 10 << 20 else size * 10 // (1 << 20) / 10:g} MiB"
