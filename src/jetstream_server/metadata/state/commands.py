"""The commands of the metadata state machine: what a proposer asks for and a decision is given.

Invariant: a command says everything that its decision needs, time and ids included, so that every
node decides alike (registry.py). The decisions are in stream_commands.py, leadership_commands.py,
node_commands.py and security_commands.py; JSON, and how fields are declared, in command_json.py.
What may be missing from a command has a default.

Names that several commands share. stream_epoch: the command is refused (precondition_failed) unless
the stream is at that epoch; None: at any. leader_epoch: refused for an older one (fenced_epoch) or
a newer one (unknown_epoch). node_incarnation: refused for another one (fenced_epoch). Every command
about a stream may end as stream_not_found, about a node as not_found; wrong fields are
invalid_request. Results of a change to a stream: stream_id, leader, leader_epoch, stream_epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jetstream_protocol.types import BootUs, LeaderEpoch, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.command_json import ALWAYS_WRITTEN, Command, since
from jetstream_server.metadata.state.model import Addresses, FeatureLevel, RequestedSettings

FEATURE_LEVEL_MAX = FeatureLevel(2)
"""The newest feature level this software understands (docs/replication.md, "Feature levels")."""

# What streams there are (stream_commands.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream(Command):
    """Create a stream on the nodes `replicas`.

    config: only what the user set. Those settings must fit a stream that exists already (then
    nothing is created); a new one gets the defaults for the rest. allow_same_name: also beside a
    stream of that name on another subject. internal: a stream of the server's own, such as
    `__cursors`: it has no subject, and nobody else may create, alter, purge or delete it.
    partition, partitions: see StreamMetadata; a stream that exists keeps its `partitions`.
    creator: the principal that asks, "" for none; streams_max: how many streams it may have
    created that exist, 0: any number. Result: stream_id, created. Errors: stream_exists;
    quota_exceeded; unavailable while too few nodes are alive.
    """

    op: ClassVar[str] = "create_stream"
    name: str
    subject: str
    group: str = field(default="", metadata=ALWAYS_WRITTEN)
    config: RequestedSettings = field(default_factory=dict, metadata=ALWAYS_WRITTEN)
    replicas: tuple[NodeId, ...]
    created_at_us: WallUs
    allow_same_name: bool = field(default=True, metadata=ALWAYS_WRITTEN)
    internal: bool = field(default=False, metadata=since(2))
    creator: str = field(default="", metadata=since(2))
    streams_max: int = field(default=0, metadata=since(2))
    partition: int = field(default=0, metadata=since(2))
    partitions: int = field(default=0, metadata=since(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream(Command):
    """Delete a stream. Result: stream_id."""

    op: ClassVar[str] = "delete_stream"
    stream_id: StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStream(Command):
    """Change any settings of a stream but the number of replicas.

    A new minimum clears the ELR: its members were eligible under the old one only. Flush turned
    to "group" earns restart trust once every replica has confirmed a full flush (ConfirmFlush).
    """

    op: ClassVar[str] = "alter_stream"
    stream_id: StreamId
    stream_epoch: int
    config: RequestedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmFlush(Command):
    """The replica has flushed its whole log since `flush` became "group".

    The stream epoch tells a late copy that speaks of an earlier such time.
    """

    op: ClassVar[str] = "confirm_flush"
    stream_id: StreamId
    node_id: NodeId
    stream_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeStream(Command):
    """The leader of that epoch is to purge what is below `offset`, all of which is committed.

    Nobody but the leader of now can know that: another leader epoch is precondition_failed. A later
    leader's word counts also for a lower offset: it has done what was told before.
    """

    op: ClassVar[str] = "purge_stream"
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStreamAccess(Command):
    """Whether a stream takes records. readonly: its leader refuses them. paused: its leader does
    not listen to its subject. None leaves that as it is.
    """

    op: ClassVar[str] = "set_stream_access"
    level: ClassVar[int] = 2
    stream_id: StreamId
    readonly: bool | None = None
    paused: bool | None = None


# Which nodes hold a stream (reassignment_commands.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignStream(Command):
    """Move a stream to the nodes `replicas`. The stream is on the old and the new ones until the
    new ones are in sync (FinishReassignment). Another command replaces one that is under way; the
    old replicas cancel it.

    Errors: invalid_request for a node that is not part of the cluster, or fewer replicas than the
    stream's min_insync_replicas.
    """

    op: ClassVar[str] = "reassign_stream"
    level: ClassVar[int] = 2
    stream_id: StreamId
    replicas: tuple[NodeId, ...]
    stream_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReassignment(Command):
    """Take the replicas away that are not in the target. Errors: precondition_failed unless every
    replica of the target is in sync and one of them leads."""

    op: ClassVar[str] = "finish_reassignment"
    level: ClassVar[int] = 2
    stream_id: StreamId
    stream_epoch: int


# Who leads a stream and who is in sync (leadership_commands.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIsr(Command):
    """The ISR that the stream's leader proposes. incarnations: one for each member, in that order.

    A member that is fenced, draining (when it joins), unknown or in another incarnation makes it
    invalid_request: the leader must revert, not retry.
    """

    op: ClassVar[str] = "change_isr"
    stream_id: StreamId
    leader: NodeId
    leader_epoch: LeaderEpoch
    stream_epoch: int
    isr: tuple[NodeId, ...]
    incarnations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLeader(Command):
    """Hand the leadership to that ISR member. Errors: precondition_failed if it cannot lead now."""

    op: ClassVar[str] = "transfer_leader"
    stream_id: StreamId
    leader: NodeId
    stream_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeader(Command):
    """Elect a replica although ISR and ELR are empty. Records may be lost: it counts as lossy.

    The controller may once every replica of the last ISR and ELR (`last_known`) has registered
    and told its log's end, choosing the highest (last epoch, log end); `incarnations` are those
    under which they told, in that order, for another power failure makes what they told untrue.
    An operator may (`force`) whenever nobody leads; `incarnations` is then that of the leader.
    Errors: precondition_failed if there is another way; unavailable if a replica is to wait for.
    """

    op: ClassVar[str] = "elect_leader"
    stream_id: StreamId
    leader: NodeId
    force: bool = False
    incarnations: tuple[int, ...] = ()
    stream_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistrustReplica(Command):
    """The node does not believe its own replica any more: a failed flush, or corruption, found at
    run time. As if the node had come back without what it held of this stream.

    It leaves ISR and ELR, and its leadership of the stream ends. Another incarnation, or an
    unknown node, is fenced_epoch.
    """

    op: ClassVar[str] = "distrust_replica"
    stream_id: StreamId
    node_id: NodeId
    node_incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLeader(Command):
    """The reporter cannot fetch from the leader. now_us: by the controller's clock.

    Once a majority of the ISR without the leader has said so within REPORT_PERIOD_US, another
    member is elected in the same entry, and the leader leaves the ISR if enough others are in it.
    Result: deposed. Errors: precondition_failed for a reporter that does not follow in sync.
    """

    op: ClassVar[str] = "report_leader"
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    reporter: NodeId
    now_us: BootUs


# Nodes and the cluster (node_commands.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(Command):
    """A process says once per run that it is there. Whatever its node led ends here, it leaves
    every ISR, and it is alive.

    session: the run's random token; repeating one changes nothing. replaces: the session the
    process has seen registered for its node, "" for none; if it is another by now, the command is a
    late copy of a run that is over, and refused (precondition_failed). trusted: the node's logs
    are known to hold all they held; distrusted: streams whose replica it does not believe all
    the same. feature_level_max: the newest level its software understands; one below the cluster's
    is precondition_failed. Result: incarnation, which is the revision.
    """

    op: ClassVar[str] = "register_node"
    session: str
    node_id: NodeId
    rack: str = field(default="", metadata=ALWAYS_WRITTEN)
    addresses: Addresses
    replaces: str | None = None
    trusted: bool = field(default=True, metadata=ALWAYS_WRITTEN)
    distrusted: tuple[StreamId, ...] = field(default=(), metadata=ALWAYS_WRITTEN)
    feature_level_max: FeatureLevel = field(default=FeatureLevel(1), metadata=ALWAYS_WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNode(Command):
    """The node's session lapsed. It leaves every ISR and leads nothing."""

    op: ClassVar[str] = "fence_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceNode(Command):
    """The node is heard again, and elected where nobody leads and it may."""

    op: ClassVar[str] = "unfence_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode(Command):
    """Others are to lead in the node's place; `draining` False ends that, None is True.

    A node that stops says so of its run, and its next one begins without. until_undone: an
    operator's mark, which stays. What the node leads is handed over by commands of their own
    (TransferLeader).
    """

    op: ClassVar[str] = "drain_node"
    node_id: NodeId
    node_incarnation: int | None = None
    draining: bool | None = None
    until_undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode(Command):
    """Forget a node. Errors: precondition_failed unless it is fenced and holds no replicas."""

    op: ClassVar[str] = "remove_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimController(Command):
    """The node is the metadata leader and decides from now on. Result: epoch, the claim's."""

    op: ClassVar[str] = "claim_controller"
    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCluster(Command):
    """Change what holds for the whole cluster; None leaves a setting as it is.

    Errors: precondition_failed for another cluster_id, a lower feature_level or one that some
    node does not understand, and recoveries that do not continue the known ones.
    """

    op: ClassVar[str] = "set_cluster"
    cluster_id: str | None = None
    ack_subjects: tuple[str, ...] | None = None
    feature_level: FeatureLevel | None = None
    recoveries: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Command):
    """Change nothing; but once it has applied, everything committed before it has."""

    op: ClassVar[str] = "barrier"


