"""What the checker and the publishers see of the shipped classes while a cluster runs.

Nothing is changed: each method that is watched is called as it is, and told of.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import structlog

from jetstream_protocol.errors import JetstreamError, StorageError, StorageFullError
from jetstream_server.ingest.nats import link
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.stream.stand_by import StandBy
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.node import node
from jetstream_server.replication.core import unclean_election
from jetstream_server.replication.core.follower import Append, Ignore, Reset, Truncate
from jetstream_server.replication.drivers import (
    compaction,
    isr_driver,
    scrub,
    segment_repair,
)
from jetstream_server.replication.drivers import (
    resignation as resigning,
)
from jetstream_server.replication.drivers.leader_stream import LeaderStream
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.listeners import RoleChange
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.serving.dataplane import connection as connections
from jetstream_server.serving.dataplane import follows
from tests.simulation.disk import Killed
from tests.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.checker import Checker
    from tests.simulation.process import Process
    from tests.simulation.world import World

ANSWER = re.compile(rb"PUB _INBOX\.(\d+) \d+\r\n(\{.*?\})\r\n")
FETCH_BYTES = 1_500
"""A few batches: followers that are behind need several rounds."""
LAG_MAX_US = 2_000_000
"""Sooner than in the product: seeds last for seconds."""


def _process_of(replica: Replica) -> Process:
    process: Process = replica._services.flusher.process  # type: ignore[attr-defined]
    return process


def _checker(replica: Replica) -> Checker:
    """What is held against the logs of its stream."""
    return _process_of(replica).cluster.checker_of(replica.stream.id)


def owner_of(replicas: ReplicaManager) -> Process:
    """The process that they belong to."""
    process: Process = replicas._services.flusher.process  # type: ignore[attr-defined]
    return process


def _append(self: Replica, *arguments: Any) -> int:
    process, end_offset = _process_of(self), self.log.log_end_offset
    try:
        base_offset = _ORIGINAL[Replica, "_append"](self, *arguments)
    except StorageFullError:
        process.world.count("leader's disk full")
        raise
    except StorageError:
        process.world.count("append failed")
        raise
    except Killed:
        if self.log.log_end_offset > end_offset:  # It died while it noted the new end.
            _checker(self).leader_appended(process, self, end_offset, arguments[0])
        raise
    _checker(self).leader_appended(process, self, base_offset, arguments[0])
    if process.world.trace is not None:
        process.note_of(self, f"appends [{base_offset}, {self.log.log_end_offset})")
    return int(base_offset)


def _rose(self: Replica, high_watermark: int) -> None:
    self.high_watermark = high_watermark
    _checker(self).high_watermark_rose(_process_of(self), self)
    _ORIGINAL[Replica, "_rose"](self, high_watermark)


def _accept(self: Replica, *arguments: Any) -> Any:
    process = _process_of(self)
    checker, world = _checker(self), process.world
    before = self.log.log_end_offset
    was_opened = not self.unreadable_reason
    is_sound = not (self.needs_rebuild or self.log.offline_reason or self.log.lost_range)
    # A copy of a compacted log that lacks tombstones begins anew, whatever it holds.
    may_drop = (Truncate,) if self.stream.was_compacted else (Truncate, Reset)
    try:
        step = _ORIGINAL[Replica, "accept"](self, *arguments)
    except StorageFullError:
        world.count("follower's disk full")
        raise
    except JetstreamError as error:
        world.count("bytes refused")
        if world.trace is not None:
            process.note_of(self, f"refuses bytes: {error.message}")
        raise
    else:
        if is_sound and isinstance(step, may_drop):
            checker.dropped(process.node_id, self.log, arguments[0].request.leader_epoch)
    finally:
        if not self.unreadable_reason:
            checker.follow(process.node_id, self.log)
    match step:
        case Append(_, True):
            if world.trace is not None:
                process.note_of(self, f"appended [{before}, {self.log.log_end_offset})")
        case Truncate(offset):
            world.count("truncation")
            if world.trace is not None:
                process.note_of(self, f"truncated from {before} to {offset}")
        case Reset(offset):
            world.count("reset")
            checker.begins(process.node_id, self)
            if not was_opened:
                world.count("log not opened, fetched anew")
                process.logs.append(self.log)
                checker.begun_anew(process.node_id)
            if self.stream.id == process.cluster.stream_id:
                process.cluster.faults.scenario.begins_anew(process)
            if world.trace is not None:
                process.note_of(self, f"begins anew at {offset}")
        case Ignore():
            world.count("stale answer")
    return step


def _update(self: Replica, *arguments: Any) -> Any:
    process = _process_of(self)
    changes = _ORIGINAL[Replica, "update"](self, *arguments)
    if not self.unreadable_reason:
        _checker(self).truncated(process.node_id, self.log)
    for change in changes:
        if process.world.trace is not None:
            process.note_of(self, f"{change.name} epoch {self.stream.leader_epoch}")
        if change is RoleChange.LEADS:
            _checker(self).leads(process, self)
            if self.stream.id == process.cluster.stream_id:
                process.cluster.faults.scenario.begins_to_lead(process)
    return changes


def _fetch(self: Replica, *arguments: Any) -> Any:
    try:
        return _ORIGINAL[Replica, "fetch"](self, *arguments)
    except JetstreamError as error:
        _process_of(self).world.count(f"fetch refused: {error.code}")
        raise


def _failed(self: ReplicaManager, replica: Replica) -> None:
    process = owner_of(self)
    process.world.count("log failed")
    _ORIGINAL[ReplicaManager, "_report_failure"](self, replica)
    process.cluster.faults.log_failed(process)


def _deliver(self: StreamIngest, delivery: Any) -> None:
    _checker(self.replica).acts(owner_of(self._replicas))
    _ORIGINAL[StreamIngest, "deliver"](self, delivery)


def _write(self: NatsConnection, data: bytes) -> bool:
    process: Process = self.process  # type: ignore[attr-defined]
    for match in ANSWER.finditer(data):
        number = int(match.group(1))
        process.cluster.stream_of(number).publishers.said(process, number, match.group(2))
    return bool(_ORIGINAL[NatsConnection, "write"](self, data))


def _store(self: StandBy, ingest: StreamIngest, *arguments: Any) -> bool:
    process = owner_of(ingest._replicas)
    replies = [reply for kept in self._kept or () for reply in kept.replies if reply]
    is_stored = bool(_ORIGINAL[StandBy, "store"](self, ingest, *arguments))
    for reply in replies:
        number = int(reply.rpartition(b".")[2])
        _checker(ingest.replica).stored_by_stand_by(process, number)
    process.world.count("kept for the leader" if is_stored else "kept in vain")
    return is_stored


def _advance(self: Retention, replica: Replica, log_start_offset: int) -> None:
    process = _process_of(replica)
    _checker(replica).removed(process.node_id, replica.log, log_start_offset)
    _ORIGINAL[Retention, "_advance"](self, replica, log_start_offset)


def _must_wait(self: LeaderStream, *arguments: Any) -> bool:
    waits = bool(_ORIGINAL[LeaderStream, "_must_wait"](self, *arguments))
    if waits:
        owner_of(self._replicas).world.count("copy waited")
    return waits


def _rebuilt(self: RunRecordFile, stream_id: int) -> None:
    _WORLD[-1].count("log rebuilt")
    _ORIGINAL[RunRecordFile, "rebuilt"](self, stream_id)


_WATCHED: dict[tuple[type, str], Any] = {
    (Replica, "_append"): _append,
    (Replica, "accept"): _accept,
    (Replica, "update"): _update,
    (Replica, "fetch"): _fetch,
    (Replica, "_rose"): _rose,
    (ReplicaManager, "_report_failure"): _failed,
    (StreamIngest, "deliver"): _deliver,
    (NatsConnection, "write"): _write,
    (StandBy, "store"): _store,
    (RunRecordFile, "rebuilt"): _rebuilt,
    (Retention, "_advance"): _advance,
    (LeaderStream, "_must_wait"): _must_wait,
}
_ORIGINAL: dict[tuple[type, str], Any] = {}
"""As they are when the cluster begins to run: a mutant may have replaced them."""
_WORLD: list[World] = []


def _adapted_to(world: World) -> list[tuple[Any, str, Any]]:
    """What the shipped classes draw, the time that they do not get from their environment, and
    how often they look at what seldom changes."""

    def token_hex(length: int) -> str:
        return world.random.randbytes(length).hex()

    secrets = SimpleNamespace(token_hex=token_hex)
    return [
        (scrub, "random", world.random),
        (compaction, "secrets", secrets),
        (segment_repair, "secrets", secrets),
        (LogThrottle.__init__, "__defaults__", (lambda: world.now / 1e6,)),
        (link, "READ_BYTES_MAX", link.READ_BYTES_MIN),
        # Seldomer than in the product: looking costs more than what is seen.
        (node, "LEASE_CHECK_SECONDS", 0.2),
        (isr_driver, "TICK_SECONDS", 0.2),
        (resigning, "LOOK_SECONDS", 0.5),
        # Oftener: seeds last for seconds.
        (connections, "KEEP_ALIVE_SECONDS", 0.3),
        (follows, "KEEP_ALIVE_SECONDS", 0.3),
        # The server's is longer than a whole run.
        (unclean_election, "OTHERS_WAIT_US", 2_000_000),
    ]


@contextmanager
def observed(world: World) -> Iterator[None]:
    """For as long as a cluster runs. One at a time."""
    assert not _WORLD, "one cluster runs at a time"
    with ExitStack() as stack:
        _WORLD.append(world)
        stack.callback(_WORLD.clear)
        for owner, name in _WATCHED:
            _ORIGINAL[owner, name] = getattr(owner, name)
        for method in (_ORIGINAL[Replica, "fetch"], Replica.answer_again):
            stack.enter_context(patch.object(method, "__defaults__", (FETCH_BYTES,)))
        for owner, name, value in _adapted_to(world):
            stack.enter_context(patch.object(owner, name, value))
        lag = {"lag_max_us": LAG_MAX_US}
        stack.enter_context(patch.dict(Replica.__init__.__kwdefaults__, lag))
        for (owner, name), watch in _WATCHED.items():
            stack.enter_context(patch.object(owner, name, watch))
        config = structlog.get_config()
        structlog.configure(
            processors=[_tell],
            wrapper_class=structlog.make_filtering_bound_logger(
                10 if world.trace is not None else 40
            ),
        )
        stack.callback(lambda: structlog.configure(**config))
        yield


def _tell(_: object, __: str, event: Any) -> Any:
    """What the nodes log is part of the trace. An exception that somebody caught only to log it is
    none that the product expects."""
    if event.get("exc_info"):
        _WORLD[-1].broken(event["event"], _exception_of(event["exc_info"]))
    loop = asyncio._get_running_loop()
    name = loop.name if isinstance(loop, SimulatedLoop) else "?"
    _WORLD[-1].note(
        f"{name}: " + " ".join(f"{key}={value}" for key, value in sorted(event.items()))
    )
    raise structlog.DropEvent


def _exception_of(exc_info: Any) -> Exception | None:
    """Of an `exc_info`, in each of its forms."""
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    return error if isinstance(error, Exception) else cast("Exception", sys.exception())
