"""Settings as programs give them: durations in seconds, sizes in bytes.

Written by scripts/generate from jetstream_protocol/settings.py. Do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from jetstream_client.values.durations import Seconds
from jetstream_client.values.sizes import Size

FlushOption: TypeAlias = Literal["none", "interval", "group"]
AcksOption: TypeAlias = Literal["reply", "envelope", "off"]
EncryptionOption: TypeAlias = Literal["node", "aes-256-gcm"]
KeyOption: TypeAlias = Literal["record", "subject"]
OnMismatchOption: TypeAlias = Literal["keep", "refuse"]


class AlterableSettings(TypedDict, total=False):
    """Settings that `alter_stream` can change. A setting that is left out or None stays as it is.

    min_insync_replicas: how many replicas must be in sync for an acknowledgement; 2 by default at
        three replicas or more, else 1.
    flush: when appended records are flushed to the disk; group by default at one replica, interval
        at more.
    acks: to whom the stream acknowledges: reply, envelope or off.
    max_age: seconds: records older than this may be removed; 0.1 s to a century; 0: unlimited.
    max_bytes: bytes: the oldest records beyond this size of the log may be removed; in the lake,
        beyond this size of its objects; 0: unlimited.
    max_messages: the oldest records beyond this number may be removed; 0: unlimited.
    compact: compaction keeps only the last record of each key, and all records without a key.
    tombstone_grace: seconds: how long a tombstone stays after the first compaction that saw it.
    duplicate_window: seconds: how long message ids are remembered, in real time and not by wall
        clocks; 0: not at all. Time in which a node was down does not count on that node.
    segment_bytes: bytes: size at which a segment is sealed, 64 KiB to 2 GiB; 0: log.segment_bytes.
    segment_age: seconds: age at which a segment is sealed; 0: as retention and compaction need.
    restoring: a restore fills the stream, and it does not listen to its subject; false ends that
        for good. stream restore and the imports set it.
    encryption: aes-256-gcm: new batches are encrypted on disk, and nodes without a key refuse the
        stream. node: as the nodes are configured.
    observers: how many further nodes hold a copy that serves readers and never counts.
    max_message_bytes: bytes: a larger record is refused (message_too_large), and so is a batch that
        holds one; what counts are its value, key and headers. Records that are stored stay; 0: as
        large as a batch may be.
    lake: records are copied to the lake, a store outside of the nodes, and readers find them there
        once they have left the disks. It cannot be switched off while the lake holds records of the
        stream.
    local_max_age: seconds: records in the lake that are older than this may leave the nodes' disks;
        0.1 s to a century; 0: unlimited.
    local_max_bytes: bytes: the oldest records beyond this size of the log may leave the nodes'
        disks if they are in the lake; 0: unlimited.
    lake_lag: seconds: how long a record waits at most until its segment is sealed and can be copied
        to the lake; 0.1 s to a day; 0: 1 h.
    lake_object_bytes: bytes: how many bytes of the log an object of the lake holds at most; 64 KiB
        to 1 GiB; 0: 256 MiB.
    on_mismatch: what becomes of a record that does not fit the stream's schema. keep: it is stored.
        refuse: it is refused (schema_mismatch), and so is a batch that holds one. Records that are
        stored stay.
    description: what the stream is for, in words; at most 1 KiB.
    labels: what tools note about the stream, as a JSON object of texts; at most 2 KiB.
    """

    min_insync_replicas: int | None
    flush: FlushOption | None
    acks: AcksOption | None
    max_age: Seconds | None
    max_bytes: Size | None
    max_messages: int | None
    compact: bool | None
    tombstone_grace: Seconds | None
    duplicate_window: Seconds | None
    segment_bytes: Size | None
    segment_age: Seconds | None
    restoring: bool | None
    encryption: EncryptionOption | None
    observers: int | None
    max_message_bytes: Size | None
    lake: bool | None
    local_max_age: Seconds | None
    local_max_bytes: Size | None
    lake_lag: Seconds | None
    lake_object_bytes: Size | None
    on_mismatch: OnMismatchOption | None
    description: str | None
    labels: str | None


class GroupSettings(AlterableSettings, total=False):
    """What `create_group` sets on each of its streams; see StreamSettings.

    replicas: how many nodes hold a copy that counts; 3 by default, or as many as there are nodes.
    key: subject: each record's key is its subject, and every copy keeps an index of subjects. With
        compact the stream is a bucket: the last record of each subject. record: the key is what the
        publisher gives. A new stream's choice.
    """

    replicas: int | None
    key: KeyOption | None


class StreamSettings(GroupSettings, total=False):
    """Further settings of `create_stream`, which cannot be changed later. restoring: the new stream
    does not listen to its subject; `restore_batches` fills it, until `alter_stream` sets this to
    False. group: the streams of a group share the messages of their subject; each message goes to
    one of them. partition, partitions: `create_group` sets these for keyed groups."""

    group: str | None
    partition: int | None
    partitions: int | None


class ClusterSettings(TypedDict, total=False):
    """Settings of the whole cluster that `alter_cluster` can change. A setting that is left out or
    None stays as it is.

    copy_bytes_per_second: bytes: how many bytes a second each node sends at most to replicas that
        are not in sync; 64 KiB to 1 TiB; 0: no limit.
    replica_lag_max: seconds: how long a replica may lag before it leaves the ISR; 2 s to 10 min; 0:
        10 s.
    """

    copy_bytes_per_second: Size | None
    replica_lag_max: Seconds | None


@dataclass(frozen=True, slots=True)
class StreamFields:
    """The name and the settings of a stream of the registry. Durations in seconds."""

    id: int
    name: str
    subject: str
    group: str
    replication_factor: int
    min_insync_replicas: int
    flush: str
    acks: str
    max_age: float
    max_bytes: int
    max_messages: int
    compact: bool
    tombstone_grace: float
    duplicate_window: float
    segment_bytes: int
    segment_age: float
    restoring: bool
    encryption: str
    max_message_bytes: int
    key: str
    lake: bool
    local_max_age: float
    local_max_bytes: int
    lake_lag: float
    lake_object_bytes: int
    on_mismatch: str
    description: str
    labels: str
