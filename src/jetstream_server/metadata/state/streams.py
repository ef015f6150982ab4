"""Streams as the metadata group knows them: immutable values, and their JSON form.

Invariants that the registry keeps (docs/replication.md, "Metadata"):

* `isr` and `elr` are disjoint subsets of `replicas`, in the order of `replicas`.
* **safety** An observer is in neither: only `replicas` count, and only they are elected.
* Every member of `isr` is registered and not fenced.
* `leader` is a member of `isr`, or NO_NODE.
* `leader_epoch` grows when a leadership ends or begins, `stream_epoch` with every change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

from jetstream_protocol.settings import STREAM_SETTINGS
from jetstream_protocol.subjects import ingest_prefix
from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.setting_fields import AcksPolicy, FlushPolicy, SettingFields

RequestedSettings = Mapping[str, Any]
"""The settings that a user gave for a stream, by name (StreamSettings)."""

INTERNAL_MINIMUM_LEVEL = FeatureLevel(5)
"""From this level on min_insync_replicas of the server's own streams can be altered."""

QUEUE_GROUP_LEVEL = FeatureLevel(6)
"""From this level on the queue group of a new group names the cluster."""

SETTING_LEVELS: Mapping[str, FeatureLevel] = {
    setting.field: FeatureLevel(setting.level) for setting in STREAM_SETTINGS
}
"""The feature level from which a setting may be given."""


@dataclass(frozen=True, slots=True)
class StreamSettings(SettingFields):
    """The settings of a stream, with defaults filled in (jetstream_protocol/settings.py). Times in
    microseconds, sizes in bytes."""

    @property
    def is_encrypted(self) -> bool:
        """Whether every new batch must be encrypted, whatever a node's configuration says."""
        return self.encryption != "node"

    @property
    def is_keyed_by_subject(self) -> bool:
        """Whether each record's key is its subject."""
        return self.key == "subject"

    @property
    def refuses_mismatches(self) -> bool:
        """Whether a record that does not fit the stream's schema is refused."""
        return self.on_mismatch == "refuse"

    @property
    def keeps_last_of_subjects(self) -> bool:
        """Whether compaction keeps only the last record of each subject."""
        return self.compact and self.is_keyed_by_subject

    @property
    def has_limits(self) -> bool:
        """Whether records are ever removed because of their age or number."""
        return bool(self.max_age_us or self.max_bytes or self.max_messages)

    @classmethod
    def with_defaults(
        cls,
        replicas: int,
        *,
        min_insync_replicas: int | None = None,
        flush: FlushPolicy | None = None,
        acks: AcksPolicy | None = None,
        **others: Any,
    ) -> StreamSettings:
        """Settings with the defaults of docs/guarantees.md for unset fields. Some defaults depend
        on `replicas`."""
        if min_insync_replicas is None:
            min_insync_replicas = 2 if replicas >= 3 else 1
        default_flush: FlushPolicy = "group" if replicas == 1 else "interval"
        settings = cls(
            replicas, min_insync_replicas, flush or default_flush, acks or "reply", **others
        )
        return cls.of_row(settings.to_row())

    def to_row(self) -> tuple[Any, ...]:
        """The fields in their order. Trailing fields of later feature levels are left out while
        they have their default: software that does not know them must be able to read the row."""
        row = [getattr(self, name) for name in _SETTINGS_FIELDS]
        while row[-1] == _LATER_SETTINGS.get(_SETTINGS_FIELDS[len(row) - 1], _LEVEL_1):
            row.pop()
        return tuple(row)

    @staticmethod
    @cache
    def of_row(row: tuple[Any, ...]) -> StreamSettings:
        """The shared object for these settings: thousands of streams have the same. A row written
        before a setting existed is short; the setting then has its default."""
        return StreamSettings(*row)


