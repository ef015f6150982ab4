"""Closes the logs of a node that stops."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_server.replication.core.replica import Replica

CLOSING_AT_A_TIME = 32

logger = structlog.get_logger("jetstream.replicas")


def close_cleanly(
    replicas: Sequence[Replica], threads: Executor | None, *, is_registered: bool
) -> bool:
    """Flush and close all logs, which nothing else may use any more. Returns whether all succeeded.

    **safety** A log that could not be opened is not clean, before the metadata knows that it is not
    trusted (is_registered): what an earlier run wrote may still not be on disk.

    threads: runs the work; by default CLOSING_AT_A_TIME threads of its own, because the disk serves
    many threads about as fast as one.
    """
    with threads or ThreadPoolExecutor(CLOSING_AT_A_TIME, "jetstream-closing") as threads:
        closed = list(threads.map(_close, replicas))
    is_known = is_registered or not any(replica.unreadable_reason for replica in replicas)
    return all(closed) and is_known


def _close(replica: Replica) -> bool:
    """Flush and close one log. Runs in a thread."""
    try:
        replica.log.close(clean=True)
    except JetstreamError as error:
        logger.error("log_not_closed", stream=replica.stream.full_name, reason=str(error))
        return False
    return True
