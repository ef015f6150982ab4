"""The commands of the metadata state machine: what a proposer may ask for.

Invariant: a command contains everything that its decision needs, time and ids included, so that
every node decides alike (registry.py). The decisions are in the files *_decisions.py.
command_json.py defines the JSON and how fields are declared. A field that may be missing has a
default.

Names that several commands share. stream_epoch: the command is refused (precondition_failed) unless
the stream is at that epoch; None: at any. leader_epoch: refused for an older one (fenced_epoch) or
a newer one (unknown_epoch). node_incarnation: refused for another one (fenced_epoch). Every command
about a stream may fail with stream_not_found, about a node with not_found, and for wrong fields
with invalid_request. Result of a change to a stream: stream_id, leader, leader_epoch, stream_epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jetstream_protocol.schema import TEXT_LENGTH_MAX
from jetstream_protocol.types import BootUs, LeaderEpoch, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.cluster import COPY_LIMIT_LEVEL
from jetstream_server.metadata.state.command_json import ALWAYS_WRITTEN, Command, since, text_of
from jetstream_server.metadata.state.nodes import Addresses, FeatureLevel
from jetstream_server.metadata.state.streams import RequestedSettings

FEATURE_LEVEL_MAX = FeatureLevel(6)
"""The newest feature level this software understands (docs/replication.md, "Feature levels")."""
VOTERS_LEVEL = FeatureLevel(4)
"""From this level on the group's log may name its voters (metadata/raft/voters.py)."""
CURSOR_EVENTS_LEVEL = FeatureLevel(5)
"""From this level on the stream of activity tells of cursors (NoteCursors)."""
RECOVERY_LEVEL = FeatureLevel(5)
"""From this level on a recovery skips numbers of events, and more epochs and revisions than before
(node_decisions.py, registry.py)."""
REPLICA_EVENTS_LEVEL = FeatureLevel(5)
"""From this level on `replicas` of an event are nodes, and not their number (activity.py)."""
ANY_REPLICA_LEVEL = FeatureLevel(5)
"""From this level on a replica outside `last_known` may be elected uncleanly (ElectLeader)."""
NAMES_LEVEL = FeatureLevel(6)
"""From this level on the metadata decides whether a name was taken meanwhile (CreateStream)."""
QUICK_HASH_LEVEL = FeatureLevel(6)
"""From this level on, nodes verify tokens whose hash is quick (security/token_text.py)."""
ACK_CLUSTER_LEVEL = FeatureLevel(6)
"""From this level on every node names its cluster in its acks (ListStreams)."""
COMMIT_LEVEL = FeatureLevel(6)
WRITE_LEVEL = FeatureLevel(6)
"""From this level on `commit` is a separate right (SetCluster, AddAcl)."""
CONSUMERS_LEVEL = FeatureLevel(6)
"""From this level on durable consumers are kept in `__cursors` (ConsumerStates)."""
LAG_LIMIT_LEVEL = FeatureLevel(6)
"""From this level on the cluster has a limit on the lag of replicas in sync."""
LAKE_LEVEL = FeatureLevel(6)
"""From this level on records may be in the lake (CommitLake)."""
NEW_MINIMUM_LEVEL = FeatureLevel(6)
"""From this level on a new minimum clears the ELR only if the ISR reaches it (AlterStream)."""

MADE_AT_LEVEL = FeatureLevel(6)
"""From this level on a command may say when it was sent (last_changes.py)."""
SCHEMA_LEVEL = FeatureLevel(6)
"""From this level on a stream may have a schema (SetSchema)."""
DISK_LEVEL = FeatureLevel(6)
"""From this level on nodes tell whether their disk is full (NoteDisk)."""