class LakeMark(NamedTuple):
    """Which records of a stream the lake holds: [start, end), all of them committed.

    start: where the stream begins, as long as the lake holds anything. last_epoch: of the record
    before `end`, or an earlier one if the lake holds none any more; -1: none. location: of the
    table's metadata, which names the objects. version: grows with every change of the mark.
    """

    start: int = 0
    end: int = 0
    last_epoch: int = -1
    location: str = ""
    version: int = 0

    @property
    def holds_records(self) -> bool:
        return self.start < self.end


NO_LAKE = LakeMark()


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """One stream. id: the metadata revision of its creation, never reused.

    subject: "" for an internal stream, to which no client publishes.
    last_known: while `isr` is below its minimum, the replicas that left it and `elr` because their
    logs are not trusted. They may hold everything committed all the same: when `isr` and `elr` are
    both empty, an election needs the reports of all of them (docs/replication.md).
    unflushed: replicas that have not reported a full flush since `flush` became "group".
    lossy_elections: number of leaders elected although committed records may have been lost.
    was_compacted: `compact` is or was set, so that there may be gaps between offsets.
    target_replicas: while the stream is reassigned, the replicas that it will have; until then
    `replicas` holds both them and those that will be removed. Empty: it is not being reassigned.
    purged_offset, purged_epoch: records below that offset are purged if they are of that leader
    epoch or an older one: a record stored at such an offset later is another record.
    readonly: its leader refuses records. paused: its leader does not listen to its subject.
    creator: the principal that created it, whose quota it counts against; "": none.
    partition: its number among the group's `partitions`, from 0. partitions: as of its creation,
    so that a growing group has streams with different ones; 0: the stream is not a partition.
    observers: nodes that follow like replicas and never count: not in sync, not elected, not waited
    for. A replica that is to become an observer is in both lists while the stream is reassigned,
    and a replica until then.
    lake: which records the lake holds. **safety** Below `lake.end` the lake decides what the
    stream's records are, and not a log.
    schemas: the texts of the newest versions of the schema (jetstream_protocol/schema.py), the
    oldest first; "": none from that version on. schema_version: of the last of them; 0: it never
    had one.
    queue_group: the NATS queue group of `group`, which names the cluster; "": `group` itself, as in
    groups that feature level 5 or older made.
    """

    id: StreamId
    name: str
    subject: str
    group: str
    config: StreamSettings
    replicas: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    stream_epoch: int
    isr: tuple[NodeId, ...]
    elr: tuple[NodeId, ...]
    created_at_us: WallUs
    last_known: tuple[NodeId, ...] = ()
    unflushed: tuple[NodeId, ...] = ()
    lossy_elections: int = 0
    was_compacted: bool = False
    purged_offset: int = 0
    purged_epoch: int = -1
    readonly: bool = False
    paused: bool = False
    target_replicas: tuple[NodeId, ...] = ()
    creator: str = ""
    partition: int = 0
    partitions: int = 0
    observers: tuple[NodeId, ...] = ()
    lake: LakeMark = NO_LAKE
    schemas: tuple[str, ...] = ()
    schema_version: int = 0
    queue_group: str = ""

    @property
    def schema(self) -> str:
        """The text of its schema; "": it has none."""
        return self.schemas[-1] if self.schemas else ""

    @property
    def copies(self) -> tuple[NodeId, ...]:
        """Every node that holds the stream: its replicas, then its observers. **safety** What
        counts, or may lead, is decided by `replicas`."""
        observers = self.observers
        if not observers:
            return self.replicas
        return self.replicas + tuple(each for each in observers if each not in self.replicas)

    def is_alone(self, node_id: int) -> bool:
        """Whether that node holds the only replica, so that no other one can replace it."""
        return self.replicas == (node_id,)

    @property
    def has_no_eligible_replica(self) -> bool:
        """Whether there is no leader, and no replica that may be elected without a loss."""
        return self.leader == NO_NODE and not self.isr and not self.elr

    @property
    def full_name(self) -> str:
        """The stream's identity for people."""
        return self.name if self.is_internal else f"{self.name}@{self.subject}"

    @property
    def is_internal(self) -> bool:
        """Whether it is a stream of the server's own: without a subject."""
        return not self.subject

    @property
    def ingest_prefix(self) -> str:
        """The prefix with which publishers choose it in its group; "": they cannot."""
        return ingest_prefix(self.group, self.partition) if self.partitions else ""

    @property
    def listens_in(self) -> str:
        """The NATS queue group in which its leader listens; "": in none."""
        return self.queue_group or self.group

    @property
    def purge(self) -> tuple[int, int]:
        """The last purge: below which offset, and in which leader epoch."""
        return self.purged_offset, self.purged_epoch

    @property
    def is_silent(self) -> bool:
        """Whether its leader does not listen: it is paused, being restored, or has no subject."""
        return self.paused or self.config.restoring or self.is_internal

    @property
    def flushes_before_ack(self) -> bool:
        """Whether every committed record is on every ISR member's disk, not only in its memory."""
        return self.config.flush == "group" and not self.unflushed

    def to_row(self) -> list[Any]:
        """The fields in their order, as JSON can hold them, in a compact form.

        **safety** Fields of feature levels above 1 come last, level by level. Those of a level, and
        of the levels above it, are left out as long as all of them have their defaults: older
        software refuses a row with fields that it does not know.
        """
        row = [getattr(self, name) for name in _STREAM_FIELDS]
        for first, defaults in _LATER_LEVELS:
            if row[first:] == defaults:
                del row[first:]
        row[_CONFIG_AT] = list(self.config.to_row())
        return row

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> StreamMetadata:
        """The reverse of `to_row`. Raises TypeError or ValueError for a value that is not such a
        row."""
        values: list[Any] = [tuple(item) if isinstance(item, list) else item for item in row]
        values[_CONFIG_AT] = StreamSettings.of_row(values[_CONFIG_AT])
        if len(values) > _LAKE_AT:
            values[_LAKE_AT] = LakeMark(*values[_LAKE_AT])
        return cls(*values)


