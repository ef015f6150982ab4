"""The ports of a server: data plane, gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from functools import partial

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.version import VERSION
from jetstream_server.background import run_in_background
from jetstream_server.clocks import monotonic_clock, wall_clock
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.node.config import Config, split_address
from jetstream_server.node.debug import debug_node
from jetstream_server.node.descriptors import grpc_connections_max, raise_limit
from jetstream_server.node.logs import RECENT
from jetstream_server.node.metrics import families
from jetstream_server.node.readiness import not_ready, not_to_be_relied_on, notes
from jetstream_server.node.run_state import CannotListenError
from jetstream_server.node.server import Server
from jetstream_server.replication.drivers.disk_reserve import free_bytes
from jetstream_server.security.acl import Operation
from jetstream_server.serving.grpc.call_limiter import CallLimiter
from jetstream_server.serving.grpc.close_peer import close_peer, close_peers
from jetstream_server.serving.grpc.cluster_service import ClusterService
from jetstream_server.serving.grpc.connection_limiter import ConnectionLimiter
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from jetstream_server.serving.grpc.cursor_lags import CursorLags
from jetstream_server.serving.grpc.cursor_leader import CursorLeader
from jetstream_server.serving.grpc.cursors_service import CursorsService
from jetstream_server.serving.grpc.elections import UncleanElections
from jetstream_server.serving.grpc.groups_service import GroupsService
from jetstream_server.serving.grpc.histories import Histories
from jetstream_server.serving.grpc.lakes import Lakes
from jetstream_server.serving.grpc.reads_service import ReadsService
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.grpc.security_service import SecurityService
from jetstream_server.serving.grpc.server import ApiServer
from jetstream_server.serving.grpc.streams_service import StreamsService
from jetstream_server.serving.grpc.token_connections import TokenConnections
from jetstream_server.serving.grpc.voters import GroupVoters
from jetstream_server.serving.history import History
from jetstream_server.serving.history_sampler import HistorySampler
from jetstream_server.serving.http import console
from jetstream_server.serving.http.api_routes import api_routes
from jetstream_server.serving.http.cors import Cors
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.hosts import OwnHosts
from jetstream_server.serving.http.pages import Pages
from jetstream_server.serving.http.server import HttpServer
from jetstream_server.serving.metrics.histograms import watch_loop
from jetstream_server.serving.metrics.page import MetricsPage


async def start_listeners(server: Server, stack: AsyncExitStack) -> None:
    """Open the ports. stack: closes them. Raises CannotListenError for one that cannot be used."""
    configured, node = server.configured, server.node
    data_listen = configured.data.listen
    await _listen(node.data_plane.start(*split_address(data_listen)), data_listen)
    lags = CursorLags(
        node.drivers.cursors,
        node.metadata.registry,
        node.replicas,
        server.peers,
        configured.id,
        wall_clock,
        node.fetches.lake,
    )
    metrics = MetricsPage(
        node.replicas,
        partial(families, server),
        server.histograms,
        monotonic_clock,
        lags.find,
        server.consumers.consumers,
    )
    history = History()
    sampler = HistorySampler(
        history,
        node.replicas,
        partial(free_bytes, server.config.data),
        lags.find,
        wall_clock,
    )
    api = _api(server, metrics, history)
    stack.push_async_callback(api.stop)
    await _listen(api.start(configured.grpc.listen), configured.grpc.listen)
    await _start_http(server, metrics, stack)
    stack.push_async_callback(server.consumers.leaderships.close)
    server.consumers.leaderships.lead()
    if server.api is not None:
        server.api.start()
        stack.push_async_callback(server.api.close)
    observe = server.histograms.event_loop_lag_seconds.observe
    watch = run_in_background(watch_loop(monotonic_clock, observe), "loop checks")
    stack.callback(watch.cancel)
    stack.callback(run_in_background(sampler.run(), "history").cancel)


def _api(server: Server, metrics: MetricsPage, history: History) -> ApiServer:
    node, metadata, node_id = server.node, server.node.metadata, server.configured.id
    port = split_address(server.configured.grpc.listen)[1]
    close_connection = partial(close_peer, port=port)
    streams = Streams(metadata, wall_clock, nodes_configured=len(server.config.nodes))
    connections = ConnectionLimiter(
        port,
        server.connections_per_address,
        server.refused,
        lambda: server.disk.open_count,
        connections_max=grpc_connections_max(raise_limit()),
    )

    token_connections = TokenConnections(node.access, port, connections.signed_in)
    node.access.closes(token_connections.close_ended)
    cursors = node.drivers.cursors
    unread = ResponseMemoryLimiter(close_connection)
    leader = CursorLeader(metadata, streams, server.peers, node_id)
    return ApiServer(
        StreamsService(
            metadata,
            node.replicas,
            node.drivers.changes,
            node.stream_access,
            streams,
            node.ingest.confirm,
            node.ingest.drained,
            server.peers,
            node_id,
            wall_clock,
            node.drivers.retention.visit,
            node.produces,
            Lakes(
                node.replicas,
                node.fetches.lake,
                node.drivers.uploading,
                node.drivers.sweeping,
                node.drivers.adopting,
            ),
            server.consumers.consumers,
        ),
        ReadsService(node.replicas, node.fetches, node.stream_access, unread),
        _cluster_service(server, metrics, streams, history),
        CursorsService(cursors, metadata.registry, leader, node.stream_access, wall_clock),
        GroupsService(cursors, metadata.registry, leader, node.stream_access),
        ConsumersService(
            None if server.api is None else server.api.answer_for,
            server.consumers.states,
            server.consumers.consumers,
            server.consumers.leaderships,
            node.replicas,
            node.stream_access,
            unread,
        ),
        SecurityService(metadata, node.access, wall_clock),
        node.stream_access,
        CallLimiter(close_connection, connections.is_known, partial(close_peers, port=port)),
        connections,
        token_connections,
        unread,
        server.grpc_loop,
        lambda: metadata.registry.revision,
        metadata.reach,
        server.certificates,
    )


def _cluster_service(
    server: Server, metrics: MetricsPage, streams: Streams, history: History
) -> ClusterService:
    node, node_id = server.node, server.configured.id

    async def describe_for_support() -> pb.DebugNodeResponse:
        text = await metrics.text()
        return debug_node(server.config, text.decode(), RECENT.lines())

    return ClusterService(
        node.metadata,
        node_id=node_id,
        version=VERSION,
        nats_urls=server.nats_urls,
        replicas=node.replicas,
        hand_overs=node.hand_overs,
        transfers=node.transfers,
        elections=UncleanElections(
            node.metadata,
            node.replicas,
            server.peers,
            lambda: node.run.runs.record.suspects,
            node_id,
        ),
        peers=server.peers,
        not_ready=partial(not_ready, server),
        debug_node=describe_for_support,
        node_use=server.use,
        may_see_use=lambda caller: (
            not node.access.applies_to(caller)
            or node.access.allows(caller, Operation.CLUSTER_DESCRIBE)
        ),
        streams=streams,
        voters=GroupVoters(node.metadata, server.peers, node_id),
        histories=Histories(
            history, node.metadata.registry, node.stream_access, server.peers, node_id
        ),
    )


async def _start_http(server: Server, metrics: MetricsPage, stack: AsyncExitStack) -> None:
    node, listen = server.node, server.configured.http.listen
    gateway = Gateway(
        node.metadata.registry,
        server.grpc_loop,
        server.configured.id,
        server.certificates,
        reach=node.metadata.reach,
        requires_token=node.access.enabled,
        secret=server.config.credential.encode(),
    )
    stack.push_async_callback(gateway.close)
    pages = Pages(partial(not_to_be_relied_on, server), metrics, partial(notes, server))
    routes = [*pages.routes(), *api_routes(gateway), *console.routes()]
    hosts = None if node.access.enabled else OwnHosts(own_names(server.config))
    cors = Cors(server.config.http.cors_origins)
    http = HttpServer(routes, node.access, server.certificates, server.refused, hosts, cors)
    await _listen(http.start(*split_address(listen)), listen)
    stack.push_async_callback(http.stop)


def own_names(config: Config) -> Iterator[str]:
    """The hosts by which clients reach the cluster's nodes."""
    for each in config.nodes:
        yield each.host
        for endpoint in (each.grpc, each.data, each.http):
            yield split_address(endpoint.advertise)[0]


async def _listen(starting: Awaitable[None], address: str) -> None:
    """Listen on a port. Raises CannotListenError with the same sentence for every port."""
    try:
        await starting
    except OSError as error:
        # Python adds the address in its own spelling; gRPC gives no reason.
        reason = (error.strerror or "perhaps it is in use").partition(" (")[0]
        raise CannotListenError(f"cannot listen on {address}: {reason}") from error
