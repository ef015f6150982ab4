"""A node's part in its cluster: puts together metadata, replicas, ingest and data plane.

    start_metadata ─> begin_run ─> open_logs ─> make_ingest ─> start_ingest ─> join ─> Node

Each step returns what it has made, and later steps take it as an argument: no step can run too
early, and no part is replaced. `stack` stops the started parts in the reverse order. Disk, clocks,
connections and threads come as an Environment: the simulation runs these same steps with simulated
ones (docs/simulation.md). listeners.py opens ports, gRPC and HTTP.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.errors import StorageError, UnavailableError
from jetstream_protocol.frames import PRODUCE_BYTES_MAX
from jetstream_protocol.types import StreamId
from jetstream_server.background import close_within, run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.cursors.store import CursorStore
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.commit_spans import SpanSource
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.lake.access import Lake
from jetstream_server.lake.process import LakeProcess
from jetstream_server.lake.reader import THREADS, LakeReader
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.changes import Change, SecurityChanged
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_connection import Dial
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.core.leaderships import Leaderships
from jetstream_server.replication.drivers.activity_recorder import ActivityRecorder
from jetstream_server.replication.drivers.adopting import Adopting
from jetstream_server.replication.drivers.compaction import Compaction
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.replication.drivers.disk_reserve import free_bytes
from jetstream_server.replication.drivers.fetcher_manager import FetcherManager
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.drivers.healing import Healing
from jetstream_server.replication.drivers.indexing import Indexing
from jetstream_server.replication.drivers.isr_driver import IsrDriver
from jetstream_server.replication.drivers.lake_watch import LakeWatch
from jetstream_server.replication.drivers.log_replacement import LogReplacement
from jetstream_server.replication.drivers.membership import Membership
from jetstream_server.replication.drivers.replica_changes import ReplicaChanges
from jetstream_server.replication.drivers.resignation import Resignation
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.drivers.scrub import Scrub
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.drivers.sweeping import Sweeping
from jetstream_server.replication.drivers.uploading import LakeOptions, Uploading
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.limits import Quotas
from jetstream_server.serving.dataplane.server import CONNECTIONS_MAX, DataPlaneServer
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.grpc.transfers import Transfers
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.produces import Produces
from jetstream_server.serving.stream_access import StreamAccess

LEASE_CHECK_SECONDS = 0.1
LAKE_SECONDS = 2.0
"""How long a stop waits for what is busy with the lake, whose store may be slow or away."""

logger = structlog.get_logger("jetstream.server")


class _Closable(Protocol):
    async def close(self) -> None: ...


_Part = TypeVar("_Part", bound=_Closable)


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(1, name)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Environment:
    """What a node needs from outside.

    folder: the data folder's path on `disk`. boot_id: of the machine, see run_record.py. dial:
    connects to another node's data plane. make_flusher: makes it with its threads. closing_threads:
    close logs when the node stops, and flush them when it starts; None: the default ones. threads:
    a thread of that name, for work that must not block the loop. lost_streams: whether the folder
    of all streams was missing although the data folder was in use. unsettled: see DataFolder; it
    may change. folder_is_gone: returns whether the data folder has moved, so that nothing must be
    written at the end. spawn_compaction: starts the process of a pass; None: the default.
    """

    disk: Disk
    folder: str
    boot_id: str
    dial: Dial
    make_flusher: Callable[[], Flusher]
    clocks: Clocks
    closing_threads: Callable[[], Executor] | None = None
    threads: Callable[[str], Executor] = _thread
    lost_streams: bool = False
    unsettled: Mapping[int, StorageError] = field(default_factory=dict)
    folder_is_gone: Callable[[], bool] = _never
    spawn_compaction: Callable[[], subprocess.Popen[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node's configuration. is_alone: there are no other nodes. certificates: for TLS on the
    data plane."""

    node_id: int
    is_alone: bool
    credential: bytes
    log: LogConfig
    flush_interval_seconds: float
    compaction_bytes_per_second: int
    scrub_bytes_per_second: int
    connections_max: int = CONNECTIONS_MAX
    connections_per_address: int = CONNECTIONS_MAX
    certificates: Certificates | None = None
    security_enabled: bool = False
    quotas: Quotas | None = None
    batch_bytes_max: int = PRODUCE_BYTES_MAX
    lake: LakeOptions | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """This run of the node, noted in its run record. was_clean: whether the run before it ended
    cleanly."""

    cluster_id: str
    runs: RunRecordFile
    was_clean: bool


