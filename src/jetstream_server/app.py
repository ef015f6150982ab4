"""One node, put together: what starts in which order, and stops in the reverse.

data folder (lock) ─> metadata ─> replicas (recovery) ─> NATS, ingest ─> data plane, gRPC, HTTP
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import uvloop

from jetstream_protocol.errors import (
    JetstreamError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.api.callers import Callers
from jetstream_server.api.cluster import ClusterService
from jetstream_server.api.elections import UncleanElections
from jetstream_server.api.grpc_loop import GrpcLoop
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
from jetstream_server.banner import banner
from jetstream_server.clocks import Clocks, wall_clock_us
from jetstream_server.config import PORTS, Config, ConfigurationError, NodeConfig, split_address
from jetstream_server.descriptors import connections_max, raise_limit
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.compiled import INGEST_FORM, why_pure
from jetstream_server.ingest.connection import NatsConnection
from jetstream_server.ingest.nats_child import NatsChild
from jetstream_server.ingest.options import link_options
from jetstream_server.ingest.stream import Bounds
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.log.folder import DataFolder
from jetstream_server.metadata.alteration import StreamAlteration
from jetstream_server.metadata.creation import StreamCreation
from jetstream_server.metadata.member_config import MemberConfig
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.node import Environment, Node, NodeSettings
from jetstream_server.replication.frame_socket import dial
from jetstream_server.replication.membership import new_session
from jetstream_server.replication.run_book import boot_id
from jetstream_server.replication.space import watch_space
from jetstream_server.replication.unknown_streams import UnknownStreams

NATS_CONNECT_SECONDS = 10.0
"""How long a start waits for NATS; without it the node serves reads and goes on trying."""

logger = structlog.get_logger("jetstream.server")
new_event_loop = uvloop.new_event_loop

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StartError(Exception):
    """The node cannot start; the message is one line that says why."""


async def serve(
    config: Config, node: NodeConfig, accept_voters: bool = False, for_people: bool = False
) -> None:
    """Run the node until SIGTERM or SIGINT. Raises StartError when it cannot start.

    for_people: say at length that it is ready, not in a line for scripts.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    server = Server(config, node, accept_voters=accept_voters)
    try:
        starting = loop.create_task(server.start())
        if not await _first_of(starting, stopped, server.failed):
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        if not stopped.is_set():
            print(server.banner() if for_people else server.ready_line(), flush=True)
            await _first_of(None, stopped, server.failed)
        logger.info("stopping")
    finally:
        await server.stop()
        for number in STOP_SIGNALS:
            # The loop goes, the process is about to: a second signal must not make it look killed.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
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
        self._configured = node
        self._stack = AsyncExitStack()
        self._reasons_not_ready: list[str] = ["starting"]
        self._is_joining = False
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Raises StartError; what was started by then is stopped by `stop`."""
        asyncio.get_running_loop().set_exception_handler(self._loop_error)
        try:
            await self._start()
        except JetstreamError as error:
            raise StartError(error.message) from error
        except (OSError, ConfigurationError) as error:
            raise StartError(str(error)) from error

    async def _start(self) -> None:
        self._disk = OsDisk()
        self._stack.callback(self._disk.close)
        alone = len(self._config.nodes) == 1
        self._folder = DataFolder.open(
            self._disk,
            str(self._config.data),
            node_id=self._configured.id,
            cluster="" if alone else self._config.cluster,
        )
        self._stack.callback(self._folder.close)
        await self._start_metadata()
        unknown = UnknownStreams(self._folder, self._metadata.registry)
        unknown.sort_out(self._metadata.status().doubt)
        self._metadata.watch(unknown.apply)  # Before the replicas hear of a stream.
        self._node.open_logs()
        await self._start_ingest()
        await self._join()
        await self._start_listeners()
        self._reasons_not_ready.clear()

    async def _start_metadata(self) -> None:
        session, log = new_session(), self._config.log
        self._metadata = RaftMetadataLog(
            MemberConfig(
                directory=self._folder.metadata_directory,
                node_id=NodeId(self._configured.id),
                voters={NodeId(node): at for node, at in self._config.voter_addresses.items()},
                listen=self._configured.raft.listen,
                accept_voters=self._accept_voters,
                has_followers=len(self._config.nodes) > len(self._config.voter_addresses),
                cluster_id=self._folder.cluster_id,
                secret=self._config.credential.encode(),
            ),
            session,
            self._metadata_failed,
        )
        loop = asyncio.get_running_loop()
        self._node = Node(
            Environment(
                disk=self._disk,
                folder=self._folder.path,
                boot_id=boot_id(),
                dial=dial,
                make_flusher=lambda: Flusher(loop.call_soon_threadsafe),
                clocks=Clocks(),
                lost_streams=self._folder.lost_streams,
            ),
            NodeSettings(
                node_id=self._configured.id,
                is_alone=len(self._config.nodes) == 1,
                credential=self._config.credential.encode(),
                log=LogConfig(segment_bytes=log.segment_bytes),
                flush_interval_seconds=log.flush_interval_ms / 1000,
                compaction_bytes_per_second=log.compaction_bytes_per_second,
                scrub_bytes_per_second=log.scrub_bytes_per_second,
                connections_max=connections_max(raise_limit()),
            ),
            self._metadata,
            self._stack,
            session=session,
            lost=self.failed.set,
        )
        cluster_id = await self._node.start_metadata(
            self._folder.cluster_id, list(self._config.ingest.ack_subjects)
        )
        self._folder.join(cluster_id)
        self._node.begin_run(cluster_id)

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

    async def _join(self) -> None:
        """Register, take up the roles given, and be heard."""
        self._grpc_loop = GrpcLoop()
        self._grpc_loop.start()
        self._stack.push_async_callback(self._grpc_loop.stop)
        self._peers = Peers(self._metadata.registry, self._grpc_loop)
        self._stack.push_async_callback(self._peers.close)
        node = self._configured
        addresses = {port: getattr(node, port).advertise for port in PORTS}
        self._is_joining = True
        await self._node.join(self._peers, rack=node.rack, addresses=addresses)

    async def _start_ingest(self) -> None:
        ingest = self._config.ingest
        logger.info("ingest_form", form=INGEST_FORM, reason=why_pure)
        servers = list(self._config.nats.servers)
        if self._config.nats.embedded:
            servers = [await self._start_embedded_nats()]
        self._connection = NatsConnection(
            servers,
            link_options(self._config.nats, self._configured.id),
            before_feed=lambda: self._node.ingest.may_feed(),
            on_disconnect=lambda reason: self._node.ingest.disconnected(reason),
        )
        self._bounds = Bounds(ingest.pending_acks_max, ingest.uncommitted_bytes_max)
        await self._node.start_ingest(
            self._connection, AckPolicy(ingest.ack_subjects), self._bounds, NATS_CONNECT_SECONDS
        )
        reserve = self._config.log.disk_reserve_bytes
        watch = run_in_background(
            watch_space(self._config.data, reserve, self._node.replicas), "space checks"
        )
        self._stack.callback(watch.cancel)

    async def _start_embedded_nats(self) -> str:
        host, port = split_address(self._config.nats.embedded_listen)
        child = NatsChild(Path(self._folder.path, "nats"), host=host, port=port)
        await child.start()
        self._stack.push_async_callback(child.stop)
        return child.url

    async def _start_listeners(self) -> None:
        configured, node = self._configured, self._node
        data_listen = configured.data.listen
        await _listen(node.data_plane.start(*split_address(data_listen)), data_listen)
        hang_up_on = partial(hang_up, port=split_address(configured.grpc.listen)[1])
        api = ApiServer(
            StreamsService(
                self._metadata,
                node.replicas,
                authorize,
                StreamCreation(
                    self._metadata, wall_clock_us, nodes_configured=len(self._config.nodes)
                ).create,
                StreamAlteration(self._metadata),
                node.ingest.confirm,
                self._peers,
                configured.id,
            ),
            ReadsService(
                node.replicas,
                node.fetches,
                authorize,
                Outstanding(hang_up_on),
            ),
            ClusterService(
                self._metadata,
                authorize,
                node_id=configured.id,
                version=version("jetstream-log"),
                nats_urls=self._nats_urls,
                replicas=node.replicas,
                hand_overs=node.hand_overs,
                transfers=node.transfers,
                elections=UncleanElections(
                    self._metadata,
                    node.replicas,
                    self._peers,
                    lambda: node.runs.record.suspects,
                    configured.id,
                ),
            ),
            Callers(hang_up_on),
            self._grpc_loop,
        )
        self._stack.push_async_callback(api.stop)
        await _listen(api.start(configured.grpc.listen), configured.grpc.listen)
        metrics = NodeMetrics(node.replicas, self._numbers, ingest_form=INGEST_FORM)
        http = HttpServer(self._not_ready, [metrics])
        await _listen(http.start(*split_address(configured.http.listen)), configured.http.listen)
        self._stack.push_async_callback(http.stop)

    async def stop(self) -> None:
        """Stop in the reverse order of the start; everything acknowledged is on its way to disk."""
        self._reasons_not_ready.append("stopping")
        if self._is_joining and not self.failed.is_set():
            await self._node.step_down()
        await self._stack.aclose()

    def ready_line(self) -> str:
        """What a person or a script needs to know, on one line."""
        node = self._configured
        return (
            f"jetstream-server ready: node={node.id} grpc={node.grpc.advertise} "
            f"data={node.data.advertise} http=http://{node.http.advertise} "
            f"nats={','.join(self._nats_urls())} folder={self._config.data}"
        )

    def banner(self) -> str:
        node = self._configured
        return banner(
            node.grpc.advertise, node.http.advertise, self._nats_urls(), self._config.data
        )

    def _nats_urls(self) -> tuple[str, ...]:
        return tuple(self._config.nats.advertise) or self._connection.urls

    def _not_ready(self) -> list[str]:
        reasons = list(self._reasons_not_ready)
        if not reasons:
            if not self._connection.is_connected:
                reasons.append("not connected to NATS")
            elif not self._connection.hears:
                reasons.append("NATS is not heard")
            if not self._node.membership.speaks():
                reasons.append("no session: the controller does not answer")
            if self._node.replicas.full_reason:
                reasons.append(self._node.replicas.full_reason)
        return reasons

    def _numbers(self) -> NodeNumbers:
        counters = self._connection.counters
        return NodeNumbers(
            data_plane_connections=self._node.data_plane.connection_count,
            waiting_fetches=self._node.fetches.waiting,
            nats_disconnects=counters.disconnects,
            nats_reconnects=counters.reconnects,
            pending_acks=self._bounds.pending_acks,
            uncommitted_bytes=self._bounds.uncommitted_bytes,
            scrubbed_bytes=self._node.scrub.bytes_read,
            damaged_ranges_found=self._node.healing.ranges_found,
            damaged_ranges_repaired=self._node.healing.ranges_repaired,
        )


async def _listen(starting: Awaitable[None], address: str) -> None:
    """Raises StartError, one sentence for whichever port it is."""
    try:
        await starting
    except OSError as error:
        # Python adds the address in its own spelling; gRPC says nothing.
        reason = (error.strerror or "perhaps it is in use").partition(" (")[0]
        raise StartError(f"cannot listen on {address}: {reason}") from error