_SETTINGS_FIELDS = tuple(field.name for field in fields(StreamSettings))

_LEVEL_1 = object()
"""Stands for the default of a setting that is always written."""

_LATER_SETTINGS = {
    setting.field: setting.default for setting in STREAM_SETTINGS if setting.level > 1
}

_STREAM_FIELDS = tuple(field.name for field in fields(StreamMetadata))

_CONFIG_AT = _STREAM_FIELDS.index("config")
_LAKE_AT = _STREAM_FIELDS.index("lake")

_FIRST_OF_LEVEL = {
    FeatureLevel(2): "readonly",
    FeatureLevel(3): "observers",
    FeatureLevel(6): "lake",
}
"""The first of the fields of a stream that each feature level has added: they come last."""


def stream_fields(level: FeatureLevel) -> tuple[str, ...]:
    """The fields of a stream that a feature level has, in their order."""
    later = [name for added, name in _FIRST_OF_LEVEL.items() if added > level]
    return _STREAM_FIELDS[: _STREAM_FIELDS.index(later[0])] if later else _STREAM_FIELDS


def settings_fields(level: FeatureLevel) -> tuple[str, ...]:
    """The settings of a stream that a feature level has, in their order."""
    return tuple(name for name in _SETTINGS_FIELDS if SETTING_LEVELS[name] <= level)


def _later_levels() -> tuple[tuple[int, list[Any]], ...]:
    """Where the fields of each level above 1 begin, and their defaults; the newest level first."""
    defaults = [field.default for field in fields(StreamMetadata)]
    starts = [_STREAM_FIELDS.index(name) for name in _FIRST_OF_LEVEL.values()]
    ends = [*starts[1:], len(_STREAM_FIELDS)]
    found = [(start, defaults[start:end]) for start, end in zip(starts, ends, strict=True)]
    return tuple(reversed(found))


_LATER_LEVELS = _later_levels()