# Which streams exist (stream_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream(Command):
    """Create a stream on the nodes `replicas`, and copies of it on the nodes `observers`.

    config: only the settings that the user gave. They must fit a stream that exists already
    (nothing is created then); a new one gets the defaults for the rest. allow_same_name: create it
    even if a stream of that name exists on another subject. internal: a stream of the server's own,
    such as `__cursors`: it has no subject, and no user may create, alter, purge or delete it.
    partition, partitions: see StreamMetadata; a stream that exists keeps its `partitions`.
    creator: the calling principal, "" for none; streams_max: how many existing streams it may have
    created, 0: any number. names_at: the revision at which the creator had the right to share its
    name, and that of its group, with all that had them; 0: it needs no right. Result: stream_id,
    created. Errors: stream_exists; quota_exceeded; precondition_failed if somebody else has taken
    one of the names since names_at; unavailable while too few nodes are alive.
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
    observers: tuple[NodeId, ...] = field(default=(), metadata=since(3))
    names_at: int = field(default=0, metadata=since(NAMES_LEVEL))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream(Command):
    """Delete a stream. Result: stream_id."""

    op: ClassVar[str] = "delete_stream"
    stream_id: StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStream(Command):
    """Change any settings of a stream but the numbers of replicas and observers. Of the server's
    own streams only min_insync_replicas can be changed.

    A new minimum that the ISR reaches clears the ELR: more can be committed without its members
    now. (Below NEW_MINIMUM_LEVEL any new minimum does.) After `flush` becomes "group", restart
    trust holds once every replica has confirmed a full flush (ConfirmFlush).
    """

    op: ClassVar[str] = "alter_stream"
    stream_id: StreamId
    stream_epoch: int
    config: RequestedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmFlush(Command):
    """Note that the replica has flushed its whole log since `flush` became "group".

    The stream epoch distinguishes a late copy, which is about an earlier time.
    """

    op: ClassVar[str] = "confirm_flush"
    stream_id: StreamId
    node_id: NodeId
    stream_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeStream(Command):
    """Purge the records below `offset`, all of which are committed, as the leader of that epoch.

    Only the current leader can know that they are: another leader epoch is precondition_failed. A
    later leader may purge to a lower offset: it has applied the earlier purges.
    """

    op: ClassVar[str] = "purge_stream"
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStreamAccess(Command):
    """Change whether a stream takes records. readonly: its leader refuses them. paused: its leader
    does not listen to its subject. None leaves a setting unchanged.
    """

    op: ClassVar[str] = "set_stream_access"
    level: ClassVar[int] = 2
    stream_id: StreamId
    readonly: bool | None = None
    paused: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSchema(Command):
    """Set the schema of a stream's values, as its next version; "": it has none from then on.

    schema_version: the last version; another one is precondition_failed. Setting the schema that it
    has changes nothing. Result: schema_version. Errors: invalid_request for a text that is no
    schema, and for a change that programs which use the last version may not survive.
    """

    op: ClassVar[str] = "set_schema"
    level: ClassVar[int] = SCHEMA_LEVEL
    stream_id: StreamId
    schema: str = field(metadata=text_of(TEXT_LENGTH_MAX))
    schema_version: int


# Which records the lake holds (lake_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLake(Command):
    """Note that the lake holds the records of [begin, end) too, as the leader of that epoch; or, if
    `begin` is `end`, that its table was made anew without what is before `start`.

    **safety** A compare-and-set: expected_location and version must be those of the mark, and
    `begin` its end (while it holds no record, any offset from there on). last_epoch: of the record
    before `end`. location: of the table's metadata that names the new objects as well. The leader
    vouches that all these records are committed, flushed, and in the store. start: the lake begins
    there, or later. Repeating it changes nothing.

    Result: start, end and version of the mark. Errors: fenced_epoch and unknown_epoch;
    precondition_failed for another mark, and for a stream without `lake`; invalid_request.
    """

    op: ClassVar[str] = "commit_lake"
    level: ClassVar[int] = LAKE_LEVEL
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    expected_location: str
    version: int
    begin: int
    end: int
    last_epoch: LeaderEpoch
    location: str
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptLake(Command):
    """Note that the lake holds the records [start, end) of a new stream, in a table that another
    cluster has made. last_epoch: of the record before `end`. location: of the table's metadata.

    The stream must be `restoring`, so that nobody publishes to it, and have nothing in the lake.
    Its next leadership begins, in an epoch after last_epoch. Repeating it changes nothing.

    Result: start, end and version of the mark. Errors: fenced_epoch and unknown_epoch;
    precondition_failed for another stream; invalid_request.
    """

    op: ClassVar[str] = "adopt_lake"
    level: ClassVar[int] = LAKE_LEVEL
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    start: int
    end: int
    last_epoch: LeaderEpoch
    location: str


# Which nodes hold a stream (reassignment_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignStream(Command):
    """Move a stream to the nodes `replicas`, and its observers to the nodes `observers`.

    The stream is on the old and the new nodes until the new ones are in sync (FinishReassignment).
    Another command replaces one that is under way; naming the old replicas cancels it.

    observers: None: they stay, except those that are named as replicas, which are promoted. A
    change of observers takes effect at once, except that a replica that becomes an observer is a
    replica until the stream has moved.

    Errors: invalid_request for a node that is not part of the cluster or is named as both, or fewer
    replicas than the stream's min_insync_replicas; storage_full for a new node whose disk is full.
    """

    op: ClassVar[str] = "reassign_stream"
    level: ClassVar[int] = 2
    stream_id: StreamId
    replicas: tuple[NodeId, ...]
    stream_epoch: int | None = None
    observers: tuple[NodeId, ...] | None = field(default=None, metadata=since(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReassignment(Command):
    """Remove the replicas that are not in the target. Errors: precondition_failed unless every
    replica of the target is in sync and one of them leads."""

    op: ClassVar[str] = "finish_reassignment"
    level: ClassVar[int] = 2
    stream_id: StreamId
    stream_epoch: int


# Which node leads a stream, and which are in sync (leadership_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIsr(Command):
    """Change the ISR as the stream's leader proposes. incarnations: one for each member, in order.

    Errors: invalid_request if a member is fenced, draining (when it joins), unknown or in another
    incarnation: the leader must revert then, and not retry.
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
    """Transfer the leadership to that ISR member. Errors: precondition_failed if it cannot lead."""

    op: ClassVar[str] = "transfer_leader"
    stream_id: StreamId
    leader: NodeId
    stream_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeader(Command):
    """Elect a replica although ISR and ELR are empty. Counts as lossy: records may be lost.

    The controller may do so once every replica of the last ISR and ELR (`last_known`) has
    registered and reported its log's end; it chooses the highest (last epoch, log end) of all
    replicas that have. `incarnations` are those under which they reported, in the order of
    `asked_in_election`, because another power failure invalidates a report. Below
    ANY_REPLICA_LEVEL the leader must be one of `last_known`. An operator may do so (`force`)
    whenever there is no leader; `incarnations` is then that of the new leader. Errors:
    precondition_failed if there is another way; unavailable if the election must wait for a
    replica.
    """

    op: ClassVar[str] = "elect_leader"
    stream_id: StreamId
    leader: NodeId
    force: bool = False
    incarnations: tuple[int, ...] = ()
    stream_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistrustReplica(Command):
    """Distrust a node's own replica: a failed flush, or corruption, was found at run time. Has the
    effect of a node that came back without what it held of this stream.

    The replica leaves ISR and ELR, and its leadership of the stream ends. Errors: fenced_epoch for
    another incarnation or an unknown node.
    """

    op: ClassVar[str] = "distrust_replica"
    stream_id: StreamId
    node_id: NodeId
    node_incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLeader(Command):
    """Report that the reporter cannot fetch from the leader. now_us: by the controller's clock.

    Once a majority of the ISR without the leader has reported that within REPORT_PERIOD_US, another
    member is elected in the same entry, and the leader leaves the ISR if it has enough other
    members. Result: deposed. Errors: precondition_failed for a reporter that is not an in-sync
    follower.
    """

    op: ClassVar[str] = "report_leader"
    stream_id: StreamId
    leader_epoch: LeaderEpoch
    reporter: NodeId
    now_us: BootUs


