"""One node, put together: what starts in which order, and stops in the reverse.

data folder (lock) ─> metadata ─> replicas (recovery) ─> NATS, ingest ─> data plane, gRPC, HTTP
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import ssl
import time
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import uvloop

from jetstream_protocol.errors import (
    JetstreamError,
    StorageError,
    StreamNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.api.cluster import ClusterService
from jetstream_server.api.hang_up import hang_up
from jetstream_server.api.http import HttpServer
from jetstream_server.api.metrics import NodeMetrics, NodeNumbers
from jetstream_server.api.outstanding import Outstanding
from jetstream_server.api.peers import Peers
from jetstream_server.api.reads import ReadsService
from jetstream_server.api.server import ApiServer
from jetstream_server.api.streams import StreamsService
from jetstream_server.authorization import authorize
from jetstream_server.background import FAILED_TASK, run_in_background
from jetstream_server.config import PORTS, Config, NatsConfig, NodeConfig, split_address
from jetstream_server.dataplane.server import DataPlaneServer
from jetstream_server.descriptors import connections_max, raise_limit
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.auth import Credentials
from jetstream_server.ingest.connection import NatsConnection
from jetstream_server.ingest.handshake import LinkOptions
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.nats_child import NatsChild
from jetstream_server.ingest.stream import Bounds
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.log.folder import DataFolder
from jetstream_server.metadata.changes import Change, NodeChanged
from jetstream_server.metadata.controller import Placer
from jetstream_server.metadata.member_config import MemberConfig
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.controller import Controller
from jetstream_server.replication.fetch import Fetches
from jetstream_server.replication.fetcher import NodeIdentity
from jetstream_server.replication.following import Following
from jetstream_server.replication.isr_driver import IsrDriver
from jetstream_server.replication.log_ends import leaderless_log_ends
from jetstream_server.replication.node_session import NodeSession
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.run_book import RunBook
from jetstream_server.replication.trust import judge

SPACE_CHECK_SECONDS = 1.0
QUARANTINE_DAYS = 7
VOTERS_MAX = 5
RETRY_SECONDS = 0.2
LEASE_CHECK_SECONDS = 0.1
HAND_OVER_SECONDS = 10.0
SESSION_SECONDS = 10.0
"""How long a start waits for its first lease; it may serve reads without one."""
NATS_CONNECT_SECONDS = 10.0
"""How long a start waits for NATS; without it the node serves reads and goes on trying."""

logger = structlog.get_logger("jetstream.server")
new_event_loop = uvloop.new_event_loop


class StartError(Exception):
    """The node cannot start; the message is one line that says why."""


async def serve(config: Config, node: NodeConfig, *, accept_voters: bool = False) -> None:
    """Run the node until SIGTERM or SIGINT. Raises StartError when it cannot start."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = Server(config, node, accept_voters=accept_voters)
    try:
        starting = loop.create_task(server.start())
        if not await _first_of(starting, stopped, server.failed):
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        if not stopped.is_set():
            print(server.ready_line(), flush=True)
            await _first_of(None, stopped, server.failed)
        logger.info("stopping")
    finally:
        await server.stop()
    if server.failed.is_set():
        raise StartError("this node cannot go on; its log says why")


