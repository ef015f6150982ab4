"""The controller's slower work, on the server's loop: balance, drain, and elections.

It exists on every node and acts only while its node is the controller. Every command carries the
controller epoch and the stream epoch of its decision. Fencing must not wait for a busy loop, so
sessions/controller_sessions.py does it.

* The leaderships of a node that drains or stops go to other ISR members, first to those with the
  fewest leaderships.
* Leaderships are balanced (max − min ≤ 1) while every node is alive and none has come or gone for
  `settle_seconds`, so that a node that restarts again and again gets none back. Nor does one that
  followers cannot reach (depositions.py).
* A stream with neither ISR nor ELR gets the replica that holds most as its leader, once those that
  may hold it have reported how far they reach (unclean_election.py).
* A stream that is moved loses its old replicas once the new ones are in sync.
* The feature level is raised to the level that every registered node understands.

The leader itself hands over (hand_over.py). Balancing goes stream by stream; a stream that cannot
be handed over at the moment is left out for a while, and others are moved instead. A draining
node's leaderships go several at a time, and finally without its help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, MonotonicUs, NodeId, StreamId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock, monotonic_clock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.changes import Change, LeaderDeposed, NodeChanged
from jetstream_server.metadata.state.commands import (
    ElectLeader,
    FinishReassignment,
    SetCluster,
    TransferLeader,
)
from jetstream_server.metadata.state.placement import Election, balancing_moves
from jetstream_server.metadata.state.reassignment_decisions import may_finish
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.depositions import PAUSE_US, Depositions
from jetstream_server.replication.core.unclean_election import ReplicaReport, UncleanElections
from jetstream_server.replication.sessions.session_messages import LogEnd

MOVES_MAX = 64
"""Hand-overs per round: a restarted node gets a thousand leaderships back in 15 seconds."""
DRAINED_AT_A_TIME = 16
"""Hand-overs at a time. A stopping node has ten seconds; each takes about ten milliseconds, mostly
waiting."""
QUICK_US = 1_000_000
AGAIN_SECONDS = 0.5
"""Who must give leaderships up, and was refused by all within QUICK_US, asks once more after this
pause: a node that has just stood still hears NATS again within that."""
RETRY_US = 10_000_000
"""µs without another failure until balancing tries the streams again that could not be handed
over."""

logger = structlog.get_logger("jetstream.replication")

LogEnds = Mapping[NodeId, Mapping[StreamId, LogEnd]]
HandOver = Callable[[StreamMetadata, NodeId], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times in seconds. settle: longer than a restarted node takes to register, and so short that
    everything is balanced within a minute. pause: see depositions.py."""

    round_seconds: float = 1.0
    settle_seconds: float = 5.0
    pause_seconds: float = PAUSE_US / 1e6
    balance: bool = True


