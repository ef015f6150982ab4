"""Whatever is served has a rule that says who may ask for it, and nothing else has one."""

from __future__ import annotations

from typing import cast

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2, consumers_pb2, cursors_pb2, groups_pb2
from jetstream_protocol.services import SERVICES
from jetstream_server.security.acl import CLUSTER_OPERATIONS, STREAM_OPERATIONS
from jetstream_server.security.requirements import FRAMES, PATHS, RPCS, Scope
from jetstream_server.serving.grpc.cluster_service import ClusterService
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from jetstream_server.serving.grpc.cursors_service import CursorsService
from jetstream_server.serving.grpc.groups_service import GroupsService
from jetstream_server.serving.grpc.reads_service import ReadsService
from jetstream_server.serving.grpc.security_service import SecurityService
from jetstream_server.serving.grpc.server import service_names
from jetstream_server.serving.grpc.streams_service import StreamsService
from jetstream_server.serving.http import console, openapi
from jetstream_server.serving.http.api_routes import api_routes
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.pages import Pages
from jetstream_server.serving.http.server import API_PREFIXES
from jetstream_server.serving.metrics.page import MetricsPage

SENT_BY_SERVERS = {
    Kind.HELLO_REPLY, Kind.FETCH_REPLY, Kind.NODE_HELLO_REPLY, Kind.RECORDS, Kind.PRODUCE_REPLY,
    Kind.FIXED_RECORDS, Kind.FOLLOWED,
}  # fmt: skip


def test_every_rpc_has_a_rule() -> None:
    files = (api_pb2, consumers_pb2, cursors_pb2, groups_pb2, health_pb2, reflection_pb2)
    services = [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]
    methods = {
        f"/{service.full_name}/{each.name}" for service in services for each in service.methods
    }
    # Older versions of the health service have no List.
    assert methods | {"/grpc.health.v1.Health/List"} == set(RPCS)


def test_every_service_of_ours_is_guarded() -> None:
    files = (api_pb2, consumers_pb2, cursors_pb2, groups_pb2)
    services = [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]
    declared = [each.full_name for each in services]
    assert sorted(service_names()) == sorted(declared)


def test_every_method_is_answered_by_its_service() -> None:
    services = (
        StreamsService, ReadsService, ClusterService, CursorsService, GroupsService,
        ConsumersService, SecurityService,
    )  # fmt: skip
    by_name = {each.__name__.removesuffix("Service"): each for each in services}
    assert by_name.keys() == SERVICES.keys()
    for name, methods in SERVICES.items():
        assert {method for method in methods if not hasattr(by_name[name], method)} == set()


def test_every_frame_that_a_server_takes_has_a_rule() -> None:
    assert set(FRAMES) == set(Kind) - SENT_BY_SERVERS


def test_every_http_path_has_a_rule() -> None:
    routes = api_routes(cast(Gateway, None))
    apis = [route for route in routes if route.path != openapi.PATH]
    files = [*console.routes(), *(route for route in routes if route.path == openapi.PATH)]
    served = [*Pages(list, cast(MetricsPage, None)).routes(), *files, *apis]
    assert {route.path for route in served} == set(PATHS)
    assert {PATHS[route.path].scope for route in apis} == {Scope.RPCS}
    assert {path for path in PATHS if PATHS[path].scope is Scope.RPCS} == {
        route.path for route in apis
    }
    assert all(route.path.startswith(API_PREFIXES) for route in apis)
    assert all(route.method == "GET" for route in files)
    assert {rule.scope for rule in PATHS.values()} == {Scope.PUBLIC, Scope.CLUSTER, Scope.RPCS}


def test_a_rule_on_streams_has_an_operation_on_streams_and_one_on_the_cluster_has_not() -> None:
    for name, requirement in {**RPCS, **FRAMES, **PATHS}.items():
        if requirement.scope is Scope.CLUSTER:
            assert requirement.operation in CLUSTER_OPERATIONS, name
        elif requirement.scope in (Scope.STREAM, Scope.NEW_STREAM, Scope.EACH):
            assert requirement.operation in STREAM_OPERATIONS, name
        else:
            assert requirement.operation is None, name


def test_nothing_but_probes_files_and_the_greeting_is_open_to_strangers() -> None:
    tables = {**RPCS, **FRAMES, **PATHS}
    files = {route.path for route in console.routes()}
    public = {name for name, each in tables.items() if each.scope is Scope.PUBLIC}
    assert public == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        Kind.HELLO,
        "/healthz",
        "/readyz",
        openapi.PATH,
        *files,
    }


def test_what_needs_no_right_and_what_nodes_may_ask_for_is_said_twice() -> None:
    """Other tests take the table for what is meant: a rule that was loosened by mistake would pass
    them."""

    def names(text: str) -> set[str]:
        return {f"/jetstream.v1.{each}" for each in text.split()}

    ours = {name: rule for name, rule in RPCS.items() if name.startswith("/jetstream.v1.")}
    of_scope = {scope: {n for n, rule in ours.items() if rule.scope is scope} for scope in Scope}
    assert not of_scope[Scope.PUBLIC]
    assert of_scope[Scope.NODE] == names(
        "Cluster/PrepareHandOver Cluster/StandBy Cluster/CancelStandBy Consumers/AskConsumers "
        "Consumers/LoadConsumers Consumers/StoreConsumers Security/Bootstrap"
    )
    # Their services decide.
    assert of_scope[Scope.AUTHENTICATED] == names(
        "Streams/ListStreams Streams/ProduceBatch Cluster/DescribeCluster Cluster/DescribeHistory "
        "Cluster/ListVoters Cursors/ListCursors Groups/ListGroups Consumers/ListConsumers "
        "Security/TestAcl"
    )
    assert of_scope[Scope.CLUSTER] == names(
        "Streams/AdoptLake Cluster/ElectLeader Cluster/DebugNode Cluster/RecordActivity "
        "Cluster/DrainNode Cluster/ReassignStream Cluster/PlanReassignment Cluster/AlterCluster "
        "Cluster/RemoveNode Cluster/ChangeVoters Security/CreateToken Security/ListTokens "
        "Security/RevokeToken Security/AddAcl Security/ListAcls Security/RemoveAcl"
    )
    assert {name for name, rule in ours.items() if rule.nodes} == names(
        "Streams/CreateStream Streams/DescribeStream Reads/Fetch Reads/ListOffsets "
        "Reads/ListSubjects Cluster/DescribeCluster Cluster/TransferLeader Cluster/DescribeReplica "
        "Cluster/DebugNode Cluster/DescribeHistory Cluster/ListVoters Cluster/ChangeVoters "
        "Cursors/CommitCursors Cursors/ListCursors Cursors/DeleteCursor Groups/GroupHeartbeat "
        "Groups/LeaveGroup Groups/DeleteGroup Groups/ListGroups"
    )