async def _first_of(task: asyncio.Task[None] | None, *events: asyncio.Event) -> bool:
    """Wait for the task or the first of the events; whether it was the task. Raises its error."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait([*waits, *([task] if task else [])], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if task is None or not task.done():
        return False
    task.result()
    return True


class Server:
    """One node: `start`, then `stop`, once each."""

    def __init__(self, config: Config, node: NodeConfig, *, accept_voters: bool = False) -> None:
        self._accept_voters = accept_voters
        self._config = config
        self._node = node
        self._stack = AsyncExitStack()
        self._reasons_not_ready: list[str] = ["starting"]
        self._left_clean = False
        self._registered = False
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Raises StartError; what was started by then is stopped by `stop`."""
        asyncio.get_running_loop().set_exception_handler(self._loop_error)
        try:
            await self._start()
        except JetstreamError as error:
            raise StartError(error.message) from error
        except OSError as error:
            raise StartError(str(error)) from error

    async def _start(self) -> None:
        self._disk = OsDisk()
        self._stack.callback(self._disk.close)
        alone = len(self._config.nodes) == 1
        self._folder = DataFolder.open(
            self._disk,
            str(self._config.data),
            node_id=self._node.id,
            cluster_id=None if alone else self._config.cluster,
        )
        self._stack.callback(self._close_folder)
        await self._start_metadata()
        self._open_replicas()
        await self._start_ingest()
        await self._register()
        await self._start_listeners()
        self._reasons_not_ready.clear()

    async def _start_metadata(self) -> None:
        session = secrets.token_hex(16)
        self._runs = RunBook(
            self._disk,
            f"{self._folder.path}/runs",
            f"{self._folder.cluster_id}/{self._node.id}",
        )
        self._was_clean = self._runs.record.clean
        self._runs.begin(session)
        self._session = session
        self._metadata = RaftMetadataLog(
            MemberConfig(
                directory=self._folder.metadata_directory,
                node_id=NodeId(self._node.id),
                voters=_voters(self._config),
                listen=self._node.raft.listen,
                accept_voters=self._accept_voters,
                secret=self._config.credential.encode(),
            ),
            session,
            self._metadata_failed,
        )
        self._node_session = NodeSession(self._metadata)
        await self._metadata.start()
        self._stack.push_async_callback(self._metadata.close)
        await self._until_led()
        self._placer = Placer(self._metadata.registry)

    async def _until_led(self) -> None:
        """Wait for a metadata leader, as long as it takes, and for all it has committed."""
        while True:
            try:
                await self._metadata.propose(
                    {
                        "op": "set_cluster",
                        "cluster_id": self._folder.cluster_id,
                        "ack_subjects": self._config.ingest.ack_subjects,
                    }
                )
                await self._metadata.barrier()
            except (UnavailableError, UnknownOutcomeError) as error:
                logger.warning("waiting_for_metadata_leader", reason=error.message)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake in a callback is logged; without one of its tasks the node cannot go on."""
        logger.error(
            "internal_error", message=context["message"], exc_info=context.get("exception")
        )
        if FAILED_TASK in context:
            self.failed.set()

    def _metadata_failed(self, reason: str) -> None:
        """Without its part in the metadata group a node can promise nothing: it stops."""
        logger.error("metadata_failed_stopping", reason=reason)
        self.failed.set()

    async def _register(self) -> None:
        """Say that this run is there, what its logs are worth, and take up the roles given."""
        node = self._node
        known = self._metadata.registry.nodes.get(NodeId(node.id))
        problems = {int(r.stream.id): r.log.offline_reason for r in self._replicas}
        trust = judge(self._runs.record, None if known is None else known.session, problems)
        registered = await self._until_registered(
            {
                "op": "register_node",
                "node_id": node.id,
                "rack": node.rack,
                "addresses": {port: getattr(node, port).advertise for port in PORTS},
                "replaces": "" if known is None else known.session,
                "trusted": trust.trusted,
                "distrusted": list(trust.distrusted),
            }
        )
        self._registered = True
        self._runs.registered(self._session)
        incarnation = registered["incarnation"]
        identity = NodeIdentity(
            node.id,
            incarnation,
            self._folder.cluster_id,
            self._config.credential.encode(),
        )
        self._following = Following(
            self._replicas, self._metadata, identity, now_us=_now_us, clock_us=_clock_us
        )
        self._stack.push_async_callback(self._following.close)
        isr_driver = IsrDriver(self._metadata, now_us=_now_us)
        self._replicas.roles += [self._following, isr_driver]
        self._replicas.begin(incarnation)
        isr_driver.start()
        self._stack.push_async_callback(isr_driver.close)
        await self._start_session()

    async def _start_session(self) -> None:
        """Take part as a node that is heard, and perhaps as the controller."""
        replicas, registry = self._replicas, self._metadata.registry
        self._node_session.start(
            lambda: leaderless_log_ends(
                NodeId(self._node.id),
                registry,
                replicas,
                set(map(StreamId, self._runs.record.suspects)),
            )
        )
        self._stack.push_async_callback(self._node_session.close)
        self._metadata.watch(self._watch_own_registration)
        controller = Controller(self._metadata, lambda: self._node_session.log_ends)
        controller.start()
        self._stack.push_async_callback(controller.close)
        try:
            await self._node_session.wait_until_held(SESSION_SECONDS)
        except UnavailableError as error:
            logger.warning("no_session_yet", reason=error.message)

    def _watch_own_registration(self, change: Change) -> None:
        """Two processes with one node id must not both go on."""
        match change:
            case NodeChanged(_, after) if after is not None and after.node_id == self._node.id:
                if after.session != self._session:
                    logger.error("node_id_taken_over", node=self._node.id)
                    self.failed.set()

    async def _until_registered(self, command: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                return await self._metadata.propose(command)
            except (UnavailableError, UnknownOutcomeError) as error:
                # Repeating it changes nothing: the session's token is the same.
                logger.warning("waiting_to_register", reason=error.message)
                await asyncio.sleep(RETRY_SECONDS)

    def _set_unknown_streams_aside(self) -> None:
        """Folders of streams nobody registered are kept for QUARANTINE_DAYS, then deleted.

        After a metadata barrier only: before it, a stream might merely not be known here yet.
        """
        try:
            for stream_id in self._folder.stream_ids():
                if stream_id not in self._metadata.registry.streams:
                    self._folder.quarantine(stream_id)
                    logger.warning("unknown_stream_set_aside", stream_id=stream_id)
            for name in self._folder.delete_quarantined(QUARANTINE_DAYS * 86_400_000_000):
                logger.info("quarantined_stream_deleted", name=name)
        except (OSError, StorageError) as error:
            # Nobody needs those folders: no reason not to serve the others.
            logger.error("quarantine_failed", reason=str(error))

    def _open_replicas(self) -> None:
        self._set_unknown_streams_aside()
        loop = asyncio.get_running_loop()
        log = self._config.log
        flusher = Flusher(loop.call_soon_threadsafe)
        self._stack.callback(flusher.close)
        self._replicas = Replicas(
            node_id=self._node.id,
            registry=self._metadata.registry,
            disk=self._disk,
            directory=f"{self._folder.path}/streams",
            config=LogConfig(segment_bytes=log.segment_bytes),
            flusher=flusher,
            runs=self._runs,
            flush_interval_seconds=log.flush_interval_ms / 1000,
            clock_us=_clock_us,
            now_us=_now_us,
            speaks=self._speaks,
        )
        self._replicas.open(clean=self._was_clean)
        self._metadata.watch(self._replicas.apply)
        self._stack.callback(self._close_replicas)

    async def _start_ingest(self) -> None:
        ingest = self._config.ingest
        servers = list(self._config.nats.servers)
        if self._config.nats.embedded:
            servers = [await self._start_embedded_nats()]
        self._connection = NatsConnection(
            servers,
            _link_options(self._config.nats, self._node.id),
            before_feed=lambda: self._ingest.may_feed(),
            on_disconnect=lambda reason: self._ingest.disconnected(reason),
        )
        self._bounds = Bounds(ingest.pending_acks_max, ingest.uncommitted_bytes_max)
        self._ingest = Ingest(
            self._connection,
            self._replicas,
            AckPolicy(ingest.ack_subjects),
            self._bounds,
            self._speaks,
        )
        self._replicas.listener = self._ingest
        try:
            await self._connection.connect(NATS_CONNECT_SECONDS)
        except UnavailableError as error:
            # The log can be read all the same; the connection goes on trying.
            logger.error("nats_unreachable", reason=error.message)
        self._stack.push_async_callback(self._ingest.stop)
        self._watch_space = run_in_background(self._check_space(), "space checks")
        self._stack.callback(self._watch_space.cancel)
        self._watch_lease = run_in_background(self._check_lease(), "lease checks")
        self._stack.callback(self._watch_lease.cancel)

    async def _start_embedded_nats(self) -> str:
        host, port = split_address(self._config.nats.embedded_listen)
        child = NatsChild(Path(self._folder.path, "nats"), host=host, port=port)
        await child.start()
        self._stack.push_async_callback(child.stop)
        return child.url

    def _close_replicas(self) -> None:
        self._left_clean = self._replicas.close()

    def _close_folder(self) -> None:
        if self._left_clean:
            self._runs.stop()
        self._folder.close()

    async def _start_listeners(self) -> None:
        node = self._node
        self._fetches = Fetches()
        self._data_plane = DataPlaneServer(
            self._replicas,
            self._fetches,
            authorize,
            node_id=node.id,
            cluster_id=self._folder.cluster_id,
            secret=self._config.credential.encode(),
            now_us=_now_us,
            connections_max=connections_max(raise_limit()),
        )
        await self._data_plane.start(*split_address(node.data.listen))
        self._stack.push_async_callback(self._data_plane.close)
        peers = Peers(self._metadata.registry)
        self._stack.push_async_callback(peers.close)
        api = ApiServer(
            StreamsService(
                self._metadata,
                self._replicas,
                authorize,
                self._create_stream,
                self._ingest.confirm,
                peers,
                node.id,
            ),
            ReadsService(
                self._replicas,
                self._fetches,
                authorize,
                Outstanding(partial(hang_up, port=split_address(node.grpc.listen)[1])),
            ),
            ClusterService(
                self._metadata,
                authorize,
                node_id=node.id,
                version=version("jetstream-log"),
                nats_urls=self._nats_urls,
                replicas=self._replicas,
            ),
        )
        await api.start(node.grpc.listen)
        self._stack.push_async_callback(api.stop)
        http = HttpServer(self._not_ready, [NodeMetrics(self._replicas, self._numbers)])
        await http.start(*split_address(node.http.listen))
        self._stack.push_async_callback(http.stop)

    async def stop(self) -> None:
        """Stop in the reverse order of the start; everything acknowledged is on its way to disk."""
        self._reasons_not_ready.append("stopping")
        if self._registered and not self.failed.is_set() and len(self._config.nodes) > 1:
            await self._hand_over()
        await self._stack.aclose()

    async def _hand_over(self) -> None:
        """Drain: other nodes take over what this one leads, as far as they can, then it goes."""
        changed = asyncio.Event()
        stop_watching = self._metadata.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._metadata.propose({"op": "drain_node", "node_id": self._node.id})
                while any(self._can_hand_over(replica) for replica in self._replicas):
                    changed.clear()
                    await changed.wait()
        except (TimeoutError, JetstreamError) as error:
            logger.warning("not_handed_over", reason=str(error) or "it took too long")
        finally:
            stop_watching()

    def _can_hand_over(self, replica: Replica) -> bool:
        """Whether this node leads a stream that another live member of its ISR could lead."""
        nodes = self._metadata.registry.nodes
        return replica.leadership is not None and any(
            member != self._node.id and not nodes[member].fenced and not nodes[member].draining
            for member in replica.stream.isr
            if member in nodes
        )

    def ready_line(self) -> str:
        """What a person or a script needs to know, on one line."""
        node = self._node
        return (
            f"jetstream-server ready: node={node.id} grpc={node.grpc.advertise} "
            f"data={node.data.advertise} http=http://{node.http.advertise} "
            f"nats={','.join(self._nats_urls())} folder={self._config.data}"
        )

    async def _create_stream(
        self, name: str, subject: str, config: dict[str, Any]
    ) -> tuple[StreamMetadata, bool]:
        """Place and create a stream. Idempotent."""
        settings = {key: value for key, value in config.items() if value is not None}
        group = settings.pop("group")
        placement = self._placer.place(settings.get("replicas"))
        try:
            result = await self._metadata.propose(
                {
                    "op": "create_stream",
                    "name": name,
                    "subject": subject,
                    "group": group,
                    "config": settings,
                    "replicas": placement,
                    "created_at_us": time.time_ns() // 1000,
                }
            )
        finally:
            self._placer.settle(placement)
        stream = self._metadata.registry.streams.get(result["stream_id"])
        if stream is None:
            raise StreamNotFoundError("the stream was deleted while it was being created")
        return stream, result["created"]

    def _nats_urls(self) -> tuple[str, ...]:
        return tuple(self._config.nats.advertise) or self._connection.urls

    def _not_ready(self) -> list[str]:
        reasons = list(self._reasons_not_ready)
        if not reasons:
            if not self._connection.is_connected:
                reasons.append("not connected to NATS")
            if not self._speaks():
                reasons.append("no session: the controller does not answer")
            if self._replicas.full_reason:
                reasons.append(self._replicas.full_reason)
        return reasons

    def _numbers(self) -> NodeNumbers:
        counters = self._connection.counters
        return NodeNumbers(
            data_plane_connections=self._data_plane.connection_count,
            waiting_fetches=self._fetches.waiting,
            nats_disconnects=counters.disconnects,
            nats_reconnects=counters.reconnects,
            pending_acks=self._bounds.pending_acks,
            uncommitted_bytes=self._bounds.uncommitted_bytes,
        )

    def _speaks(self) -> bool:
        """Whether this node may act as a leader at this very moment (design 6, 7)."""
        return self._node_session.lease_holds()

    async def _check_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_CHECK_SECONDS)
            self._ingest.check_lease()

    async def _check_space(self) -> None:
        """Refuse appends while the disk is below its reserve (design 5, "Disk watermarks")."""
        reserve = self._config.log.disk_reserve_bytes
        while True:
            reason = _why_full(self._config.data, reserve)
            if bool(reason) != bool(self._replicas.full_reason):
                logger.log(
                    logging.ERROR if reason else logging.INFO,
                    "disk_full" if reason else "disk_has_room",
                    reason=reason,
                    reserve_bytes=reserve,
                )
            self._replicas.full_reason = reason
            await asyncio.sleep(SPACE_CHECK_SECONDS)


def _why_full(folder: Path, reserve_bytes: int) -> str:
    """Why nothing more should be appended below `folder`; "" when there is room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the free space of the data folder cannot be told: {error.strerror}"
    if free < reserve_bytes:
        return f"the disk has {free} bytes free, below the reserve of {reserve_bytes}"
    return ""