class Controller:
    """Call `start`, then `close`.

    hand_over: makes a stream's leader hand over to that ISR member; raises a JetstreamError if it
    does not. None: only the metadata is changed.
    """

    def __init__(
        self,
        metadata: RaftMetadataLog,
        log_ends: Callable[[], LogEnds],
        settings: ControllerSettings | None = None,
        hand_over: HandOver | None = None,
        *,
        monotonic_clock: MonotonicClock = monotonic_clock,
    ) -> None:
        self._metadata = metadata
        self._log_ends = log_ends
        self._settings = settings or ControllerSettings()
        self._hand_over = hand_over or self._transfer
        self._working: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._monotonic_clock = monotonic_clock
        self._settled_at_us = MonotonicUs(0)
        self._epoch: int | None = None
        self._unclean_elections = UncleanElections()
        self._stuck: set[StreamId] = set()
        self._retry_at_us = MonotonicUs(0)
        self._depositions = Depositions(round(self._settings.pause_seconds * 1e6))

    def start(self) -> None:
        self._stop_watching = self._metadata.watch(self._changed)
        self._working = run_in_background(self._work(), "controller")

    async def close(self) -> None:
        if self._working is not None:
            self._stop_watching()
            await end_tasks(self._working)

    def _changed(self, change: Change) -> None:
        match change:
            case NodeChanged(before, after):
                self._unsettle()
                if node := after or before:
                    self._depositions.forget(node.node_id)
                if after is not None and after.yields_leadership:
                    self._wake.set()
            case LeaderDeposed(leader=leader):
                pause_us = self._depositions.note(leader, self._monotonic_clock())
                if pause_us and self._metadata.controller_epoch is not None:
                    logger.warning("leaderships_withheld", node=leader, seconds=pause_us / 1e6)

    def _unsettle(self) -> None:
        settle_us = round(self._settings.settle_seconds * 1e6)
        self._settled_at_us = MonotonicUs(self._monotonic_clock() + settle_us)

    async def _work(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.round_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass  # Try again in the next round.
            self._wake.clear()
            epoch = self._metadata.controller_epoch
            if epoch != self._epoch:
                self._epoch = epoch
                self._unclean_elections = UncleanElections()
                self._unsettle()
            if epoch is not None:
                await self._round()

    async def _round(self) -> None:
        tables = self._metadata.registry
        try:
            reports = current_reports(tables.streams, self._log_ends())
            for command in self._unclean_elections.due(tables, reports, self._monotonic_clock()):
                await self._elect(command)
            await self._hand_over_each(draining_moves(tables, MOVES_MAX))
            await self._raise_feature_level(tables)
            await self._reassign(tables)
            if self._may_balance(tables):
                await self._balance(tables)
        except NotLeaderError:
            return  # This node is not the controller any more.
        except JetstreamError as error:
            logger.info("controller_round_ended", reason=error.message)

    async def _raise_feature_level(self, tables: Tables) -> None:
        """Raise the feature level to the one that every registered node understands."""
        level = min((node.feature_level_max for node in tables.nodes.values()), default=None)
        if level is not None and level > tables.settings.feature_level:
            await self._metadata.propose(SetCluster(feature_level=level), as_controller=True)
            logger.info("feature_level_raised", feature_level=level)

    async def _reassign(self, tables: Tables) -> None:
        """Finish the moves of streams whose new replicas are all in sync. One of them has to lead
        before the old ones are removed."""
        await self._hand_over_each(leaving_leaders(tables, MOVES_MAX))
        for stream_id in list(tables.reassigned):
            stream = tables.streams.get(stream_id)
            if stream is not None and may_finish(stream):
                await self._finish(stream)

    async def _finish(self, stream: StreamMetadata) -> None:
        command = FinishReassignment(stream_id=stream.id, stream_epoch=stream.stream_epoch)
        try:
            await self._metadata.propose(command, as_controller=True)
        except (PreconditionFailedError, StreamNotFoundError):
            return  # The stream has changed; the next round decides again.
        logger.info("stream_moved", stream=stream.full_name, replicas=stream.target_replicas)

    async def _balance(self, tables: Tables) -> None:
        """Balance leaderships. The cause of a failure may be the node or the stream. So the node is
        not asked again in this round, which each failure may hold up for seconds, and later rounds
        ask it for other streams."""
        if self._monotonic_clock() >= self._retry_at_us:
            self._stuck.clear()
        refusing: set[NodeId] = set()
        pausing = self._depositions.pausing(self._monotonic_clock())
        moves = balancing_moves(tables, MOVES_MAX, without=self._stuck, pausing=pausing)
        for stream_id, target in moves:
            if target in refusing:
                continue
            if not await self._move(stream_id, target):
                refusing.add(target)
                self._stuck.add(stream_id)
                self._retry_at_us = MonotonicUs(self._monotonic_clock() + RETRY_US)
            if not self._may_balance(tables):
                break

    def _may_balance(self, tables: Tables) -> bool:
        return (
            self._settings.balance
            and self._monotonic_clock() >= self._settled_at_us
            and not any(node.fenced for node in tables.nodes.values())
        )

    async def _elect(self, command: ElectLeader) -> None:
        try:
            await self._metadata.propose(command, as_controller=True)
        except (PreconditionFailedError, StreamNotFoundError, UnavailableError):
            return  # The reports are the same, or a node that had reported has gone.
        logger.warning(
            "leader_elected_uncleanly", stream_id=command.stream_id, leader=command.leader
        )

    async def _hand_over_each(self, moves: list[tuple[StreamId, NodeId]]) -> None:
        """Hand over several streams at a time: to the target, or to another node if that refuses;
        in the end without the leader's help. Continue at once while there are more."""
        if again := await self._relieve_each(moves, insist=False):
            await asyncio.sleep(AGAIN_SECONDS)
            await self._relieve_each(again, insist=True)
        if len(moves) == MOVES_MAX:
            self._wake.set()

    async def _relieve_each(
        self, moves: list[tuple[StreamId, NodeId]], *, insist: bool
    ) -> list[tuple[StreamId, NodeId]]:
        """Returns those to be tried again, none if the caller insists."""
        slots = asyncio.Semaphore(DRAINED_AT_A_TIME)
        again: list[tuple[StreamId, NodeId]] = []

        async def relieve(stream_id: StreamId, target: NodeId) -> None:
            async with slots:
                begun_us = self._monotonic_clock()
                if not await self._move_to_any(stream_id, target):
                    if insist or self._monotonic_clock() - begun_us > QUICK_US:
                        await self._insist(stream_id, target)
                    else:
                        again.append((stream_id, target))

        async with asyncio.TaskGroup() as tasks:
            for stream_id, target in moves:
                tasks.create_task(relieve(stream_id, target))
        return again

    async def _move_to_any(self, stream_id: StreamId, target: NodeId) -> bool:
        """Try the target first, then the other nodes that may lead the stream by plan."""
        tables, tried = self._metadata.registry, [target]
        while not await self._move(stream_id, tried[-1]):
            stream = tables.streams.get(stream_id)
            others = () if stream is None else tables.successors(stream)
            left = next((each for each in others if each not in tried), None)
            if left is None:
                return False
            tried.append(left)
        return True

    async def _move(self, stream_id: StreamId, target: NodeId) -> bool:
        """Hand one stream over, if it is unchanged since the decision. Returns False if it could
        not be handed over."""
        stream = self._metadata.registry.streams.get(stream_id)
        if stream is None or stream.leader == target or target not in stream.isr:
            return True
        try:
            await self._hand_over(stream, target)
        except (PreconditionFailedError, StreamNotFoundError, NotLeaderError):
            return True  # The stream has changed; the next round decides again.
        except JetstreamError as error:
            logger.info("leadership_not_handed_over", stream=stream.full_name, reason=error.message)
            return False
        return True

    async def _insist(self, stream_id: StreamId, target: NodeId) -> None:
        """Transfer without the leader's help. Void if the leader has handed over after all."""
        tables = self._metadata.registry
        stream = tables.streams.get(stream_id)
        if stream is None or target not in stream.isr or not tables.must_change_leader(stream):
            return
        try:
            await self._transfer(stream, target)
        except (PreconditionFailedError, StreamNotFoundError):
            return
        except JetstreamError as error:
            logger.info("controller_round_ended", reason=error.message)

    async def _transfer(self, stream: StreamMetadata, target: NodeId) -> None:
        command = TransferLeader(
            stream_id=stream.id, leader=target, stream_epoch=stream.stream_epoch
        )
        await self._metadata.propose(command, as_controller=True)


def draining_moves(tables: Tables, moves_max: int) -> list[tuple[StreamId, NodeId]]:
    """Leaderships of nodes that yield them, as (stream, new leader), for streams with another ISR
    member that stays."""
    election = Election(tables.nodes, tables.leaderships)
    moves: list[tuple[StreamId, NodeId]] = []
    for stream in _led_by_draining_nodes(tables):
        if len(moves) == moves_max:
            break
        target = election.choose(filter(tables.may_be_given_leaderships, stream.isr))
        if target != NO_NODE:
            election.remove(stream.leader)
            moves.append((stream.id, target))
    return moves


def leaving_leaders(tables: Tables, moves_max: int) -> list[tuple[StreamId, NodeId]]:
    """Leaderships of replicas that are about to be removed, as (stream, new leader), for streams
    whose target replicas are all in sync. A stream whose new replicas all yield leaderships waits:
    none of them may be made its leader."""
    election = Election(tables.nodes, tables.leaderships)
    moves: list[tuple[StreamId, NodeId]] = []
    for stream_id in tables.reassigned:
        stream = tables.streams[stream_id]
        target = stream.target_replicas
        is_leaving = stream.leader != NO_NODE and stream.leader not in target
        if len(moves) < moves_max and is_leaving and not set(target) - set(stream.isr):
            chosen = election.choose(filter(tables.may_be_given_leaderships, target))
            if chosen != NO_NODE:
                election.remove(stream.leader)
                moves.append((stream.id, chosen))
    return moves


def _led_by_draining_nodes(tables: Tables) -> Iterator[StreamMetadata]:
    for node_id in sorted(tables.nodes):
        if tables.nodes[node_id].yields_leadership and tables.leaderships.get(node_id):
            for stream in tables.streams_of(node_id):
                if stream.leader == node_id:
                    yield stream


def current_reports(
    streams: Mapping[StreamId, StreamMetadata], log_ends: LogEnds
) -> dict[StreamId, dict[NodeId, ReplicaReport]]:
    """What nodes report of the streams as they are now."""
    found: dict[StreamId, dict[NodeId, ReplicaReport]] = {}
    for node_id, known in log_ends.items():
        for stream_id, log_end in known.items():
            stream = streams.get(stream_id)
            # **safety** In a later epoch the log may have continued.
            if stream is not None and log_end.leader_epoch == stream.leader_epoch:
                found.setdefault(stream_id, {})[node_id] = log_end.report
    return found
