"""A node's part in its cluster, put together: metadata, replicas, ingest and data plane.

    start_metadata ─> begin_run ─> open_logs ─> start_ingest ─> join ─> … ─> step_down

What was started is stopped by `stack`, in the reverse order. What the parts stand on (disk, clocks,
connections, threads) is handed in as an Environment: the simulation runs this very node on its own
(docs/simulation.md). Ports, gRPC and HTTP are app.py's.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.api.peers import Peers
from jetstream_server.api.transfers import Transfers
from jetstream_server.authorization import authorize
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.dataplane.server import CONNECTIONS_MAX, DataPlaneServer
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.connection import NatsConnection
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.stream import Bounds
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.replication.compaction import Compaction
from jetstream_server.replication.fetch import Fetches
from jetstream_server.replication.following import Following
from jetstream_server.replication.frame_connection import Dial
from jetstream_server.replication.hand_over import HandOvers
from jetstream_server.replication.healing import Healing
from jetstream_server.replication.isr_driver import IsrDriver
from jetstream_server.replication.membership import Membership
from jetstream_server.replication.mending import Mending
from jetstream_server.replication.node_link import NodeIdentity
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.resigning import Resigning
from jetstream_server.replication.retention import Retention
from jetstream_server.replication.run_book import RunBook
from jetstream_server.replication.scrub import Scrub
from jetstream_server.replication.segment_repair import SegmentRepair

LEASE_CHECK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.server")


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(1, name)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a node stands on. folder: the data folder's path on `disk`. boot_id: of the machine, see
    run_book.py. dial: connects to another node's data plane. make_flusher: with its thread.
    closing_threads: in which logs are closed when the node stops; None: the usual ones. threads: a
    thread of that name, for what must not hold the loop up. spawn_compaction: begins the process of
    a pass; None: the usual way."""

    disk: Disk
    folder: str
    boot_id: str
    dial: Dial
    make_flusher: Callable[[], Flusher]
    clocks: Clocks
    closing_threads: Callable[[], Executor] | None = None
    threads: Callable[[str], Executor] = _thread
    spawn_compaction: Callable[[], subprocess.Popen[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What the configuration says of it. is_alone: there is no other node."""

    node_id: int
    is_alone: bool
    credential: bytes
    log: LogConfig
    flush_interval_seconds: float
    compaction_bytes_per_second: int
    scrub_bytes_per_second: int
    connections_max: int = CONNECTIONS_MAX


class Node:
    """See the module. Each method once, in that order."""

    def __init__(
        self,
        environment: Environment,
        settings: NodeSettings,
        metadata: RaftMetadataLog,
        stack: AsyncExitStack,
        *,
        session: str,
        lost: Callable[[], None],
    ) -> None:
        """session: the token of this run. lost: called when this process must not go on."""
        self._environment = environment
        self._settings = settings
        self._stack = stack
        self._session = session
        self._left_clean = False
        self._joined = False
        self.metadata = metadata
        self.membership = Membership(
            metadata,
            node_id=settings.node_id,
            session=session,
            lost=lost,
            clocks=environment.clocks,
        )

    async def start_metadata(self, cluster_id: str, ack_subjects: list[str]) -> str:
        """Take part in the metadata group. Returns the cluster's id, once there is a metadata
        leader; see Membership.until_led."""
        self._stack.callback(self._end_run)
        await self.metadata.start()
        self._stack.push_async_callback(self.metadata.close)
        if not self._settings.is_alone:
            # What it still leads is stored and acknowledged by then.
            self._stack.push_async_callback(self.membership.leave)
        return await self.membership.until_led(cluster_id, ack_subjects)

    def begin_run(self, cluster_id: str) -> None:
        """From now on the record of the runs says that this one has begun."""
        self._cluster_id = cluster_id
        environment = self._environment
        owner = f"{cluster_id}/{self._settings.node_id}"
        self.runs = RunBook(environment.disk, f"{environment.folder}/runs", owner)
        self._was_clean = self.runs.record.clean
        self.runs.begin(self._session, environment.boot_id)

    def _end_run(self) -> None:
        if self._left_clean:
            self.runs.stop()

    def open_logs(self) -> list[StreamId]:
        """Recover every log that the metadata places here; returns the streams whose is damaged."""
        environment, clocks = self._environment, self._environment.clocks
        flusher = environment.make_flusher()
        self._stack.callback(flusher.close)
        self.replicas = Replicas(
            node_id=self._settings.node_id,
            registry=self.metadata.registry,
            disk=environment.disk,
            directory=f"{environment.folder}/streams",
            config=self._settings.log,
            flusher=flusher,
            runs=self.runs,
            flush_interval_seconds=self._settings.flush_interval_seconds,
            clock_us=clocks.wall_us,
            now_us=clocks.now_us,
            speaks=self.membership.speaks,
        )
        damaged = self.replicas.open(clean=self._was_clean)
        self.metadata.watch(self.replicas.apply)
        self._stack.callback(self._close_replicas)
        return damaged

    def _close_replicas(self) -> None:
        threads = self._environment.closing_threads
        self._left_clean = self.replicas.close(None if threads is None else threads())

    async def start_ingest(
        self,
        connection: NatsConnection,
        policy: AckPolicy,
        bounds: Bounds,
        connect_seconds: float,
    ) -> None:
        """Connect to NATS, for `connect_seconds` at most; without it the node serves reads, and
        the connection goes on trying."""
        self.ingest = Ingest(connection, self.replicas, policy, bounds, self.membership.speaks)
        self.replicas.listener = self.ingest
        try:
            await connection.connect(connect_seconds)
        except UnavailableError as error:
            logger.error("nats_unreachable", reason=error.message)
        self._stack.push_async_callback(self.ingest.stop)
        watch_lease = run_in_background(self._check_lease(), "lease checks")
        self._stack.callback(watch_lease.cancel)

    async def _check_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_CHECK_SECONDS)
            self.ingest.check_lease()

    async def join(self, peers: Peers, *, rack: str, addresses: Mapping[str, str]) -> None:
        """Register, take up the roles given, be heard, and make what must be read readable."""
        settings, clocks = self._settings, self._environment.clocks
        incarnation = await self.membership.register(
            self.replicas, self.runs, rack=rack, addresses=addresses
        )
        self._joined = True
        identity = NodeIdentity(
            settings.node_id, incarnation, self._cluster_id, settings.credential
        )
        following = Following(
            self.replicas,
            self.metadata,
            identity,
            dial=self._environment.dial,
            now_us=clocks.now_us,
            controller_now_us=self.membership.controller_now_us,
        )
        self._stack.push_async_callback(following.close)
        isr_driver = IsrDriver(self.metadata, node_id=settings.node_id, now_us=clocks.now_us)
        retention = Retention(self.replicas, clock_us=clocks.wall_us)
        self._stack.push_async_callback(retention.close)
        compaction = Compaction(
            self.replicas,
            clock_us=clocks.wall_us,
            bytes_per_second=settings.compaction_bytes_per_second,
            spawn=self._environment.spawn_compaction,
        )
        self._stack.push_async_callback(compaction.close)
        mending = Mending(
            self.replicas,
            self.metadata,
            node_id=settings.node_id,
            incarnation=incarnation,
            ask_anew=following.ask_anew,
            revived=self.membership.log_ends_changed,
            now_us=clocks.now_us,
        )
        self._stack.push_async_callback(mending.close)
        self._make_healing(identity)
        self.replicas.roles += [following, isr_driver, retention, compaction, mending, self.healing]
        self.replicas.progress[isr_driver] = None
        self.replicas.heard = isr_driver.heard
        self.replicas.begin(incarnation)
        isr_driver.start()
        retention.start()
        compaction.start()
        mending.start()
        self.healing.start()
        self.scrub.start()
        self._stack.push_async_callback(isr_driver.close)
        self.hand_overs = HandOvers(
            self.metadata, self.replicas, self.ingest, peers, now_us=clocks.now_us
        )
        self.transfers = Transfers(self.hand_overs, peers, settings.node_id)
        if not settings.is_alone:
            resigning = Resigning(
                self.replicas,
                self.metadata.registry,
                self.hand_overs,
                self._why_not_served,
                node_id=settings.node_id,
                now_us=clocks.now_us,
            )
            resigning.start()
            self._stack.push_async_callback(resigning.close)
        await self.membership.take_part(
            self.replicas, self.runs, self.transfers.gracefully, self._stack
        )
        await self.replicas.until_served()
        self._make_data_plane()

    def _make_healing(self, identity: NodeIdentity) -> None:
        environment = self._environment
        disk, threads = environment.disk, environment.threads
        repair = SegmentRepair(
            disk,
            self.metadata.registry,
            identity,
            environment.dial,
            threads("jetstream-repair"),
        )
        self.healing = Healing(self.replicas, repair, disk, threads("jetstream-inspection"))
        self._stack.push_async_callback(self.healing.close)
        self.scrub = Scrub(
            self.replicas,
            disk,
            threads("jetstream-scrub"),
            bytes_per_second=self._settings.scrub_bytes_per_second,
        )
        self._stack.push_async_callback(self.scrub.close)
        self.replicas.healer = self.healing

    def _why_not_served(self) -> str:
        """Why publishers of what this node leads cannot be served; "": they can."""
        return self.replicas.full_reason or ("" if self.ingest.hears else "NATS is not heard")

    def _make_data_plane(self) -> None:
        """Whoever listens, or stands for a listener, hands it connections; it is closed there."""
        disk = self._environment.disk
        self.fetches = Fetches(self.membership.speaks)
        self.data_plane = DataPlaneServer(
            self.replicas,
            self.fetches,
            authorize,
            node_id=self._settings.node_id,
            cluster_id=self._cluster_id,
            secret=self._settings.credential,
            now_us=self._environment.clocks.now_us,
            disk=disk if isinstance(disk, OsDisk) else None,
            connections_max=self._settings.connections_max,
        )
        self._stack.push_async_callback(self.data_plane.close)

    async def step_down(self) -> None:
        """Before a stop: others take over what this node leads, as far as they can."""
        if self._joined and not self._settings.is_alone:
            await self.membership.hand_over(self.replicas)
            if not any(replica.leadership is not None for replica in self.replicas):
                await self.membership.leave()
