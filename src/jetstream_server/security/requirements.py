"""The rights that each request needs: a table for RPCs, one for data-plane frames, and one for the
paths of HTTP.

While security is on, a request that is not in its table is refused. A test fails if a served RPC,
frame or path has no entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from jetstream_protocol.frames import Kind
from jetstream_server.security.acl import Operation


class Scope(Enum):
    """Which callers are allowed, or what the operation is on."""

    PUBLIC = auto()
    """Every caller, identified or not."""
    AUTHENTICATED = auto()
    """Every principal. The answer contains only what the principal may know."""
    NODE = auto()
    """Only nodes of this cluster."""
    CLUSTER = auto()
    STREAM = auto()
    """The stream that the request names."""
    NEW_STREAM = auto()
    """The stream that the request would create: its name, that of its group, and its subject. Who
    joins or shadows what has one of these names needs the right to that, too."""
    EACH = auto()
    """Each stream that the request names. A refused one gets its own error."""
    RPCS = auto()
    """The rights of the RPCs that answer it, which are called in the caller's name."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """operation: on what `scope` says. nodes: the cluster's own nodes may call it too. again: check
    again before each answer, which may come long after the request. changes: it changes the
    cluster's state, and is noted in the audit log."""

    scope: Scope
    operation: Operation | None = None
    nodes: bool = False
    again: bool = False
    changes: bool = False


PUBLIC = Requirement(Scope.PUBLIC)
AUTHENTICATED = Requirement(Scope.AUTHENTICATED)
BETWEEN_NODES = Requirement(Scope.NODE)
BY_RPCS = Requirement(Scope.RPCS)


def _stream(
    operation: Operation, *, nodes: bool = False, again: bool = False, changes: bool = False
) -> Requirement:
    return Requirement(Scope.STREAM, operation, nodes, again, changes)


def _cluster(operation: Operation, *, changes: bool = False) -> Requirement:
    return Requirement(Scope.CLUSTER, operation, changes=changes)