# Who may do what (security_commands.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken(Command):
    """Make a token known by its slow hash. expires_at_us: 0 is never.

    Errors: precondition_failed for an id that is taken, and beyond TOKENS_MAX.
    """

    op: ClassVar[str] = "create_token"
    level: ClassVar[int] = 2
    token_id: str
    principal: str
    hash: str = field(repr=False)
    created_at_us: WallUs
    expires_at_us: WallUs = WallUs(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken(Command):
    """Forget a token. Errors: not_found."""

    op: ClassVar[str] = "revoke_token"
    level: ClassVar[int] = 2
    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAcl(Command):
    """Add a rule. One that says the same as another is that one.

    stream, subject: patterns; both "" in a rule for the cluster. Result: id, which is the revision;
    created. Errors: precondition_failed beyond RULES_MAX.
    """

    op: ClassVar[str] = "add_acl"
    level: ClassVar[int] = 2
    principal: str
    operations: tuple[str, ...]
    allow: bool
    stream: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAcl(Command):
    """Remove a rule. Errors: not_found."""

    op: ClassVar[str] = "remove_acl"
    level: ClassVar[int] = 2
    rule_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSecurity(Command):
    """Make the first administrator: a token, and rules that allow its principal everything.

    Errors: precondition_failed once a rule lets somebody change tokens and rules.
    """

    op: ClassVar[str] = "bootstrap_security"
    level: ClassVar[int] = 2
    token_id: str
    principal: str
    hash: str = field(repr=False)
    created_at_us: WallUs
    expires_at_us: WallUs = WallUs(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimActivity(Command):
    """Forget the events up to the number `through`: they are in the stream of activity,
    committed."""

    op: ClassVar[str] = "trim_activity"
    level: ClassVar[int] = 2
    through: int