# Nodes and the cluster (node_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(Command):
    """Register a process, once per run. Ends every leadership of its node, removes the node from
    every ISR, and marks it alive.

    session: the run's random token; repeating one changes nothing. replaces: the session that the
    process has seen registered for its node, "" for none; if it is another one by now, the command
    is a late copy of a run that is over, and is refused (precondition_failed). trusted: the node's
    logs are known to hold everything they held; distrusted: streams whose replicas are not trusted
    even so. feature_level_max: the newest level that its software understands; precondition_failed
    if it is below the cluster's. Result: incarnation, which is the revision.
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
    """Fence a node whose session has lapsed. It leaves every ISR, and leads nothing."""

    op: ClassVar[str] = "fence_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceNode(Command):
    """Unfence a node that is heard again. It is elected where there is no leader and it may
    lead."""

    op: ClassVar[str] = "unfence_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode(Command):
    """Mark a node so that others lead in its place. draining: False removes the mark, None is True.

    A node that stops marks its current run; its next run begins without the mark. until_undone: an
    operator's mark, which stays. Other commands (TransferLeader) hand over what the node leads.
    """

    op: ClassVar[str] = "drain_node"
    node_id: NodeId
    node_incarnation: int | None = None
    draining: bool | None = None
    until_undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteDisk(Command):
    """Note that this run of a node has found its disk full (below its reserve), or with room again.
    The mark outlives the run: the next one looks for itself."""

    op: ClassVar[str] = "note_disk"
    level: ClassVar[int] = DISK_LEVEL
    node_id: NodeId
    node_incarnation: int
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode(Command):
    """Forget a node. Errors: precondition_failed unless it is fenced and holds no replicas, nor
    copies as an observer."""

    op: ClassVar[str] = "remove_node"
    node_id: NodeId
    node_incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimController(Command):
    """Claim the controller's role for the metadata leader. Result: epoch, that of the claim."""

    op: ClassVar[str] = "claim_controller"
    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCluster(Command):
    """Change settings of the whole cluster; None leaves a setting unchanged.

    copy_bytes_per_second, replica_lag_max_us: within the range of CLUSTER_SETTINGS, or 0.
    feature_level: reaching COMMIT_LEVEL gives `commit` to every rule that allows `read`.

    Errors: precondition_failed for another cluster_id, for a lower feature_level or one that some
    node does not understand, and for recoveries that do not continue the known ones.
    """

    op: ClassVar[str] = "set_cluster"
    cluster_id: str | None = None
    ack_subjects: tuple[str, ...] | None = None
    feature_level: FeatureLevel | None = None
    recoveries: tuple[str, ...] | None = None
    copy_bytes_per_second: int | None = field(default=None, metadata=since(COPY_LIMIT_LEVEL))
    replica_lag_max_us: int | None = field(default=None, metadata=since(LAG_LIMIT_LEVEL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Command):
    """Change nothing. Once it is applied, everything committed before it is applied too.

    about: what a caller changes next outside the registry: it is refused like a command that is
    about that and was made too early (last_changes.py).
    """

    op: ClassVar[str] = "barrier"
    about: str = field(default="", metadata=since(MADE_AT_LEVEL))


# Which principal may do what (security_decisions.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken(Command):
    """Add a token, known by its hash. expires_at_us: 0 is never.

    Errors: precondition_failed for an id that is in use, and above TOKENS_MAX.
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
    """Add a rule. If there is an equal rule, returns that one.

    stream, subject: patterns; both "" in a rule for the cluster. cursor: see AclRule. Result: id,
    which is the revision; created. Errors: precondition_failed above RULES_MAX.
    """

    op: ClassVar[str] = "add_acl"
    level: ClassVar[int] = 2
    principal: str
    operations: tuple[str, ...]
    allow: bool
    stream: str = ""
    subject: str = ""
    cursor: str = field(default="", metadata=since(COMMIT_LEVEL))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAcl(Command):
    """Remove a rule. Errors: not_found."""

    op: ClassVar[str] = "remove_acl"
    level: ClassVar[int] = 2
    rule_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSecurity(Command):
    """Make the first administrator: a token, and rules that allow its principal everything.

    Errors: precondition_failed once a rule allows somebody to change tokens and rules.
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
    """Forget the events up to the number `through`, which are committed in the stream of
    activity."""

    op: ClassVar[str] = "trim_activity"
    level: ClassVar[int] = 2
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCursors(Command):
    """Put events about cursors into the outbox of the stream of activity, each once.

    offsets, events: of the records of `__cursors` that hold the events, and their texts, in the
    order of the log (cursors/events.py). leader_epoch: in which all of them were appended. Events
    up to the last one that was noted are passed over, so a repetition changes nothing.

    Errors: invalid_request for other than 1 to NOTED_MAX events, and for texts that are not events;
    precondition_failed while there is no stream of activity.
    """

    op: ClassVar[str] = "note_cursors"
    level: ClassVar[int] = CURSOR_EVENTS_LEVEL
    leader_epoch: LeaderEpoch
    offsets: tuple[int, ...]
    events: tuple[str, ...] = field(repr=False)
