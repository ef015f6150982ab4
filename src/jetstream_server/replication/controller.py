"""The controller's slower work, on the server's loop: leaderships evened out, drained, regained.

Lives on every node and acts only while its node is the controller, every command under that epoch
and against the stream epoch it was decided on. Fencing, which must not wait for a busy loop, is
elsewhere (controller_sessions.py).

* The leaderships of a node that is drained or stops go to other ISR members, least burdened first.
* Leaderships are evened out (max − min ≤ 1) while every node is alive and none has come or gone for
  `settle_seconds`: a node that restarts again and again is given nothing back meanwhile.
* A stream with neither ISR nor ELR is led by the replica that holds most, once all of the last
  known ones have said how much that is (unclean.py).

Each hand-over is the leader's own doing (hand_over.py): evening out goes stream by stream, and
one that its leader cannot hand over now stays for a later round; a draining node's leaderships go
several at a time, and in the end without its help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import monotonic_us
from jetstream_server.metadata.changes import Change, NodeChanged
from jetstream_server.metadata.controller import Election, balancing_moves
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.metadata.streams import NodeMetadata, StreamMetadata
from jetstream_server.metadata.tables import Tables
from jetstream_server.replication.session_messages import LogEnd
from jetstream_server.replication.unclean import ReplicaReport, choose_unclean

MOVES_MAX = 64
"""Per round: a restarted node is given a thousand leaderships back in a quarter of a minute."""
DRAINED_AT_A_TIME = 16
"""A node that stops has ten seconds; each hand-over takes some ten milliseconds, mostly waiting."""

_log = structlog.get_logger("jetstream.replication")

LogEnds = Mapping[NodeId, Mapping[StreamId, LogEnd]]
HandOver = Callable[[StreamMetadata, NodeId], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times in seconds. settle: longer than a restarted node takes to register again, short
    enough that all is even within a minute."""

    round_seconds: float = 1.0
    settle_seconds: float = 5.0
    balance: bool = True


