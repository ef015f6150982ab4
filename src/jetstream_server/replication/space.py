"""Appends end before the disk is full: below its reserve nothing is taken any more (design 5)."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import structlog

from jetstream_server.replication.replicas import Replicas

CHECK_SECONDS = 1.0

logger = structlog.get_logger("jetstream.server")


async def watch_space(folder: Path, reserve_bytes: int, replicas: Replicas) -> None:
    """Keep `replicas.full_reason` true, for ever."""
    while True:
        reason = why_full(folder, reserve_bytes)
        if bool(reason) != bool(replicas.full_reason):
            logger.log(
                logging.ERROR if reason else logging.INFO,
                "disk_full" if reason else "disk_has_room",
                reason=reason,
                reserve_bytes=reserve_bytes,
            )
        replicas.full_reason = reason
        await asyncio.sleep(CHECK_SECONDS)


def why_full(folder: Path, reserve_bytes: int) -> str:
    """Why nothing more should be appended below `folder`; "" when there is room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the free space of the data folder cannot be told: {error.strerror}"
    if free < reserve_bytes:
        return f"the disk has {free} bytes free, below the reserve of {reserve_bytes}"
    return ""
