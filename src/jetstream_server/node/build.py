"""Builds a server from its configuration: starts its parts in order.

certificates, data folder (lock) ─> metadata ─> replicas (recovery) ─> NATS, ingest ─> cluster

A stack stops the started parts in the reverse order, however far the start has come. listeners.py
opens the ports once everything that serves them is ready.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from jetstream_protocol.extras import install_command
from jetstream_protocol.types import NodeId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks, monotonic_clock, wall_clock
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.nats.compiled import INGEST_FORM, why_pure
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.nats.server_process import NatsServerProcess
from jetstream_server.ingest.stream.commit_spans import SpanSource
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.lake.stores import StoreOptions
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import SPARE_DESCRIPTORS, OsDisk
from jetstream_server.log.encryption import Keys
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.raft.reserve import make_room_to_start
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_socket import dial
from jetstream_server.node.api_link import jetstream_api
from jetstream_server.node.catching_up import CatchingUp
from jetstream_server.node.config import (
    PORTS,
    Config,
    NodeConfig,
    SecurityConfig,
    split_address,
)
from jetstream_server.node.consumers import node_consumers
from jetstream_server.node.descriptors import connections_max, log_files_max, raise_limit
from jetstream_server.node.encryption_options import KeyFolder, KeyReload, keys_of, note_keys
from jetstream_server.node.nats_options import link_options, open_leaf_port
from jetstream_server.node.node import Environment, Logs, NodeSettings, NodeStart
from jetstream_server.node.own_certificates import CertificateReload, certificates_of
from jetstream_server.node.reloading import Reloading, Source
from jetstream_server.node.run_state import RunState, StartError
from jetstream_server.node.server import Server
from jetstream_server.replication.drivers.disk_reserve import DiskMark, watch_space
from jetstream_server.replication.drivers.membership import new_session
from jetstream_server.replication.drivers.uploading import LakeOptions
from jetstream_server.replication.run_record import boot_id
from jetstream_server.replication.unknown_streams import UnknownStreams
from jetstream_server.security.limits import Quotas
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.metrics.histograms import Histograms

FOLDER_CHECK_SECONDS = 0.5
NATS_CONNECT_SECONDS = 1.0
"""How long a start waits for NATS, which answers in milliseconds if it is there. Without NATS the
node serves readers and keeps trying."""

logger = structlog.get_logger("jetstream.server")


@dataclass(frozen=True, slots=True)
class Start:
    """A start under way. stack: stops the started parts. accept_voters: see MemberConfig. reload:
    is set when certificates and keys are to be read again, perhaps before there are any. step_down:
    called before the stack stops anything, once the node has begun to join."""

    config: Config
    configured: NodeConfig
    accept_voters: bool
    state: RunState = field(default_factory=RunState)
    reload: asyncio.Event = field(default_factory=asyncio.Event)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    step_down: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    histograms: Histograms = field(default_factory=Histograms)

    async def stop(self) -> None:
        """Stop in the reverse order of the start. Everything acknowledged is on its way to disk."""
        self.state.stopping()
        if not (self.state.failed.is_set() or self.state.removed.is_set()):
            for step_down in self.step_down:
                await step_down()
        await self.stack.aclose()


async def build(start: Start) -> Server:
    """Start every part but the ports. Raises JetstreamError, OSError, ConfigurationError. Even then
    `start.stop` stops the parts that were started."""
    certificates = certificates_of(start.config, start.configured)
    keys = await _read_keys(start)
    files_max = log_files_max(raise_limit(), start.config.limits.connections)
    disk = OsDisk(files_max - SPARE_DESCRIPTORS, spare=SPARE_DESCRIPTORS)
    start.stack.callback(disk.close)
    folder = _open_folder(start, disk)
    noting = note_keys(disk, folder.path, start.configured.id, keys, start.config)
    _watch_files(start, certificates, keys, noting)
    node_start = _node_start(start, certificates, keys, disk, folder)
    ack_subjects = list(start.config.ingest.ack_subjects)
    cluster_id = await node_start.start_metadata(folder.cluster_id, ack_subjects)
    folder.join(cluster_id)
    run = node_start.begin_run(cluster_id)  # It notes what was lost.
    folder.make_streams()
    registry, lost_through = node_start.metadata.registry, run.runs.record.lost_through
    unknown = UnknownStreams(folder, registry, wall_clock, lost_through)
    unknown.sort_out(node_start.metadata.status().journal_loss)
    node_start.metadata.watch(unknown.apply)  # Before the replicas learn of a stream.
    logs = node_start.open_logs(run)
    bounds = Bounds(start.config.ingest.pending_acks_max, start.config.ingest.uncommitted_bytes_max)
    connection, ingest = await _start_ingest(start, node_start, logs, bounds, folder)
    grpc_loop, peers = _start_grpc(start, node_start, certificates)
    start.step_down.append(partial(node_start.step_down, logs.replicas))
    node = await node_start.join(
        run,
        logs,
        ingest,
        peers,
        rack=start.configured.rack,
        addresses=Addresses(**{port: getattr(start.configured, port).advertise for port in PORTS}),
        removed=start.state.lose_registration,
    )
    served = node_consumers(start.config, start.configured.id, node, peers)
    return Server(
        config=start.config,
        configured=start.configured,
        state=start.state,
        certificates=certificates,
        histograms=start.histograms,
        node=node,
        connection=connection,
        bounds=bounds,
        grpc_loop=grpc_loop,
        peers=peers,
        disk=disk,
        catching_up=CatchingUp(
            node.metadata.registry,
            start.configured.id,
            lambda: node.metadata.incarnation,
            monotonic_clock,
        ),
        consumers=served,
        api=jetstream_api(start.config, start.configured.id, node, peers, served),
    )


async def _read_keys(start: Start) -> Keys | None:
    """The keys of encryption at rest, which a command may have to tell."""
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(keys_of, start.config, stopped)
    finally:
        stopped.set()  # The start was given up: its thread must not go on.


def _watch_files(
    start: Start, certificates: Certificates | None, keys: Keys | None, noting: KeyFolder
) -> None:
    """Read certificates and keys again on SIGHUP, and when their files change."""
    sources: list[Source] = []
    if certificates is not None:
        sources.append(CertificateReload(certificates))
    if keys is not None:
        key_reload = KeyReload(start.config.encryption, keys, noting)
        start.stack.callback(key_reload.close)
        sources.append(key_reload)
    if sources:
        watch = run_in_background(Reloading(sources, start.reload).run(), "file checks")
        start.stack.callback(watch.cancel)


def _open_folder(start: Start, disk: OsDisk) -> DataFolder:
    config = start.config
    folder = DataFolder.open(
        disk,
        str(config.data),
        node_id=start.configured.id,
        cluster="" if config.is_alone else config.cluster,
    )
    start.stack.callback(folder.close)
    make_room_to_start(folder.metadata_directory)
    watch = run_in_background(_watch_folder(folder, start.state), "data folder checks")
    start.stack.callback(watch.cancel)
    return folder


async def _watch_folder(folder: DataFolder, state: RunState) -> None:
    reason = ""
    while not reason:
        await asyncio.sleep(FOLDER_CHECK_SECONDS)
        reason = folder.why_gone()
    state.lose_folder(reason)


def _node_start(
    start: Start,
    certificates: Certificates | None,
    keys: Keys | None,
    disk: OsDisk,
    folder: DataFolder,
) -> NodeStart:
    config, configured, session = start.config, start.configured, new_session()
    metadata = RaftMetadataLog(
        MemberConfig(
            directory=folder.metadata_directory,
            node_id=NodeId(configured.id),
            voters={NodeId(node): at for node, at in config.voter_addresses.items()},
            listen=configured.raft.listen,
            accept_voters=start.accept_voters,
            join=config.join_addresses,
            has_followers=not config.is_alone
            and (len(config.nodes) > len(config.voter_addresses) or len(config.nodes) == 1),
            cluster_id=folder.cluster_id,
            secret=config.credential.encode(),
            certificates=certificates,
        ),
        session,
        start.state.lose_metadata,
    )
    return NodeStart(
        _environment(start, certificates, disk, folder),
        _settings(start, certificates, keys),
        metadata,
        start.stack,
        session=session,
        lost=start.state.failed.set,
    )


def _environment(
    start: Start, certificates: Certificates | None, disk: OsDisk, folder: DataFolder
) -> Environment:
    loop = asyncio.get_running_loop()
    return Environment(
        disk=disk,
        folder=folder.path,
        boot_id=boot_id(),
        dial=partial(dial, certificates=certificates),
        make_flusher=lambda: Flusher(
            loop.call_soon_threadsafe, timed=start.histograms.flush_seconds.observe
        ),
        clocks=Clocks(),
        lost_streams=folder.lost_streams,
        unsettled=folder.unsettled,
        folder_is_gone=start.state.folder_gone.is_set,
    )


def _settings(start: Start, certificates: Certificates | None, keys: Keys | None) -> NodeSettings:
    config, log = start.config, start.config.log
    connections = connections_max(raise_limit(), config.limits.connections)
    return NodeSettings(
        node_id=start.configured.id,
        is_alone=config.is_alone,
        credential=config.credential.encode(),
        log=LogConfig(segment_bytes=log.segment_bytes, keys=keys),
        flush_interval_seconds=log.flush_interval_ms / 1000,
        compaction_bytes_per_second=log.compaction_bytes_per_second,
        scrub_bytes_per_second=log.scrub_bytes_per_second,
        connections_max=connections,
        connections_per_address=config.limits.connections_per_address or max(connections // 2, 1),
        certificates=certificates,
        security_enabled=config.security.enabled,
        quotas=_quotas(config.security),
        batch_bytes_max=config.ingest.batch_bytes_max,
        lake=_lake_options(config),
    )


def _lake_options(config: Config) -> LakeOptions | None:
    lake = config.lake
    if not lake.url:
        return None
    store = StoreOptions(lake.url, lake.endpoint, lake.region, lake.credentials_file)
    return LakeOptions(
        store, lake.upload_bytes_per_second, lake.timeout, lake.cache_bytes, lake.grace,
        config.log.disk_reserve_bytes,
    )  # fmt: skip


def _quotas(config: SecurityConfig) -> Quotas:
    return Quotas(
        connections=config.connections_per_principal,
        requests=config.requests_per_principal,
        streams=config.streams_per_principal,
        groups=config.groups_per_principal,
        cursors=config.cursors_per_principal,
        consumers=config.consumers_per_principal,
        bytes_per_second=config.read_bytes_per_second,
        written_bytes_per_second=config.write_bytes_per_second,
    )


async def _start_ingest(
    start: Start, node_start: NodeStart, logs: Logs, bounds: Bounds, folder: DataFolder
) -> tuple[NatsConnection, Ingest]:
    config = start.config
    logger.info("ingest_form", form=INGEST_FORM, reason=why_pure)
    servers = list(config.nats.servers)
    if config.nats.embedded:
        servers = [await _start_embedded_nats(start, folder)]
    connection = NatsConnection(servers, link_options(config.nats, start.configured.id))
    policy = AckPolicy(config.ingest.ack_subjects)
    spans = await _start_tracing(start)
    ingest = node_start.make_ingest(logs, connection, policy, bounds, spans)
    connection.before_feed, connection.on_disconnect = ingest.may_feed, ingest.disconnected
    await node_start.start_ingest(ingest, connection, NATS_CONNECT_SECONDS)
    mark = DiskMark(node_start.metadata, start.configured.id, monotonic_clock=monotonic_clock)
    watching = watch_space(config.data, config.log.disk_reserve_bytes, logs.replicas, mark)
    watch = run_in_background(watching, "space checks")
    start.stack.callback(watch.cancel)
    return connection, ingest


async def _start_tracing(start: Start) -> SpanSource | None:
    """Open tracing if it is on. Raises StartError if OpenTelemetry is needed and not installed."""
    wanted = start.config.tracing
    if not wanted.enabled:
        return None
    try:
        from jetstream_server.node.tracing import open_tracing

        tracing = open_tracing(start.configured.id, wanted.spans_per_second, monotonic_clock)
    except ImportError as error:
        raise StartError(
            f"tracing.enabled needs OpenTelemetry ({error.name} is missing): "
            + install_command("otel")
        ) from error
    start.stack.push_async_callback(asyncio.to_thread, tracing.close)
    return tracing


async def _start_embedded_nats(start: Start, folder: DataFolder) -> str:
    host, port = split_address(start.config.nats.embedded_listen)
    nats = Path(folder.path, "nats")
    arguments = open_leaf_port(nats, start.config.nats)
    child = NatsServerProcess(nats, host=host, port=port, arguments=arguments)
    await child.start()
    start.stack.push_async_callback(child.stop)
    return child.url


def _start_grpc(
    start: Start, node_start: NodeStart, certificates: Certificates | None
) -> tuple[GrpcLoop, Peers]:
    """The loop of gRPC, and the calls to other nodes."""
    grpc_loop = GrpcLoop()
    grpc_loop.start()
    start.stack.push_async_callback(grpc_loop.stop)
    peers = Peers(
        node_start.metadata.registry,
        grpc_loop,
        certificates,
        node_id=start.configured.id,
        run=lambda: node_start.metadata.incarnation,
        secret=start.config.credential.encode(),
    )
    start.stack.push_async_callback(peers.close)
    return grpc_loop, peers