class Controller:
    """`start`, then `close`.

    hand_over: has a stream's leader hand over to that ISR member; raises a JetstreamError if it
    does not. Without it the metadata is simply changed.
    """

    def __init__(
        self,
        metadata: RaftMetadataLog,
        log_ends: Callable[[], LogEnds],
        settings: ControllerSettings | None = None,
        hand_over: HandOver | None = None,
        *,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self._metadata = metadata
        self._log_ends = log_ends
        self._settings = settings or ControllerSettings()
        self._hand_over = hand_over or self._transfer
        self._working: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._now_us = now_us
        self._settled_at_us = 0
        self._epoch: int | None = None

    def start(self) -> None:
        self._stop_watching = self._metadata.watch(self._changed)
        self._working = run_in_background(self._work(), "controller")

    async def close(self) -> None:
        if self._working is not None:
            self._stop_watching()
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    def _changed(self, change: Change) -> None:
        if isinstance(change, NodeChanged):
            self._unsettle()
            if change.after is not None and change.after.steps_aside:
                self._wake.set()

    def _unsettle(self) -> None:
        self._settled_at_us = self._now_us() + round(self._settings.settle_seconds * 1e6)

    async def _work(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.round_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass  # No haste: just the next round.
            self._wake.clear()
            epoch = self._metadata.controller_epoch
            if epoch != self._epoch:
                self._epoch = epoch
                self._unsettle()
            if epoch is not None:
                await self._round()

    async def _round(self) -> None:
        tables = self._metadata.registry
        try:
            for command in unclean_elections(tables.streams, tables.nodes, self._log_ends()):
                await self._elect(command)
            await self._drain(draining_moves(tables, MOVES_MAX))
            if self._may_balance(tables):
                await self._balance(tables)
        except NotLeaderError:
            return  # Not the controller any more.
        except JetstreamError as error:
            _log.info("controller_round_ended", reason=error.message)

    async def _balance(self, tables: Tables) -> None:
        """A node that refuses a leadership would refuse the others, too: it is asked no more."""
        refusing: set[NodeId] = set()
        for stream_id, target in balancing_moves(tables, MOVES_MAX):
            if target in refusing:
                continue
            if not await self._move(stream_id, target, insist=False):
                refusing.add(target)
            if not self._may_balance(tables):
                break

    def _may_balance(self, tables: Tables) -> bool:
        return (
            self._settings.balance
            and self._now_us() >= self._settled_at_us
            and not any(node.fenced for node in tables.nodes.values())
        )

    async def _elect(self, command: dict[str, Any]) -> None:
        try:
            await self._metadata.propose(command, as_controller=True)
        except (PreconditionFailedError, StreamNotFoundError, UnavailableError):
            return  # The same; or a node that had reported is gone again.
        _log.warning(
            "leader_elected_uncleanly", stream_id=command["stream_id"], leader=command["leader"]
        )

    async def _drain(self, moves: list[tuple[StreamId, NodeId]]) -> None:
        """Several at a time; at once again while there are more."""
        slots = asyncio.Semaphore(DRAINED_AT_A_TIME)

        async def move(stream_id: StreamId, target: NodeId) -> None:
            async with slots:
                await self._move(stream_id, target, insist=True)

        async with asyncio.TaskGroup() as tasks:
            for stream_id, target in moves:
                tasks.create_task(move(stream_id, target))
        if len(moves) == MOVES_MAX:
            self._wake.set()

    async def _move(self, stream_id: StreamId, target: NodeId, *, insist: bool) -> bool:
        """Hand one stream over, if it is still as it was when that was decided. insist: also when
        its leader does not. False: it could not be handed over."""
        stream = self._metadata.registry.streams.get(stream_id)
        if stream is None or stream.leader == target or target not in stream.isr:
            return True
        try:
            await self._hand_over(stream, target)
        except (PreconditionFailedError, StreamNotFoundError, NotLeaderError):
            return True  # It changed meanwhile: the next round looks again.
        except JetstreamError as error:
            _log.info("leadership_not_handed_over", stream=stream.full_name, reason=error.message)
            if insist:
                await self._insist(stream, target)
            return False
        return True

    async def _insist(self, stream: StreamMetadata, target: NodeId) -> None:
        """Whether or not the leader hears of it: void if it has handed over after all."""
        try:
            await self._transfer(stream, target)
        except (PreconditionFailedError, StreamNotFoundError):
            return
        except JetstreamError as error:
            _log.info("controller_round_ended", reason=error.message)

    async def _transfer(self, stream: StreamMetadata, target: NodeId) -> None:
        command = {
            "op": "transfer_leader",
            "stream_id": stream.id,
            "leader": target,
            "stream_epoch": stream.stream_epoch,
        }
        await self._metadata.propose(command, as_controller=True)


def draining_moves(tables: Tables, moves_max: int) -> list[tuple[StreamId, NodeId]]:
    """Leaderships of nodes that step aside, as (stream, new leader): wherever another ISR member
    stays."""
    election = Election(tables.nodes, tables.leaderships)
    moves: list[tuple[StreamId, NodeId]] = []
    for stream in _led_by_who_steps_aside(tables):
        if len(moves) == moves_max:
            break
        staying = [
            node_id
            for node_id in stream.isr
            if node_id in tables.nodes and not tables.nodes[node_id].steps_aside
        ]
        target = election.choose(staying)
        if target != NO_NODE:
            election.remove(stream.leader)
            moves.append((stream.id, target))
    return moves


def _led_by_who_steps_aside(tables: Tables) -> Iterator[StreamMetadata]:
    for node_id in sorted(tables.nodes):
        if tables.nodes[node_id].steps_aside and tables.leaderships.get(node_id):
            for stream in tables.streams_of(node_id):
                if stream.leader == node_id:
                    yield stream


def unclean_elections(
    streams: Mapping[StreamId, StreamMetadata],
    nodes: Mapping[NodeId, NodeMetadata],
    log_ends: LogEnds,
) -> list[dict[str, Any]]:
    """elect_leader commands for the streams whose last known replicas have all reported."""
    reported = sorted({stream_id for known in log_ends.values() for stream_id in known})
    commands = []
    for stream_id in reported:
        stream = streams.get(stream_id)
        if stream is None or stream.leader != NO_NODE:
            continue
        reports: dict[NodeId, ReplicaReport] = {}
        for node_id in sorted(log_ends):
            log_end = log_ends[node_id].get(stream_id)
            # **safety** In a later epoch the log may have gone on.
            if log_end is not None and log_end.leader_epoch == stream.leader_epoch:
                reports[node_id] = log_end.report
        command = choose_unclean(stream, nodes, reports)
        if command is not None:
            commands.append(command)
    return commands
