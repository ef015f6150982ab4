"""The follower's driver: keeps one request with the leader, and does what its answers ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    StorageError,
    StorageFullError,
)
from jetstream_server.replication.follower import Append, Ignore, Reset, Truncate
from jetstream_server.replication.messages import Answer, FetchRequest

if TYPE_CHECKING:
    from jetstream_server.replication.replica import Replica
    from tests.simulation.process import Process

PATIENCE_US = 600_000
"""After so long without an answer the request is sent again."""


class Fetcher:
    """One stream's."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked: FetchRequest | None = None
        self._asked_at_us = 0

    def tick(self) -> None:
        if self._process.world.now - self._asked_at_us > PATIENCE_US:
            self._asked = None
        self.pump()

    def pump(self) -> None:
        """Ask, unless the same question is with the leader already."""
        process = self._process
        replica = process.replica
        position = None if replica is None or process.failed else replica.position()
        if position is None or position == self._asked:
            return
        assert replica is not None
        self._asked = position
        self._asked_at_us = process.world.now
        process.cluster.network.send(
            process.node_id,
            replica.stream.leader,
            "on_fetch",
            process.node_id,
            position,
            replica.high_watermark,
        )

    def _retain(self, replica: Replica) -> None:
        """Drop what the leader has dropped, as limits that keep nothing justify it."""
        log = replica.log
        bound = min(replica.leader_log_start_offset, replica.high_watermark)
        try:
            if bound > log.log_start_offset:
                log.delete_segments_before(bound)
        except StorageFullError:
            pass  # The next answer says it again.
        except StorageError as error:
            self._process.fail(error)

    def on_answer(self, answer: Answer, data: bytes) -> None:
        process = self._process
        replica, checker = process.replica, process.cluster.checker
        if replica is None or replica.closed or process.failed:
            return
        before = replica.log.log_end_offset
        try:
            step = replica.accept(answer, data, process.world.now)
        except (CorruptBatchError, DivergedError) as error:
            process.world.count("bytes refused")
            if process.world.trace is not None:
                process.note(f"refuses bytes: {error.message}")
            self._asked = None
            return
        except StorageFullError:
            process.world.count("follower's disk full")
            checker.follow(process.node_id, replica.log)
            return
        except StorageError as error:
            process.fail(error)
            return
        finally:
            checker.truncated(process.node_id, replica.log)
        match step:
            case Append(_, True):
                checker.follow(process.node_id, replica.log)
                if process.world.trace is not None:
                    process.note(f"appended [{before}, {replica.log.log_end_offset})")
                self._retain(replica)
            case Truncate(offset):
                process.world.count("truncation")
                if process.world.trace is not None:
                    process.note(f"truncated from {before} to {offset}")
            case Reset(offset):
                process.world.count("reset")
                if process.world.trace is not None:
                    process.note(f"begins anew at {offset}")
                process.rebuilt()
            case Ignore():
                process.world.count("stale answer")
                return
        self._asked = None
        if not process.alive:
            return
        process.request_flush()
        self.pump()