def _clock_us() -> int:
    return time.time_ns() // 1000


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _voters(config: Config) -> dict[NodeId, str]:
    """The nodes that decide on metadata: at most VOTERS_MAX, from three on an odd number."""
    count = len(config.nodes)
    if count > 2:
        count = min(count - 1 + count % 2, VOTERS_MAX)
    nodes = sorted(config.nodes, key=lambda node: node.id)[:count]
    return {NodeId(node.id): node.raft.advertise for node in nodes}


def _link_options(nats: NatsConfig, node_id: int) -> LinkOptions:
    """How to log in at NATS. Raises StartError for files that cannot be used."""
    context = None
    if nats.tls is not None:
        try:
            context = ssl.create_default_context(cafile=nats.tls.ca_file)
            if nats.tls.certificate_file is not None:
                context.load_cert_chain(nats.tls.certificate_file, nats.tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise StartError(f"nats.tls: {error}") from error
    return LinkOptions(
        name=f"jetstream-node-{node_id}",
        version=version("jetstream-log"),
        credentials=Credentials(
            user=nats.user,
            password=nats.password,
            token=nats.token,
            nkey_seed_file=nats.nkey_seed_file,
            credentials_file=nats.credentials_file,
        ),
        tls=context,
        tls_handshake_first=nats.tls is not None and nats.tls.handshake_first,
    )
