"""A node's part in its cluster, put together: metadata, replicas, ingest and data plane.

    start_metadata ─> begin_run ─> open_logs ─> start_ingest ─> join ─> … ─> step_down

`stack` stops what was started, in the reverse order. Disk, clocks, connections and threads come as
an Environment: the simulation runs this same class on simulated ones (docs/simulation.md). Ports,
gRPC and HTTP are in listeners.py.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.cursors.store import CursorStore
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.changes import Change, SecurityChanged
from jetstream_server.metadata.state.model import Addresses
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_connection import Dial
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.core.leaderships import Leaderships
from jetstream_server.replication.drivers.activity_recorder import ActivityRecorder
from jetstream_server.replication.drivers.compaction import Compaction
from jetstream_server.replication.drivers.fetcher_manager import FetcherManager
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.drivers.healing import Healing
from jetstream_server.replication.drivers.isr import IsrDriver
from jetstream_server.replication.drivers.log_replacement import LogReplacement
from jetstream_server.replication.drivers.membership import Membership
from jetstream_server.replication.drivers.resignation import Resignation
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.drivers.scrub import Scrub
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.security.access_control import CONNECTIONS_PER_PRINCIPAL, AccessControl
from jetstream_server.security.limits import Limits
from jetstream_server.serving.dataplane.server import CONNECTIONS_MAX, DataPlaneServer
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.grpc.transfers import Transfers
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess

LEASE_CHECK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.server")


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(1, name)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Environment:
    """What a node stands on. folder: the data folder's path on `disk`. boot_id: of the machine, see
    run_record.py. dial: connects to another node's data plane. make_flusher: with its thread.
    closing_threads: in which logs are closed when the node stops, and flushed when it starts; None:
    the usual ones. threads: a thread of that name, for what must not hold the loop up.
    lost_streams: the folder of all streams was missing from one that was in use. folder_is_gone:
    whether the data folder is not where it was, so that nothing is to be written at the end.
    spawn_compaction: begins the process of a pass; None: the usual way."""

    disk: Disk
    folder: str
    boot_id: str
    dial: Dial
    make_flusher: Callable[[], Flusher]
    clocks: Clocks
    closing_threads: Callable[[], Executor] | None = None
    threads: Callable[[str], Executor] = _thread
    lost_streams: bool = False
    folder_is_gone: Callable[[], bool] = _never
    spawn_compaction: Callable[[], subprocess.Popen[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node's configuration. is_alone: there is no other node. certificates: the data
    plane speaks TLS."""

    node_id: int
    is_alone: bool
    credential: bytes
    log: LogConfig
    flush_interval_seconds: float
    compaction_bytes_per_second: int
    scrub_bytes_per_second: int
    connections_max: int = CONNECTIONS_MAX
    certificates: Certificates | None = None
    security_enabled: bool = False
    connections_per_principal: int = CONNECTIONS_PER_PRINCIPAL
    read_bytes_per_second: int = 0


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
        """session: the token of this run. lost: called when this process must stop."""
        self._environment = environment
        self._settings = settings
        self._stack = stack
        self._session = session
        self._left_clean = False
        self._joined = False
        self.metadata = metadata
        self.access = AccessControl(
            lambda: metadata.registry.security,
            environment.clocks.wall,
            enabled=settings.security_enabled,
            node_id=settings.node_id,
            secret=settings.credential,
            incarnation=lambda: metadata.incarnation,
            limits=Limits(settings.connections_per_principal, settings.read_bytes_per_second),
            monotonic_clock=environment.clocks.monotonic,
        )
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
            # Everything for streams that it still leads is stored and acknowledged by then.
            self._stack.push_async_callback(self.membership.leave)
        return await self.membership.until_led(cluster_id, ack_subjects)

    def begin_run(self, cluster_id: str) -> None:
        """Note in the run record that this run has begun."""
        self._cluster_id = cluster_id
        environment = self._environment
        owner = f"{cluster_id}/{self._settings.node_id}"
        self.runs = RunRecordFile(environment.disk, f"{environment.folder}/runs", owner)
        self._was_clean = self.runs.record.clean
        if self.runs.damage:
            logger.warning(
                "state_file_damaged",
                file=self.runs.path,
                reason=self.runs.damage,
                instead="every log is scanned, and none is believed to be complete",
            )
        if environment.lost_streams:
            self.runs.streams_lost(self.metadata.registry.revision)
        self.runs.begin(self._session, environment.boot_id)

    def _end_run(self) -> None:
        if self._left_clean:
            self.runs.stop()

    def open_logs(self) -> list[StreamId]:
        """Recover every log that the metadata places here; returns the streams with a damaged
        log."""
        environment, clocks = self._environment, self._environment.clocks
        flusher = environment.make_flusher()
        self._stack.callback(flusher.close)
        self.replicas = ReplicaManager(
            node_id=self._settings.node_id,
            registry=self.metadata.registry,
            disk=environment.disk,
            directory=f"{environment.folder}/streams",
            config=self._settings.log,
            flusher=flusher,
            runs=self.runs,
            flush_interval_seconds=self._settings.flush_interval_seconds,
            wall_clock=clocks.wall,
            monotonic_clock=clocks.monotonic,
            lease_held=self.membership.lease_held,
        )
        threads = self._environment.closing_threads
        damaged = self.replicas.open(
            clean=self._was_clean, threads=None if threads is None else threads()
        )
        self.metadata.watch(self.replicas.apply)
        self.leaderships = Leaderships(self._settings.node_id)
        for stream in self.metadata.registry.streams.values():
            self.leaderships.know(stream)
        self.activity = ActivityRecorder(self.replicas, self.metadata)
        self.metadata.watch(self._note)
        self._stack.callback(self._close_replicas)
        return damaged

    def _note(self, change: Change) -> None:
        self.leaderships.apply(change)
        self.activity.apply(change)

    def _close_replicas(self) -> None:
        threads = self._environment.closing_threads
        self._left_clean = self.replicas.close(
            None if threads is None else threads(), is_gone=self._environment.folder_is_gone()
        )

    async def start_ingest(
        self,
        connection: NatsConnection,
        policy: AckPolicy,
        bounds: Bounds,
        connect_seconds: float,
    ) -> None:
        """Connect to NATS, for `connect_seconds` at most. Without NATS the node serves reads, and
        the connection keeps trying."""
        self.ingest = Ingest(connection, self.replicas, policy, bounds, self.membership.lease_held)
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

    async def join(self, peers: Peers, *, rack: str, addresses: Addresses) -> None:
        """Register, take the roles in the metadata, and start the drivers."""
        settings, clocks = self._settings, self._environment.clocks
        incarnation = await self.membership.register(
            self.replicas, self.runs, rack=rack, addresses=addresses
        )
        self._joined = True
        self._start_drivers(
            NodeIdentity(settings.node_id, incarnation, self._cluster_id, settings.credential)
        )
        self.hand_overs = HandOver(
            self.metadata, self.replicas, self.ingest, peers, monotonic_clock=clocks.monotonic
        )
        self.transfers = Transfers(self.hand_overs, peers, settings.node_id)
        if not settings.is_alone:
            resignation = Resignation(
                self.replicas,
                self.metadata.registry,
                self.hand_overs,
                self._why_not_served,
                node_id=settings.node_id,
                monotonic_clock=clocks.monotonic,
            )
            resignation.start()
            self._stack.push_async_callback(resignation.close)
        await self.membership.take_part(
            self.replicas,
            self.runs,
            self.transfers.transfer,
            self._stack,
            lease_changed=self.ingest.check_lease,
        )
        await self.replicas.until_served()
        self._make_data_plane()

    def _start_drivers(self, identity: NodeIdentity) -> None:
        """Take the roles in the metadata, and start what acts on them."""
        settings, clocks = self._settings, self._environment.clocks
        incarnation = identity.incarnation
        fetcher_manager = FetcherManager(
            self.replicas,
            self.metadata,
            identity,
            dial=self._environment.dial,
            monotonic_clock=clocks.monotonic,
            controller_clock=self.membership.controller_clock,
        )
        self._stack.push_async_callback(fetcher_manager.close)
        isr_driver = IsrDriver(
            self.metadata, node_id=settings.node_id, monotonic_clock=clocks.monotonic
        )
        self.retention = retention = Retention(self.replicas, wall_clock=clocks.wall)
        self._stack.push_async_callback(retention.close)
        self.compaction = compaction = Compaction(
            self.replicas,
            wall_clock=clocks.wall,
            monotonic_clock=clocks.monotonic,
            bytes_per_second=settings.compaction_bytes_per_second,
            spawn=self._environment.spawn_compaction,
        )
        self._stack.push_async_callback(compaction.close)
        log_replacement = LogReplacement(
            self.replicas,
            self.metadata,
            node_id=settings.node_id,
            incarnation=incarnation,
            ask_anew=fetcher_manager.ask_anew,
            revived=self.membership.log_ends_changed,
            monotonic_clock=clocks.monotonic,
        )
        self._stack.push_async_callback(log_replacement.close)
        self._make_healing(identity)
        self.cursors = CursorStore(
            self.replicas, self.membership.lease_held, self._read_as_one, clocks.monotonic
        )
        self._stack.push_async_callback(self.cursors.close)
        self._stack.push_async_callback(self.activity.close)
        self.replicas.begin(
            incarnation,
            Listeners(
                leadership=self.ingest,
                roles=(
                    fetcher_manager,
                    isr_driver,
                    retention,
                    compaction,
                    log_replacement,
                    self.healing,
                    self.cursors,
                    self.activity,
                ),
                progress=(isr_driver,),
                healer=self.healing,
            ),
        )
        isr_driver.start()
        retention.start()
        compaction.start()
        log_replacement.start()
        self.healing.start()
        self.scrub.start()
        self._stack.push_async_callback(isr_driver.close)

    def _read_as_one(self, source: str) -> list[StreamId]:
        return [stream.id for stream in self.metadata.registry.read_as_one(source)]

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

    def _why_not_served(self) -> str:
        """Why this node cannot serve publishers; "" when it can."""
        return self.replicas.full_reason or ("" if self.ingest.hears else "NATS is not heard")

    def _make_data_plane(self) -> None:
        """The listener, real or simulated, passes it connections and closes it."""
        disk = self._environment.disk
        clock = self._environment.clocks.monotonic
        self.fetches = LongPoll(self.membership.lease_held, monotonic_clock=clock)
        self.stream_access = StreamAccess(self.access, self.replicas, self.metadata.registry)
        self.data_plane = DataPlaneServer(
            self.replicas,
            self.fetches,
            self.stream_access,
            node_id=self._settings.node_id,
            cluster_id=self._cluster_id,
            secret=self._settings.credential,
            monotonic_clock=self._environment.clocks.monotonic,
            disk=disk if isinstance(disk, OsDisk) else None,
            connections_max=self._settings.connections_max,
            certificates=self._settings.certificates,
        )
        self._stack.push_async_callback(self.data_plane.close)
        self.metadata.watch(self._security_changed)
        if self.access.enabled:
            self.access.changed()
            watch = run_in_background(
                self.access.watch_expiry(self.data_plane.end_revoked), "token expiry"
            )
            self._stack.callback(watch.cancel)

    def _security_changed(self, change: Change) -> None:
        if isinstance(change, SecurityChanged):
            self.access.changed()
            self.data_plane.end_revoked()

    async def step_down(self) -> None:
        """Before a stop: hand leaderships over, as far as others can take them."""
        if self._joined and not self._settings.is_alone:
            await self.membership.hand_over(self.replicas)
            if not any(replica.leadership is not None for replica in self.replicas):
                await self.membership.leave()
