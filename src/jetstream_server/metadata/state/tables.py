"""The registry's state in memory: streams, nodes, cluster settings, and the indexes over them.

Look-ups are by id, by name, by subject and by node; none of them walks over all streams. The only
way to change anything is `commit`, which takes decided changes and cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    JetstreamError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.stream_names import NAME_LENGTH_MAX, PARTITIONS_MAX, no_stream
from jetstream_protocol.subjects import SUBJECT_BYTES_MAX
from jetstream_protocol.types import NO_NODE, BootUs, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.changes import (
    ActivityChanged,
    Change,
    ControllerChanged,
    DeletionsLearned,
    LeaderDeposed,
    LeaderReported,
    NodeChanged,
    SecurityChanged,
    SettingsChanged,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
    StreamForgotten,
)
from jetstream_server.metadata.state.cluster import ClusterSettings, ControllerClaim
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.stream_patterns import StreamPatterns
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.security.state import SecurityState

_NAME_AND_SUBJECT_MAX = NAME_LENGTH_MAX + 1 + SUBJECT_BYTES_MAX
"""Upper bound on the length of `name@subject`, given in one field or in two."""
DELETIONS_MAX = 100_000
"""Remembered deletions: less than a megabyte of a snapshot. Data of streams deleted longer ago is
only set aside, not deleted, by a node that was away when they were deleted."""


class Tables:
    """All metadata. Mappings are read-only; `commit` keeps them and the indexes consistent."""

    __slots__ = (
        "_by_group",
        "_by_name",
        "_by_node",
        "_subjects",
        "activity",
        "controller",
        "created_by",
        "deleted",
        "leaderships",
        "nodes",
        "reassigned",
        "reports",
        "revision",
        "security",
        "settings",
        "streams",
    )

    def __init__(self) -> None:
        # The revision of the last applied command, or of the one being decided.
        self.revision = 0
        self.streams: dict[StreamId, StreamMetadata] = {}
        self.nodes: dict[NodeId, NodeMetadata] = {}
        self.settings = ClusterSettings()
        self.security = SecurityState()
        # Events that are not in the stream of activity yet.
        self.activity = Outbox()
        self.controller = ControllerClaim(NO_NODE, 0)
        self.reports: dict[StreamId, tuple[tuple[NodeId, BootUs], ...]] = {}
        self.leaderships: dict[NodeId, int] = {}
        # How many existing streams each principal has created.
        self.created_by: dict[str, int] = {}
        # The streams that are being moved to other nodes.
        self.reassigned: dict[StreamId, None] = {}
        # Deleted streams, oldest first. A missing stream that is not listed here was not deleted.
        # With when it was made if it used the lake, otherwise 0. Ids are given again if an older
        # copy of the metadata is put back: only both tell which stream it was.
        self.deleted: dict[StreamId, WallUs] = {}
        self._by_group: dict[str, dict[StreamId, None]] = {}
        self._by_name: dict[str, dict[str, StreamId]] = {}
        self._by_node: dict[NodeId, dict[StreamId, None]] = {}
        self._subjects = StreamPatterns()

    def find(self, name: str, subject: str) -> StreamMetadata | None:
        """The stream with that name and subject."""
        stream_id = self._by_name.get(name, {}).get(subject)
        return None if stream_id is None else self.streams[stream_id]

    def with_id(self, stream_id: StreamId) -> StreamMetadata:
        """The stream with that id. Raises StreamNotFoundError, and UnavailableError for an id that
        is given later than this node knows."""
        stream = self.streams.get(stream_id)
        if stream is None:
            raise self.unknown_id_error(stream_id)
        return stream

    def unknown_id_error(self, stream_id: int) -> JetstreamError:
        """Ids are revisions."""
        if stream_id > self.revision:
            return UnavailableError(
                f"this node has not heard of stream {stream_id} yet: it knows the metadata up to "
                f"revision {self.revision}; try again"
            )
        return StreamNotFoundError(f"there is no stream with id {stream_id}: was it deleted?")

    def stream_of(self, ref: common_pb2.StreamRef) -> StreamMetadata:
        """The stream that a request names: by id, by name, or by name and subject.

        Raises StreamNotFoundError, AmbiguousStreamError, InvalidRequestError, and UnavailableError
        for a stream that this node does not know yet.
        """
        if ref.id:
            return self.with_id(StreamId(ref.id))
        if not ref.name:
            raise InvalidRequestError("the request names no stream: give its name or its id")
        if len(ref.name) + len(ref.subject) > _NAME_AND_SUBJECT_MAX:
            raise InvalidRequestError("no stream has a name or subject of that length")
        return self.resolve(ref.name, ref.subject)

    def streams_named(self, name: str) -> list[StreamMetadata]:
        """Every stream of that name, by subject."""
        return [self.streams[found] for _, found in sorted(self._by_name.get(name, {}).items())]

    def resolve(self, name: str, subject: str = "") -> StreamMetadata:
        """The stream that a user names, with or without its subject.

        Raises StreamNotFoundError, or AmbiguousStreamError with the candidates as name@subject.
        """
        if not subject:
            name, _, subject = name.partition("@")
        if subject:
            stream = self.find(name, subject)
            if stream is None:
                raise StreamNotFoundError(f"there is no stream {name}@{subject}")
            return stream
        candidates = self._by_name.get(name, {})
        if not candidates:
            partitions = [stream.name for stream in self.partitions_of(name)]
            raise StreamNotFoundError(no_stream(name, partitions))
        if len(candidates) > 1:
            names = tuple(f"{name}@{pattern}" for pattern in sorted(candidates))
            message = f"{name!r} could be any of {', '.join(names)}: name one of them in full"
            raise AmbiguousStreamError(message, names)
        return self.streams[next(iter(candidates.values()))]

    def feeding(self, subject: str) -> list[StreamMetadata]:
        """The streams that a message published on the literal `subject` reaches, by id."""
        return [self.streams[stream_id] for stream_id in self._subjects.matching(subject)]

    def read_as_one(self, source: str) -> list[StreamMetadata]:
        """The streams that a consumer group of `source` reads, by id: those of the group of that
        name, or else the stream. Empty: there are none, or the name is ambiguous."""
        if found := self._by_group.get(source):
            return [self.streams[stream_id] for stream_id in sorted(found)]
        try:
            return [self.resolve(source)]
        except (StreamNotFoundError, AmbiguousStreamError):
            return []

    def in_group(self, group: str) -> Iterator[StreamMetadata]:
        """The streams of that group."""
        return (self.streams[stream_id] for stream_id in self._by_group.get(group, ()))

    def holders_of(self, name: str) -> list[StreamMetadata]:
        """The streams that a stream or a group of that name would be mixed up with: those that have
        the name, and those of the group that has it."""
        ids = {*self._by_name.get(name, {}).values(), *self._by_group.get(name, ())}
        return [self.streams[stream_id] for stream_id in sorted(ids)]

    def partitions_of(self, group: str) -> list[StreamMetadata]:
        """The streams of a keyed group that clients have made, by number. They are found by the
        names that clients give them, so a name that nothing has costs one look-up."""
        found: list[StreamMetadata] = []
        for number in range(PARTITIONS_MAX):
            named = self.streams_named(f"{group}-{number}")
            here = [stream for stream in named if stream.group == group and stream.partitions]
            if not here:
                break
            found += here[:1]
        return found

    def streams_of(self, node_id: NodeId) -> list[StreamMetadata]:
        """The streams that have a copy on the node, as a replica or an observer, by id."""
        return [self.streams[stream_id] for stream_id in sorted(self._by_node.get(node_id, ()))]

    def copy_count(self, node_id: NodeId) -> int:
        """How many streams have a copy on the node."""
        return len(self._by_node.get(node_id, ()))

    def is_alive(self, node_id: NodeId) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and not node.fenced

    def may_be_given_leaderships(self, node_id: NodeId) -> bool:
        """Whether the node may be made a leader by plan, while another one could lead."""
        node = self.nodes.get(node_id)
        return node is not None and not node.yields_leadership

    def successors(self, stream: StreamMetadata) -> list[NodeId]:
        """The members of the ISR that may lead the stream in its leader's place, by plan."""
        stay = stream.target_replicas if self._is_leaving(stream) else stream.isr
        return [
            member
            for member in stream.isr
            if member in stay and member != stream.leader and self.may_be_given_leaderships(member)
        ]

    def must_change_leader(self, stream: StreamMetadata) -> bool:
        """Whether the leadership has to go to another node, rather than it being better there."""
        leader = self.nodes.get(stream.leader)
        return self._is_leaving(stream) or (leader is not None and leader.yields_leadership)

    def _is_leaving(self, stream: StreamMetadata) -> bool:
        """Whether the replica that leads is about to be removed."""
        return stream.id in self.reassigned and stream.leader not in stream.target_replicas

    def commit(self, changes: Iterable[Change]) -> None:
        """Apply decided changes."""
        for change in changes:
            match change:
                case StreamCreated(stream):
                    self._add_stream(stream)
                case StreamChanged(before, after):
                    self.streams[after.id] = after
                    self._move_copies(before, after)
                    self._count_leadership(before.leader, -1)
                    self._count_leadership(after.leader, 1)
                case StreamDeleted(stream):
                    self._remove_stream(stream)
                    uses_lake = stream.config.lake or stream.lake.version
                    made_us = stream.created_at_us if uses_lake else WallUs(0)
                    self._remember_deletions(((stream.id, made_us),))
                case StreamForgotten(stream):
                    self._remove_stream(stream)
                case DeletionsLearned(deletions):
                    self._remember_deletions(deletions)
                case NodeChanged(_, NodeMetadata() as node):
                    self.nodes[node.node_id] = node
                case NodeChanged(NodeMetadata() as node, _):
                    del self.nodes[node.node_id]
                case SettingsChanged(_, settings):
                    self.settings = settings
                case SecurityChanged(_, security):
                    self.security = security
                case ActivityChanged(_, activity):
                    self.activity = activity
                case ControllerChanged(_, controller):
                    self.controller = controller
                case LeaderDeposed():
                    pass  # For watchers: the change of the stream follows.
                case LeaderReported(stream_id, ()):
                    self.reports.pop(stream_id, None)
                case LeaderReported(stream_id, reports):
                    self.reports[stream_id] = reports

    def _remember_deletions(self, deletions: Iterable[tuple[StreamId, WallUs]]) -> None:
        self.deleted.update(deletions)
        while len(self.deleted) > DELETIONS_MAX:
            del self.deleted[next(iter(self.deleted))]

    def _add_stream(self, stream: StreamMetadata) -> None:
        self.streams[stream.id] = stream
        self._by_name.setdefault(stream.name, {})[stream.subject] = stream.id
        if stream.group:
            self._by_group.setdefault(stream.group, {})[stream.id] = None
        if not stream.is_internal:
            self._subjects.add(stream.subject, stream.id)
        for node_id in stream.copies:
            self._by_node.setdefault(node_id, {})[stream.id] = None
        self._note_reassignment(stream)
        self._count_leadership(stream.leader, 1)
        self._count_created(stream.creator, 1)

    def _remove_stream(self, stream: StreamMetadata) -> None:
        del self.streams[stream.id]
        subjects = self._by_name[stream.name]
        del subjects[stream.subject]
        if not subjects:
            del self._by_name[stream.name]
        if stream.group:
            members = self._by_group[stream.group]
            del members[stream.id]
            if not members:
                del self._by_group[stream.group]
        if not stream.is_internal:
            self._subjects.remove(stream.subject, stream.id)
        for node_id in stream.copies:
            del self._by_node[node_id][stream.id]
        self.reassigned.pop(stream.id, None)
        self._count_leadership(stream.leader, -1)
        self._count_created(stream.creator, -1)

    def _move_copies(self, before: StreamMetadata, after: StreamMetadata) -> None:
        if (after.replicas, after.observers) != (before.replicas, before.observers):
            for node_id in before.copies:
                del self._by_node[node_id][before.id]
            for node_id in after.copies:
                self._by_node.setdefault(node_id, {})[after.id] = None
        self._note_reassignment(after)

    def _note_reassignment(self, stream: StreamMetadata) -> None:
        if stream.target_replicas:
            self.reassigned[stream.id] = None
        else:
            self.reassigned.pop(stream.id, None)

    def _count_created(self, creator: str, by: int) -> None:
        count = self.created_by.get(creator, 0) + by
        if creator and count:
            self.created_by[creator] = count
        else:
            self.created_by.pop(creator, None)

    def _count_leadership(self, node_id: NodeId, by: int) -> None:
        if node_id != NO_NODE:
            self.leaderships[node_id] = self.leaderships.get(node_id, 0) + by