RPCS: dict[str, Requirement] = {
    "/jetstream.v1.Streams/CreateStream": Requirement(
        Scope.NEW_STREAM, Operation.CREATE, nodes=True, changes=True
    ),
    "/jetstream.v1.Streams/DescribeStream": _stream(Operation.DESCRIBE, nodes=True),
    "/jetstream.v1.Streams/ListStreams": AUTHENTICATED,
    "/jetstream.v1.Streams/DeleteStream": _stream(Operation.DELETE, changes=True),
    "/jetstream.v1.Streams/AlterStream": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Streams/PurgeStream": _stream(Operation.PURGE, changes=True),
    "/jetstream.v1.Streams/RestoreBatches": _stream(Operation.ALTER, changes=True),
    # Checked by the service: the right to the subject is enough, as on the data plane.
    "/jetstream.v1.Streams/ProduceBatch": AUTHENTICATED,
    "/jetstream.v1.Streams/SetStreamReadonly": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Streams/PauseStream": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Streams/ResumeStream": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Streams/SetSchema": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Streams/DescribeSchema": _stream(Operation.DESCRIBE),
    # The table has the stream's records.
    "/jetstream.v1.Streams/DescribeLake": _stream(Operation.READ),
    # The table may hold the records of any stream.
    "/jetstream.v1.Streams/AdoptLake": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Streams/SweepLake": _stream(Operation.ALTER, changes=True),
    "/jetstream.v1.Reads/Fetch": _stream(Operation.READ, nodes=True, again=True),
    "/jetstream.v1.Reads/Consume": _stream(Operation.READ, again=True),
    "/jetstream.v1.Reads/ListOffsets": Requirement(Scope.EACH, Operation.READ, nodes=True),
    "/jetstream.v1.Reads/ListSubjects": _stream(Operation.READ, nodes=True),
    "/jetstream.v1.Cluster/DescribeCluster": Requirement(Scope.AUTHENTICATED, nodes=True),
    "/jetstream.v1.Cluster/TransferLeader": _stream(Operation.ALTER, nodes=True, changes=True),
    "/jetstream.v1.Cluster/ElectLeader": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/DescribeReplica": _stream(Operation.DESCRIBE, nodes=True),
    "/jetstream.v1.Cluster/DigestReplica": _stream(Operation.READ, again=True),
    "/jetstream.v1.Cluster/DigestKeys": _stream(Operation.READ, again=True),
    "/jetstream.v1.Cluster/DebugNode": Requirement(
        Scope.CLUSTER, Operation.CLUSTER_ALTER, nodes=True
    ),
    # Checked by the service: by what the history is of.
    "/jetstream.v1.Cluster/DescribeHistory": Requirement(Scope.AUTHENTICATED, nodes=True),
    "/jetstream.v1.Cluster/RecordActivity": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/DrainNode": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/ReassignStream": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/PlanReassignment": _cluster(Operation.CLUSTER_ALTER),
    "/jetstream.v1.Cluster/AlterCluster": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/RemoveNode": _cluster(Operation.CLUSTER_ALTER, changes=True),
    "/jetstream.v1.Cluster/ListVoters": Requirement(Scope.AUTHENTICATED, nodes=True),
    "/jetstream.v1.Cluster/ChangeVoters": Requirement(
        Scope.CLUSTER, Operation.CLUSTER_ALTER, nodes=True, changes=True
    ),
    "/jetstream.v1.Cluster/PrepareHandOver": BETWEEN_NODES,
    "/jetstream.v1.Cluster/StandBy": BETWEEN_NODES,
    "/jetstream.v1.Cluster/CancelStandBy": BETWEEN_NODES,
    # Cursors and consumer groups: `commit` for their name, and `read` on each of their streams.
    "/jetstream.v1.Cursors/CommitCursors": Requirement(Scope.EACH, Operation.COMMIT, nodes=True),
    "/jetstream.v1.Cursors/ListCursors": Requirement(Scope.AUTHENTICATED, nodes=True),
    "/jetstream.v1.Cursors/DeleteCursor": Requirement(
        Scope.EACH, Operation.COMMIT, nodes=True, changes=True
    ),
    "/jetstream.v1.Groups/GroupHeartbeat": Requirement(Scope.EACH, Operation.COMMIT, nodes=True),
    "/jetstream.v1.Groups/LeaveGroup": Requirement(Scope.EACH, Operation.COMMIT, nodes=True),
    "/jetstream.v1.Groups/DeleteGroup": Requirement(
        Scope.EACH, Operation.COMMIT, nodes=True, changes=True
    ),
    "/jetstream.v1.Groups/ListGroups": Requirement(Scope.AUTHENTICATED, nodes=True),
    # The service checks `commit` for the name of a durable consumer, as for a cursor.
    "/jetstream.v1.Consumers/CreateConsumer": _stream(Operation.READ, changes=True),
    "/jetstream.v1.Consumers/DescribeConsumer": _stream(Operation.DESCRIBE),
    # Checked by the service: the answer has only what the caller may describe.
    "/jetstream.v1.Consumers/ListConsumers": AUTHENTICATED,
    "/jetstream.v1.Consumers/DeleteConsumer": _stream(Operation.READ, changes=True),
    "/jetstream.v1.Consumers/PauseConsumer": _stream(Operation.READ, changes=True),
    "/jetstream.v1.Consumers/PullMessages": _stream(Operation.READ, again=True),
    "/jetstream.v1.Consumers/AcknowledgeMessages": _stream(Operation.READ),
    # A node asks for a NATS client, whose rights it has checked.
    "/jetstream.v1.Consumers/AskConsumers": BETWEEN_NODES,
    "/jetstream.v1.Consumers/LoadConsumers": BETWEEN_NODES,
    "/jetstream.v1.Consumers/StoreConsumers": BETWEEN_NODES,
    "/jetstream.v1.Security/CreateToken": _cluster(Operation.SECURITY_ALTER, changes=True),
    "/jetstream.v1.Security/ListTokens": _cluster(Operation.SECURITY_ALTER),
    "/jetstream.v1.Security/RevokeToken": _cluster(Operation.SECURITY_ALTER, changes=True),
    "/jetstream.v1.Security/AddAcl": _cluster(Operation.SECURITY_ALTER, changes=True),
    "/jetstream.v1.Security/ListAcls": _cluster(Operation.SECURITY_ALTER),
    "/jetstream.v1.Security/RemoveAcl": _cluster(Operation.SECURITY_ALTER, changes=True),
    # Every principal may test its own rights; testing others' rights needs security_alter.
    "/jetstream.v1.Security/TestAcl": AUTHENTICATED,
    # For an operator with the cluster's credential on the machine: see access_control.py.
    "/jetstream.v1.Security/Bootstrap": Requirement(Scope.NODE, changes=True),
    # Probes have no token. They learn that the process runs, and the content of the public .proto.
    "/grpc.health.v1.Health/Check": PUBLIC,
    "/grpc.health.v1.Health/List": PUBLIC,
    "/grpc.health.v1.Health/Watch": PUBLIC,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": PUBLIC,
}