@dataclass(frozen=True, slots=True)
class Logs:
    """The recovered logs of a node, and the parts that follow their leaderships."""

    replicas: ReplicaManager
    leaderships: Leaderships
    activity: ActivityRecorder


@dataclass(frozen=True, slots=True)
class Drivers:
    """The drivers of the replicas that are needed later."""

    retention: Retention
    compaction: Compaction
    healing: Healing
    scrub: Scrub
    cursors: CursorStore
    changes: ReplicaChanges
    uploading: Uploading | None
    sweeping: Sweeping | None
    adopting: Adopting | None


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node that has joined its cluster."""

    metadata: RaftMetadataLog
    membership: Membership
    access: AccessControl
    run: Run
    replicas: ReplicaManager
    leaderships: Leaderships
    ingest: Ingest
    drivers: Drivers
    hand_overs: HandOver
    transfers: Transfers
    fetches: LongPoll
    stream_access: StreamAccess
    produces: Produces
    data_plane: DataPlaneServer


class NodeStart:
    """The start of a node. Call each step once, in the order given in the module."""

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
        self._lost = lost
        self._last = stack.enter_context(ExitStack())
        """Runs when everything else has stopped."""
        self.metadata = metadata
        self.access = AccessControl(
            lambda: metadata.registry.security,
            environment.clocks.wall,
            enabled=settings.security_enabled,
            node_id=settings.node_id,
            secret=settings.credential,
            incarnation=lambda: metadata.incarnation,
            quotas=settings.quotas,
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
        # First: a start that fails or is cancelled must not leave its thread in this folder.
        self._stack.push_async_callback(self.metadata.close)
        await self.metadata.start()
        if not self._settings.is_alone:
            # By then everything for the streams that it still leads is stored and acknowledged.
            self._stack.push_async_callback(self.membership.leave)
        return await self.membership.until_led(cluster_id, ack_subjects)

    def begin_run(self, cluster_id: str) -> Run:
        """Note in the run record that this run has begun."""
        environment = self._environment
        owner = f"{cluster_id}/{self._settings.node_id}"
        runs = RunRecordFile(environment.disk, f"{environment.folder}/runs", owner)
        was_clean = runs.record.clean
        if runs.damage:
            logger.warning(
                "state_file_damaged",
                file=runs.path,
                reason=runs.damage,
                instead="every log is scanned, and none is trusted to be complete",
            )
        if environment.lost_streams:
            runs.streams_lost(self.metadata.registry.revision)
        runs.begin(self._session, environment.boot_id)
        return Run(cluster_id, runs, was_clean)

    def open_logs(self, run: Run) -> Logs:
        """Recover every log that the metadata places here."""
        environment, clocks = self._environment, self._environment.clocks
        flusher = environment.make_flusher()
        self._stack.callback(flusher.close)
        replicas = ReplicaManager(
            node_id=self._settings.node_id,
            registry=self.metadata.registry,
            disk=environment.disk,
            directory=f"{environment.folder}/streams",
            config=self._settings.log,
            flusher=flusher,
            runs=run.runs,
            flush_interval_seconds=self._settings.flush_interval_seconds,
            wall_clock=clocks.wall,
            monotonic_clock=clocks.monotonic,
            lease_held=self.membership.lease_held,
            unsettled=environment.unsettled,
        )
        replicas.open(clean=run.was_clean, threads=self._closing_threads())
        self.metadata.watch(replicas.apply)
        leaderships = Leaderships(self._settings.node_id)
        for stream in self.metadata.registry.streams.values():
            leaderships.know(stream)
        activity = ActivityRecorder(replicas, self.metadata)

        def note(change: Change) -> None:
            leaderships.apply(change)
            activity.apply(change)

        self.metadata.watch(note)
        self._stack.callback(self._close_logs, run, replicas)
        return Logs(replicas, leaderships, activity)

    def _closing_threads(self) -> Executor | None:
        threads = self._environment.closing_threads
        return None if threads is None else threads()

    def _close_logs(self, run: Run, replicas: ReplicaManager) -> None:
        is_gone = self._environment.folder_is_gone()
        if replicas.close(self._closing_threads(), is_gone=is_gone):
            self._last.callback(run.runs.stop)

    def make_ingest(
        self,
        logs: Logs,
        connection: NatsConnection,
        policy: AckPolicy,
        bounds: Bounds,
        spans: SpanSource | None = None,
    ) -> Ingest:
        lease_held = self.membership.lease_held
        cluster = mark_of(self.metadata.registry.settings.cluster_id)
        return Ingest(connection, logs.replicas, policy, bounds, lease_held, spans, cluster)

    async def start_ingest(
        self, ingest: Ingest, connection: NatsConnection, connect_seconds: float
    ) -> None:
        """Connect to NATS; waits at most `connect_seconds`. Without NATS the node serves readers,
        and the connection keeps trying."""
        try:
            await connection.connect(connect_seconds)
        except UnavailableError as error:
            logger.error("nats_unreachable", reason=error.message)
        self._stack.push_async_callback(ingest.stop)
        watch_lease = run_in_background(_check_lease(ingest), "lease checks")
        self._stack.callback(watch_lease.cancel)

    async def join(
        self,
        run: Run,
        logs: Logs,
        ingest: Ingest,
        peers: Peers,
        *,
        rack: str,
        addresses: Addresses,
        removed: Callable[[], None] | None = None,
    ) -> Node:
        """Register, take the roles in the metadata, and start the drivers. removed: called when
        somebody has removed the node from the cluster; None: that is a loss like any other."""
        settings, clocks, replicas = self._settings, self._environment.clocks, logs.replicas
        self.membership.watch_registration(removed or self._lost)
        incarnation = await self.membership.register(
            replicas, run.runs, rack=rack, addresses=addresses
        )
        identity = NodeIdentity(settings.node_id, incarnation, run.cluster_id, settings.credential)
        lake, lake_reader = None, None
        if settings.lake is not None:
            seconds = settings.lake.timeout_seconds
            lake = LakeProcess(settings.lake.store, THREADS + 1, seconds, clocks.monotonic)
            lake_reader = self._make_lake_reader(settings.lake, lake, replicas)
        drivers = self._start_drivers(logs, ingest, identity, lake, lake_reader)
        hand_overs = HandOver(
            self.metadata, replicas, ingest, peers, monotonic_clock=clocks.monotonic
        )
        transfers = Transfers(hand_overs, peers, settings.node_id)
        if not settings.is_alone:
            self._start_resignation(replicas, ingest, hand_overs)
        await self.membership.take_part(
            replicas,
            run.runs,
            transfers.transfer,
            self._stack,
            lease_changed=ingest.check_lease,
        )
        await replicas.until_served()
        fetches = LongPoll(
            self.membership.lease_held, self.access, monotonic_clock=clocks.monotonic
        )
        if lake_reader is not None:
            fetches.lake = lake_reader
            drivers.healing.forget_in_lake = lake_reader.forget
        stream_access = StreamAccess(self.access, self.metadata.registry)
        bytes_max = self._settings.batch_bytes_max
        produces = Produces(replicas, stream_access, ingest.produce, bytes_max)
        return Node(
            metadata=self.metadata,
            membership=self.membership,
            access=self.access,
            run=run,
            replicas=replicas,
            leaderships=logs.leaderships,
            ingest=ingest,
            drivers=drivers,
            hand_overs=hand_overs,
            transfers=transfers,
            fetches=fetches,
            stream_access=stream_access,
            produces=produces,
            data_plane=self._make_data_plane(run, replicas, fetches, stream_access, produces),
        )

    def _start_resignation(
        self, replicas: ReplicaManager, ingest: Ingest, hand_overs: HandOver
    ) -> None:
        def why_not_served() -> str:
            return replicas.full_reason or ("" if ingest.is_responsive else "NATS is not heard")

        resignation = Resignation(
            replicas,
            self.metadata.registry,
            hand_overs,
            why_not_served,
            node_id=self._settings.node_id,
            monotonic_clock=self._environment.clocks.monotonic,
        )
        resignation.start()
        self._until_stop(resignation)

    def _start_drivers(
        self,
        logs: Logs,
        ingest: Ingest,
        identity: NodeIdentity,
        lake: Lake | None,
        lake_reader: LakeReader | None,
    ) -> Drivers:
        """Take the roles in the metadata, and start the drivers that act on them."""
        clocks, replicas = self._environment.clocks, logs.replicas
        fetcher_manager = self._make_fetcher_manager(replicas, identity)
        isr_driver = IsrDriver(
            self.metadata, node_id=identity.node_id, monotonic_clock=clocks.monotonic
        )
        retention = self._until_stop(Retention(wall_clock=clocks.wall))
        compaction = self._make_compaction(replicas)
        log_replacement = self._make_log_replacement(replicas, identity, fetcher_manager)
        healing = self._make_healing(identity)
        scrub = self._make_scrub(replicas)
        cursors = self._make_cursors(replicas)
        changes = ReplicaChanges()
        indexing = self._until_stop(Indexing(monotonic_clock=clocks.monotonic))
        replicas.index_wanted = indexing.track
        uploading = self._make_uploading(identity)
        listeners = Listeners(
            leadership=ingest,
            roles=(
                fetcher_manager,
                isr_driver,
                retention,
                compaction,
                log_replacement,
                healing,
                cursors,
                self._until_stop(logs.activity),
                changes,
                indexing,
                *([] if uploading is None else [uploading]),
                *([] if lake_reader is None else [LakeWatch(lake_reader)]),
            ),
            progress=(isr_driver,),
            healer=healing,
        )
        replicas.begin(identity.incarnation, listeners)
        for driver in (isr_driver, retention, compaction, log_replacement, healing, scrub):
            driver.start()
        sweeping, adopting = None, None
        options = self._settings.lake
        if uploading is not None and lake is not None and options is not None:
            uploading.start()
            sweeping = self._make_sweeping(options, lake, uploading, identity)
            sweeping.start()
            adopting = Adopting(self.metadata, options.store, identity.cluster_id)
        self._until_stop(isr_driver)
        return Drivers(
            retention, compaction, healing, scrub, cursors, changes, uploading, sweeping, adopting
        )

    def _until_stop(self, part: _Part, seconds: float | None = None) -> _Part:
        """The part, which is closed when the node stops. seconds: how long it is waited for."""
        if seconds is None:
            self._stack.push_async_callback(part.close)
        else:
            name = type(part).__name__
            self._stack.push_async_callback(close_within, seconds, part.close, name)
        return part

    def _make_fetcher_manager(
        self, replicas: ReplicaManager, identity: NodeIdentity
    ) -> FetcherManager:
        return self._until_stop(
            FetcherManager(
                replicas,
                self.metadata,
                identity,
                dial=self._environment.dial,
                monotonic_clock=self._environment.clocks.monotonic,
                controller_clock=self.membership.controller_clock,
            )
        )

    def _make_compaction(self, replicas: ReplicaManager) -> Compaction:
        environment = self._environment
        return self._until_stop(
            Compaction(
                wall_clock=environment.clocks.wall,
                monotonic_clock=environment.clocks.monotonic,
                bytes_per_second=self._settings.compaction_bytes_per_second,
                spawn=environment.spawn_compaction,
            )
        )

    def _make_uploading(self, identity: NodeIdentity) -> Uploading | None:
        options = self._settings.lake
        if options is None:
            return None
        clock = self._environment.clocks.monotonic
        uploading = Uploading(
            self.metadata,
            options,
            cluster_id=identity.cluster_id,
            monotonic_clock=clock,
            wall_clock=self._environment.clocks.wall,
        )
        return self._until_stop(uploading, LAKE_SECONDS)

    def _make_lake_reader(
        self, options: LakeOptions, lake: Lake, replicas: ReplicaManager
    ) -> LakeReader:
        folder = self._environment.folder

        def spare_bytes() -> int:
            return (free_bytes(Path(folder)) or 0) - options.disk_reserve_bytes

        reader = LakeReader(
            lake,
            f"{folder}/lake_cache",
            options.cache_bytes,
            self._environment.clocks.monotonic,
            spare_bytes,
        )
        replicas.disk_is_full = reader.give_back
        return self._until_stop(reader, LAKE_SECONDS)

    def _make_sweeping(
        self, options: LakeOptions, lake: Lake, uploading: Uploading, identity: NodeIdentity
    ) -> Sweeping:
        sweeping = Sweeping(
            self.metadata,
            self.metadata.registry,
            lake,
            uploading.led,
            cluster_id=identity.cluster_id,
            grace_seconds=options.grace_seconds,
            monotonic_clock=self._environment.clocks.monotonic,
        )
        return self._until_stop(sweeping, LAKE_SECONDS)

    def _make_log_replacement(
        self, replicas: ReplicaManager, identity: NodeIdentity, fetcher_manager: FetcherManager
    ) -> LogReplacement:
        return self._until_stop(
            LogReplacement(
                replicas,
                self.metadata,
                node_id=identity.node_id,
                incarnation=identity.incarnation,
                request_again=fetcher_manager.request_again,
                revived=self.membership.log_ends_changed,
                monotonic_clock=self._environment.clocks.monotonic,
            )
        )

    def _make_healing(self, identity: NodeIdentity) -> Healing:
        environment = self._environment
        disk, threads = environment.disk, environment.threads
        repair = SegmentRepair(
            disk,
            self.metadata.registry,
            identity,
            environment.dial,
            threads("jetstream-repair"),
        )
        return self._until_stop(Healing(repair, disk, threads("jetstream-inspection")))

    def _make_scrub(self, replicas: ReplicaManager) -> Scrub:
        environment = self._environment
        return self._until_stop(
            Scrub(
                replicas,
                environment.disk,
                environment.threads("jetstream-scrub"),
                bytes_per_second=self._settings.scrub_bytes_per_second,
            )
        )

    def _make_cursors(self, replicas: ReplicaManager) -> CursorStore:
        clock = self._environment.clocks.monotonic
        return self._until_stop(
            CursorStore(self.membership.lease_held, self._read_as_one, clock, self.metadata)
        )

    def _read_as_one(self, source: str) -> list[StreamId]:
        return [stream.id for stream in self.metadata.registry.read_as_one(source)]

    def _make_data_plane(
        self,
        run: Run,
        replicas: ReplicaManager,
        fetches: LongPoll,
        stream_access: StreamAccess,
        produces: Produces,
    ) -> DataPlaneServer:
        """Make the data plane. A listener, real or simulated, gives it connections and closes
        it."""
        disk, settings, access = self._environment.disk, self._settings, self.access
        registry, clock = self.metadata.registry, self._environment.clocks.monotonic
        data_plane = DataPlaneServer(
            replicas,
            fetches,
            stream_access,
            node_id=settings.node_id,
            cluster_id=run.cluster_id,
            secret=settings.credential,
            copy_turns=CopyTurns(lambda: registry.settings.copy_bytes_per_second, clock),
            monotonic_clock=clock,
            disk=disk if isinstance(disk, OsDisk) else None,
            produces=produces,
            connections_max=settings.connections_max,
            connections_per_address=settings.connections_per_address,
            certificates=settings.certificates,
        )
        self._until_stop(data_plane)

        access.closes(data_plane.end_revoked)

        def security_changed(change: Change) -> None:
            if isinstance(change, SecurityChanged):
                access.changed()

        self.metadata.watch(security_changed)
        if access.enabled:
            access.changed()
            watch = run_in_background(access.watch_expiry(), "token expiry")
            self._stack.callback(watch.cancel)
        return data_plane

    async def step_down(self, replicas: ReplicaManager) -> None:
        """Hand leaderships over before a stop, as far as others can take them."""
        if not self._settings.is_alone and self.metadata.incarnation is not None:
            await self.membership.hand_over(replicas)
            if not any(replica.leadership is not None for replica in replicas):
                await self.membership.leave()


async def _check_lease(ingest: Ingest) -> None:
    while True:
        await asyncio.sleep(LEASE_CHECK_SECONDS)
        ingest.check_lease()
