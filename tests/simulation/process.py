"""A server process: the shipped node (jetstream_server/node/node.py) on simulated ground.

Two loops run in it, the server's and that of its metadata member, and threads, all of them as
events of the world. What is here only starts the node, stops it, kills it, and finds things in it.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack
from random import Random
from typing import Any, cast

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.logfiles.offsets_file import Mark
from jetstream_protocol.types import BootUs, MonotonicUs, NodeId, StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.log.flusher import Flusher
from jetstream_server.log.offsets_file import read_offsets
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.member import Member
from jetstream_server.metadata.member.member_loop import MemberLoop
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.node.node import Environment, Logs, Node, NodeSettings, NodeStart
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.peers import Peers
from tests.simulation.compaction_process import SimulatedPass
from tests.simulation.connection import SimulatedConnection
from tests.simulation.flusher import SimulatedFlusher
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import RUNS_PATH, STREAMS_PATH, Machine
from tests.simulation.member import ModelCore, SimulatedMember
from tests.simulation.nats import NatsSocket
from tests.simulation.peers import SimulatedPeers

ACK_SUBJECTS = ["_INBOX.>"]
MONOTONIC_US = 1_000_000_000_000
BOOT_US = 300_000_000_000_000
"""The clocks are years apart, so that a mix-up shows."""
ADDRESSES = ("grpc", "data", "raft", "http")


def stream_of(directory: str) -> StreamId:
    """Whose log that folder holds."""
    return StreamId(int(directory.rpartition("/")[2]))


class Process:
    """One run of a node."""

    def __init__(self, machine: Machine) -> None:
        cluster = machine.cluster
        self.machine = machine
        self.cluster = cluster
        self.world = cluster.world
        self.node_id = machine.node_id
        self.disk = machine.disk
        self.alive = True
        self.stopping = False
        self.session = f"{machine.node_id}.{machine.starts}"
        clock = machine.clock
        self.loop = SimulatedLoop(self.world, f"node {self.node_id}", self.die, clock)
        self.member_loop = SimulatedLoop(self.world, f"member {self.node_id}", self.die, clock)
        self.connections: dict[SimulatedConnection, None] = {}
        self.nats_socket: NatsSocket | None = None
        self.turns: MemberLoop | None = None
        self.core: ModelCore | None = None
        self.has_joined = False
        self.peers: SimulatedPeers | None = None
        self.logs: list[CommitLog] = []
        self.replicas: ReplicaManager | None = None
        self.serves = False
        """Its data plane takes connections."""
        self.silences = 0
        """How often it has unsubscribed, or dropped a delivery, because it had no lease."""
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None

    def note(self, text: str) -> None:
        self.world.note(f"node {self.node_id}#{self.machine.starts}: {text}")

    def note_of(self, replica: Replica, text: str) -> None:
        """Of one replica; which one is said where there are several streams."""
        name = f"{replica.stream.name}: " if len(self.cluster.streams) > 1 else ""
        self.note(name + text)

    # What it stands on.

    def _node_start(self) -> NodeStart:
        cluster, world, node_id = self.cluster, self.world, self.node_id
        nodes, clock = len(cluster.machines), self.machine.clock
        config = MemberConfig(
            directory="/metadata",
            node_id=NodeId(node_id),
            voters={NodeId(each): f"node-{each}:3" for each in range(nodes)},
            listen="",
            raft=RaftTimings(tick=0.15),
        )
        metadata = RaftMetadataLog(
            config,
            self.session,
            self._failed,
            make_member=lambda config, listener: cast(
                Member, SimulatedMember(self, config, listener)
            ),
        )
        return NodeStart(
            Environment(
                disk=self.disk,
                folder="",
                boot_id=str(self.machine.boot),
                dial=self._dial,
                make_flusher=lambda: cast(Flusher, SimulatedFlusher(self)),
                clocks=Clocks(
                    lambda: self.machine.wall_clock.read(world.now),
                    lambda: MonotonicUs(MONOTONIC_US + clock.read(world.now)),
                    lambda: BootUs(BOOT_US + clock.since_boot(world.now)),
                ),
                closing_threads=Inline,
                lost_streams=self._find_streams(),
                spawn_compaction=lambda: cast("subprocess.Popen[bytes]", SimulatedPass(self.disk)),
            ),
            NodeSettings(
                node_id=node_id,
                is_alone=nodes == 1,
                credential=b"secret",
                log=cluster.log_config,
                flush_interval_seconds=1.0,
                compaction_bytes_per_second=1 << 30,
                scrub_bytes_per_second=1 << 20,
                lake=cluster.lake,
            ),
            metadata,
            self._stack,
            session=self.session,
            lost=lambda: self._failed("another run registered as this node"),
        )

    def _find_streams(self) -> bool:
        """As log/data_folder.py does: say whether the folder of all streams was lost."""
        return not self.disk.exists(STREAMS_PATH) and self.disk.exists(RUNS_PATH)

    def _make_streams(self) -> None:
        if not self.disk.exists(STREAMS_PATH):
            self.disk.make_directory(STREAMS_PATH)
            self.disk.fsync_directory("/")

    async def _dial(self, address: tuple[str, int]) -> FrameConnection:
        """Connect to another node's data plane, if there is one."""
        target = int(address[0].removeprefix("node-"))
        world, network = self.world, self.cluster.network
        await asyncio.sleep(world.between(200, 1_500) / 1e6)
        if not network.connects(self.node_id, target):
            await self.loop.create_future()  # Nothing comes back.
        process = self.cluster.machines[target].process
        if process is None or not process.serves:
            raise ConnectionRefusedError("nobody listens there")
        ours = SimulatedConnection(self, target)
        theirs = SimulatedConnection(process, self.node_id)
        ours.join(theirs, "positions")
        theirs.join(ours, "records")
        loop = process.loop
        world.later(
            world.between(100, 500), loop, loop.enter, process.node.data_plane.serve, theirs
        )
        return ours

    async def _dial_nats(self, host: str, port: int, timeout_s: float) -> Any:
        await asyncio.sleep(self.world.between(100, 1_000) / 1e6)
        if not self.machine.hears_nats:
            raise ConnectionRefusedError("nobody listens there")
        return NatsSocket(self.cluster.nats, self)

    def _connection_to_nats(self) -> NatsConnection:
        options = LinkOptions(dial=self._dial_nats, seconds=self.loop.time)
        return NatsConnection(
            ["nats://nats:4222"],
            options,
            before_feed=self._may_feed,
            on_disconnect=lambda reason: self.ingest.disconnected(reason),
            random=Random(self.world.random.getrandbits(32)),
        )

    def _may_feed(self) -> bool:
        may_feed = self.ingest.may_feed()
        if not may_feed:
            self.silences += 1
            self.world.count("lease lapsed on delivery")
        return may_feed

    def send_delay_us(self, peer: int, slices: Sequence[LogSlice]) -> int:
        """How much later than they were chosen an answer's bytes are read."""
        cluster, world = self.cluster, self.world
        if len(cluster.streams) > 1:
            slices = [
                s for s in slices if stream_of(s.path.rpartition("/")[0]) == cluster.stream_id
            ]
        delay = cluster.faults.scenario.send_delay_us(self, peer, slices) if slices else 0
        late_sends = cluster.profile.late_sends
        if not delay and late_sends and not cluster.faults.healing and world.chance(late_sends):
            delay = world.between(500, 700_000)
        return delay

    # Beginning and end.

    def begin(self) -> None:
        world = self.world
        world.later(world.between(0, 1_000), self.loop, self.loop.enter, self._begin)

    def _begin(self) -> None:
        self._starting = self._task(self._start())

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.world.broken(f"node {self.node_id}: {error!r}", error)

    async def _start(self) -> None:
        """As build.py does."""
        try:
            start = self.start = self._node_start()
            run = start.begin_run(await start.start_metadata("", ACK_SUBJECTS))
            self._make_streams()
            logs = start.open_logs(run)
            self._opened(logs)
            connection = self._connection_to_nats()
            connection.process = self  # type: ignore[attr-defined]
            bounds = Bounds(pending_acks_max=1_000, uncommitted_bytes_max=1 << 20)
            policy = AckPolicy(tuple(ACK_SUBJECTS))
            self.ingest = start.make_ingest(logs, connection, policy, bounds)
            await start.start_ingest(self.ingest, connection, 10.0)
            addresses = dict.fromkeys(ADDRESSES, f"node-{self.node_id}:2")
            self.has_joined = True
            peers = cast(Peers, SimulatedPeers(self))
            self.node: Node = await start.join(
                run, logs, self.ingest, peers, rack="", addresses=addresses
            )
            self.serves = True
        except (OSError, JetstreamError) as error:
            self.die(f"cannot start: {error}")

    def _opened(self, logs: Logs) -> None:
        cluster, world = self.cluster, self.world
        self.replicas = logs.replicas
        # A log that could not be read has not been looked at: what a power failure took from it
        # shows only at the next start.
        if not any(replica.unreadable_reason for replica in self.replicas):
            self.machine.has_opened = True
        for stream in cluster.streams:
            if self.replicas.get(stream.stream_id) is None:
                stream.checker.emptied(self.node_id)
        for replica in self.replicas:
            log, checker = replica.log, cluster.checker_of(replica.stream.id)
            if world.trace is not None:
                self.note_of(
                    replica,
                    f"starts; log [{log.log_start_offset}, {log.log_end_offset}) "
                    f"{log.epochs.entries} {log.offline_reason}",
                )
            if replica.unreadable_reason:
                world.count("log not opened")
                checker.not_opened(self.node_id)
                continue
            self.logs.append(log)
            if log.offline_reason:
                world.count("damaged log")
                # The operator's decision: there is no other replica.
                is_alone = replica.stream.is_alone(self.node_id) and not log.lacks_beginning
                if is_alone and cluster.faults.healing:
                    log.salvage()
            checker.reopened(self.node_id, log)

    def _failed(self, reason: str) -> None:
        """The node must not go on, and stops by itself."""
        self.note(f"cannot go on: {reason}")
        self.world.count("cannot go on")
        self._stop_soon(is_orderly=False)

    def stop(self) -> None:
        """SIGTERM."""
        if self.has_joined:
            self.world.count("clean stop")
            self._stop_soon(is_orderly=True)

    def _stop_soon(self, *, is_orderly: bool) -> None:
        if not self.stopping:
            self.stopping = True
            self.run(self._stop, is_orderly)

    async def _stop(self, is_orderly: bool) -> None:
        """As build.py does."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        try:
            if is_orderly and self.replicas is not None:
                await self.start.step_down(self.replicas)
            await self._stack.aclose()
        except (OSError, JetstreamError) as error:
            self.note(f"did not stop cleanly: {error}")
        self.die("stopped")

    def run(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """In a task of the server's loop."""
        self.world.later(0, self.loop, self.loop.enter, self._run, function, arguments)

    def _run(
        self, function: Callable[..., Coroutine[Any, Any, Any]], arguments: tuple[Any, ...]
    ) -> None:
        self._task(function(*arguments))

    def die(self, reason: str, *, silently: bool = False) -> None:
        """The process is gone, whatever it was about to do."""
        if not self.alive:
            return
        self.alive = False
        cluster = self.cluster
        for loop in (self.loop, self.member_loop):
            cluster.graveyard.extend(loop.end())
        for connection in list(self.connections):
            connection.vanish(silently=silently)
        if self.nats_socket is not None:
            self.nats_socket.vanish()
        for log in self.logs:
            checker = cluster.checker_of(stream_of(log.directory))
            checker.truncated(self.node_id, log)
            if self._empties(log):
                checker.emptied(self.node_id)
        self.machine.process = None
        self.disk.repair()
        cluster.members[self.node_id] = None
        self.note(f"is gone: {reason}")
        cluster.faults.process_ended(self.machine)

    def _empties(self, log: CommitLog) -> bool:
        """It died on its way to begin the log anew: the next run ends that."""
        offsets = read_offsets(self.disk, log.directory)
        bounds = None if offsets is None else offsets.bounds
        return bounds is not None and bool(bounds.mark & Mark.EMPTYING)

    @property
    def paused_until(self) -> int:
        return self.loop.paused_until

    def pause(self, until: int, *, in_its_work: bool = False) -> None:
        """It is frozen; in_its_work: between two callbacks of one turn, at some time soon."""
        for loop in (self.loop, self.member_loop):
            if in_its_work:
                loop.sleep_after = self.world.between(0, 40), until
            else:
                loop.paused_until = max(loop.paused_until, until)

    # Finding things in it.

    def turn(self) -> None:
        if self.turns is not None:
            self.turns.turn_soon()

    @property
    def view(self) -> Registry:
        """The metadata as far as the server knows it."""
        return self.start.metadata.registry

    @property
    def incarnation(self) -> int:
        incarnation = self.start.metadata.incarnation if self.has_joined else None
        return -1 if incarnation is None else incarnation

    @property
    def replica(self) -> Replica | None:
        """Of the stream that faults are about."""
        return self.replica_of(self.cluster.stream_id)

    def replica_of(self, stream_id: StreamId) -> Replica | None:
        return None if self.replicas is None else self.replicas.get(stream_id)

    @property
    def log(self) -> CommitLog | None:
        replica = self.replica
        return None if replica is None else replica.log

    def listens_to(self, subject: bytes) -> bool:
        """Whether NATS knows a subscription of it."""
        return self.nats_socket is not None and subject in self.nats_socket.sids.values()

    @property
    def stands_by(self) -> bool:
        return self.has_joined and self.cluster.stream_id in self.ingest._standing_by

    @property
    def telling(self) -> asyncio.Task[None] | None:
        """What tells how far its logs reach when nobody leads."""
        return self.start.membership._node_session._reporting if self.has_joined else None

    # What others do to it.

    def hand_over(self) -> None:
        """Give the leadership to another member of the ISR, if this node leads and there is one."""
        replica = self.replica
        if replica is None or replica.leadership is None or self.stopping:
            return
        others = [member for member in replica.stream.isr if member != self.node_id]
        if others:
            target = others[self.world.between(0, len(others) - 1)]
            self.run(self._hand_over, replica, target)

    async def _hand_over(self, replica: Replica, target: NodeId) -> None:
        self.world.count("hand-over")
        try:
            if self.cluster.faults.scenario.plans_hand_overs and self.serves:
                await self.node.transfers.transfer(replica.stream, target)
            else:
                await self.start.metadata.propose(
                    TransferLeader(stream_id=replica.stream.id, leader=target)
                )
        except JetstreamError as error:
            if self.world.trace is not None:
                self.note(f"does not hand over: {error.message}")
        else:
            self.world.count("hand-over done")

    def flush_now(self) -> None:
        """Whatever the policy."""
        replica = self.replica
        if self.replicas is None or replica is None:
            return
        if not replica.closed and not self.stopping:
            self.loop.enter(replica.flush)


class Inline(Executor):
    """Threads whose work is done at once."""

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **keywords))
        return future