FRAMES: dict[int, Requirement] = {
    Kind.HELLO: PUBLIC,
    Kind.FETCH: _stream(Operation.READ, nodes=True, again=True),
    Kind.FOLLOW: _stream(Operation.READ, again=True),
    Kind.CREDIT: AUTHENTICATED,  # It changes only a follow of the same connection.
    Kind.PRODUCE: _stream(Operation.WRITE),
    Kind.NODE_HELLO: BETWEEN_NODES,
    Kind.POSITIONS: BETWEEN_NODES,
    Kind.FIXED_POSITIONS: BETWEEN_NODES,
}
"""By kind: frames that a server accepts. It only sends the others."""

PATHS: dict[str, Requirement] = {
    "/healthz": PUBLIC,
    "/readyz": PUBLIC,
    "/metrics": _cluster(Operation.CLUSTER_DESCRIBE),
    # The console's files. They contain no data.
    "/": PUBLIC,
    "/console.css": PUBLIC,
    "/base.js": PUBLIC,
    "/history.js": PUBLIC,
    "/changes.js": PUBLIC,
    "/cluster.js": PUBLIC,
    "/streams.js": PUBLIC,
    "/messages.js": PUBLIC,
    "/consumers.js": PUBLIC,
    "/sql.js": PUBLIC,
    "/access.js": PUBLIC,
    "/console.js": PUBLIC,
    "/settings.js": PUBLIC,
    "/icon.svg": PUBLIC,
    "/api/v1/cluster": BY_RPCS,
    "/api/v1/streams": BY_RPCS,
    "/api/v1/streams/{stream}/schema": BY_RPCS,
    "/api/v1/streams/{stream}/alter": BY_RPCS,
    "/api/v1/streams/{stream}/transfer-leader": BY_RPCS,
    "/api/v1/streams/{stream}/reassign": BY_RPCS,
    "/api/v1/nodes/{node}/drain": BY_RPCS,
    "/api/v1/groups": BY_RPCS,
    "/api/v1/consumers": BY_RPCS,
    "/api/v1/history": BY_RPCS,
    "/api/v1/access": BY_RPCS,
    "/api/v1/access/rules": BY_RPCS,
    "/api/v1/access/rules/{rule}/remove": BY_RPCS,
    "/api/v1/access/tokens": BY_RPCS,
    "/api/v1/access/tokens/{token}/revoke": BY_RPCS,
    "/jsz": BY_RPCS,
    "/iceberg/v1/config": BY_RPCS,
    "/iceberg/v1/namespaces": BY_RPCS,
    "/iceberg/v1/namespaces/{namespace}": BY_RPCS,
    "/iceberg/v1/namespaces/{namespace}/tables": BY_RPCS,
    "/iceberg/v1/namespaces/{namespace}/tables/{table}": BY_RPCS,
    "/v1/openapi.json": PUBLIC,
    "/v1/cluster": BY_RPCS,
    "/v1/streams": BY_RPCS,
    "/v1/streams/{stream}": BY_RPCS,
    "/v1/streams/{stream}/records": BY_RPCS,
    "/v1/streams/{stream}/cursors": BY_RPCS,
    "/v1/streams/{stream}/cursors/{cursor}": BY_RPCS,
    "/v1/cursors": BY_RPCS,
}
