"""The settings of a stream and of the cluster, each defined once.

What is made from this table: the registry's check (metadata/state/setting_checks.py), the
conversion to gRPC (setting_messages.py), the types of server and SDK (scripts/generate writes
them), the command line's options, the manifest of backups, and the table of
docs/operations/settings.md. The fields of messages in proto/jetstream/v1/api.proto have numbers,
and are written by hand; a test compares them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum

from jetstream_protocol import bounded_json

SEGMENT_BYTES_MIN = 64 * 1024
"""Smaller segments would consist mostly of overhead: index, descriptor and folder entry."""
TIME_US_MIN = 100_000
"""Limits are checked several times a second: a shorter time could not be kept."""
TIME_US_MAX = 100 * 365 * 86_400 * 1_000_000
"""A century. Added to any clock it stays far within 64 bits."""
_SECOND_US = 1_000_000
_MUCH = 1 << 62


class Kind(Enum):
    """What the values of a setting are. Durations are stored in microseconds."""

    COUNT = "count"
    BYTES = "bytes"
    DURATION = "duration"
    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Numbers are as they are stored: microseconds, bytes.

    help: of the command line's option; "": there is none. meaning: for docs and docstrings.
    default: None: it depends on the number of replicas. zero: what 0 means; "": nothing special.
    least, most: the range; with `most`, 0 is allowed too; of a text, its longest in bytes. choices:
    of Kind.CHOICE. alterable: while the stream exists. level: the feature level from which it may
    be given. set_last: a restore sets it last, because it would remove or refuse records. after:
    the setting after which people see this one, where that is not the one before it. unit: that of
    the range, where the name does not say it.
    """

    name: str
    kind: Kind
    meaning: str
    help: str = ""
    default: int | bool | str | None = 0
    zero: str = ""
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()
    alterable: bool = True
    level: int = 1
    set_last: bool = False
    after: str = ""
    unit: str = ""
    field: str = dataclasses.field(init=False)
    """Its name in metadata and messages, which says the unit."""

    def __post_init__(self) -> None:
        unit = "_us" if self.kind is Kind.DURATION else ""
        object.__setattr__(self, "field", self.name + unit)

    @property
    def type_name(self) -> str:
        """What its enum of the messages is called, and its types begin with."""
        return self.name.title().replace("_", "")

    @property
    def minimum(self) -> int:
        """The least number that it may be."""
        return self.least if self.most is None else 0

    def allows(self, value: int) -> bool:
        """Whether a number is 0 or within the range."""
        return not value or self.most is None or self.least <= value <= self.most

    def check_text(self, text: str) -> None:
        """Raise ValueError for a text that may not be the value."""
        if len(text.encode()) > (self.most or 0):  # Not of half a character, either.
            raise ValueError(f"{self.name} has more than {self.most} bytes")
        if self.name == "labels":
            labels_of(text)

    def in_words(self, value: object) -> str:
        """A value in the user's terms: durations in seconds."""
        if self.kind is Kind.DURATION and isinstance(value, int | float):
            return f"{value / _SECOND_US:.15g} s"
        return repr(value)

    @property
    def range_in_words(self) -> str:
        return f"0 or from {self.in_words(self.least)} to {self.in_words(self.most)}{self.unit}"


STREAM_SETTINGS: tuple[Setting, ...] = (
    # Their order is that of the rows in the metadata, where those of later feature levels come
    # last. **safety** Never move or remove one: add it at the end, at the next feature level.
    Setting(
        "replicas", Kind.COUNT, "how many nodes hold a copy that counts; 3 by default, or as many "
        "as there are nodes. See [guarantees.md](../guarantees.md#defaults)",
        "Number of replicas. Default: 3, or as many as there are nodes.",
        default=None, least=1, alterable=False,
    ),
    Setting(
        "min_insync_replicas", Kind.COUNT, "how many replicas must be in sync for an "
        "acknowledgement; 2 by default at three replicas or more, else 1",
        "Replicas that must be in sync for an acknowledgement.",
        default=None, least=1,
    ),
    Setting(
        "flush", Kind.CHOICE, "when appended records are flushed to the disk; `group` by default "
        "at one replica, `interval` at more. See [guarantees.md](../guarantees.md#defaults)",
        "When to fsync. Default: group at one replica, interval at more.",
        default=None, choices=("none", "interval", "group"),
    ),
    Setting(
        "acks", Kind.CHOICE, "to whom the stream acknowledges: `reply`, `envelope` or `off`. See "
        "[guarantees.md](../guarantees.md#defaults)",
        "How to acknowledge. Default: reply.",
        default="reply", choices=("reply", "envelope", "off"),
    ),
    Setting(
        "max_age", Kind.DURATION, "records older than this may be removed; 0.1 s to a century",
        "Remove records older than this (90s, 1h30m, 7d). 0: no limit.",
        zero="unlimited", least=TIME_US_MIN, most=TIME_US_MAX,
        set_last=True,
    ),
    Setting(
        "max_bytes", Kind.BYTES, "the oldest records beyond this size of the log may be removed; "
        "in the lake, beyond this size of its objects",
        "Remove the oldest records beyond this size (10GB). 0: no limit.",
        zero="unlimited", least=1, most=_MUCH,
        set_last=True,
    ),
    Setting(
        "max_messages", Kind.COUNT, "the oldest records beyond this number may be removed",
        "Remove the oldest records beyond this number. 0: no limit.",
        zero="unlimited", least=1, most=_MUCH,
        set_last=True,
    ),
    Setting(
        "compact", Kind.FLAG, "compaction keeps only the last record of each key, and all records "
        "without a key",
        "Keep the last record of each key.",
        default=False, set_last=True,
    ),
    Setting(
        "tombstone_grace", Kind.DURATION, "how long a tombstone stays after the first compaction "
        "that saw it",
        "How long tombstones stay after compaction first saw them. Default: 24h.",
        default=24 * 3600 * _SECOND_US, most=TIME_US_MAX,
    ),
    Setting(
        "duplicate_window", Kind.DURATION, "how long message ids are remembered, in real time and "
        "not by wall clocks; 0: not at all. Time in which a node was down does not count on that "
        "node",
        "How long message ids are remembered. 0: not at all. Default: 2m.",
        default=120 * _SECOND_US, zero="off", least=TIME_US_MIN, most=TIME_US_MAX,
    ),
    Setting(
        "segment_bytes", Kind.BYTES, "size at which a segment is sealed, 64 KiB to 2 GiB; 0: "
        "`log.segment_bytes`",
        "Size at which a segment is sealed. 0: the server's.",
        zero="the server's default", least=SEGMENT_BYTES_MIN, most=2 * 1024**3,
    ),
    Setting(
        "segment_age", Kind.DURATION, "age at which a segment is sealed; 0: as retention and "
        "compaction need",
        "Age at which a segment is sealed. 0: as the other settings need.",
        zero="as the other settings need", least=TIME_US_MIN, most=TIME_US_MAX,
    ),
    Setting(
        "restoring", Kind.FLAG, "a restore fills the stream, and it does not listen to its "
        "subject; false ends that for good. `stream restore` and the imports set it",
        default=False, level=2,
    ),
    Setting(
        "encryption", Kind.CHOICE, "`aes-256-gcm`: new batches are "
        "[encrypted on disk](../security.md#by-stream), and nodes without a key refuse the stream. "
        "`node`: as the nodes are configured",
        "Encrypt new records on disk. Default: node, as the nodes are configured.",
        default="node", choices=("node", "aes-256-gcm"), level=2,
    ),
    Setting(
        "observers", Kind.COUNT, "how many further nodes hold a copy that serves readers and "
        "[never counts](../guarantees.md#observers)",
        "Number of further copies that serve readers (read from nearest) and never count.",
        level=3, after="replicas",
    ),
    Setting(
        "max_message_bytes", Kind.BYTES, "a larger record is refused (`message_too_large`), and so "
        "is a batch that holds one; what counts are its value, key and headers. Records that are "
        "stored stay",
        "Refuse records larger than this, with key and headers. 0: as large as a batch may be.",
        zero="as large as a batch may be", least=1, most=_MUCH, level=6, after="max_messages",
        set_last=True,
    ),
    Setting(
        "key", Kind.CHOICE, "`subject`: each record's key is its subject, and every copy keeps an "
        "[index of subjects](sizing.md). With `compact` the stream is a "
        "[bucket](../jetstream_api.md#buckets): the last record of each subject. `record`: the key "
        "is what the publisher gives. A new stream's choice",
        "What a record's key is: what its publisher gives (record, the default), or its subject. "
        "For a new stream only.",
        default="record", choices=("record", "subject"), alterable=False, level=6, after="compact",
    ),
    Setting(
        "lake", Kind.FLAG, "records are copied to the [lake](../lake.md), a store outside of the "
        "nodes, and readers find them there once they have left the disks. It cannot be switched "
        "off while the lake holds records of the stream",
        "Copy records to the lake, where readers find what has left the disks.",
        default=False, level=6, after="max_message_bytes",
    ),
    Setting(
        "local_max_age", Kind.DURATION, "records in the lake that are older than this may leave "
        "the nodes' disks; 0.1 s to a century",
        "Remove records that are in the lake from the disks once they are older. 0: no limit.",
        zero="unlimited", least=TIME_US_MIN, most=TIME_US_MAX, level=6, after="lake",
    ),
    Setting(
        "local_max_bytes", Kind.BYTES, "the oldest records beyond this size of the log may leave "
        "the nodes' disks if they are in the lake",
        "Remove the oldest records that are in the lake from the disks beyond this size. 0: no "
        "limit.",
        zero="unlimited", least=1, most=_MUCH, level=6, after="local_max_age_us",
    ),
    Setting(
        "lake_lag", Kind.DURATION, "how long a record waits at most until its segment is sealed "
        "and can be copied to the lake; 0.1 s to a day; 0: 1 h",
        "How long a record waits at most until it is copied to the lake. 0: 1h.",
        zero="1 h", least=TIME_US_MIN, most=86_400 * _SECOND_US, level=6, after="local_max_bytes",
    ),
    Setting(
        "lake_object_bytes", Kind.BYTES, "how many bytes of the log an object of the lake holds at "
        "most; 64 KiB to 1 GiB; 0: 256 MiB",
        "Bytes of the log in an object of the lake. 0: 256MiB.",
        zero="256 MiB", least=SEGMENT_BYTES_MIN, most=1024**3, level=6, after="lake_lag_us",
    ),
    Setting(
        "on_mismatch", Kind.CHOICE, "what becomes of a record that does not fit the stream's "
        "[schema](../typed_streams.md#records-that-do-not-fit). `keep`: it is stored. `refuse`: it "
        "is refused (`schema_mismatch`), and so is a batch that holds one. Records that are stored "
        "stay",
        "What becomes of a record that does not fit the schema: keep (the default) or refuse.",
        default="keep", choices=("keep", "refuse"), level=6, after="max_message_bytes",
        set_last=True,
    ),
    Setting(
        "description", Kind.TEXT, "what the stream is for, in words; at most 1 KiB",
        "What the stream is for, in words.",
        default="", most=1024, level=6,
    ),
    Setting(
        "labels", Kind.TEXT, "what tools note about the stream, as a JSON object of texts; at most "
        "2 KiB",
        default="", most=2048, level=6,
    ),
)  # fmt: skip

CLUSTER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "copy_bytes_per_second", Kind.BYTES, "how many bytes a second each node sends at most to "
        "replicas that are not in sync; 64 KiB to 1 TiB",
        "Bytes a second that each node sends to replicas that are not in sync. 0: no limit.",
        # With 64 KiB one answer (1 MiB) takes 16 s; less is a typing mistake. 1 TiB is more than
        # any network takes.
        zero="no limit", least=64 * 1024, most=1 << 40, level=5, unit=" bytes a second",
    ),
    Setting(
        "replica_lag_max", Kind.DURATION, "how long a replica may lag before it leaves the ISR; "
        "2 s to 10 min; 0: 10 s",
        "How long a replica may lag before it leaves the ISR. 0: 10s.",
        # A follower in sync is heard each half second, and a link counts as lost after 1.5 s. A
        # replica that lags holds up every acknowledgement until it leaves.
        zero="10 s", least=2 * _SECOND_US, most=600 * _SECOND_US, level=6,
    ),
)  # fmt: skip
"""Settings of the whole cluster that users can alter. They hold at once."""


def labels_of(text: str) -> dict[str, str]:
    """The labels in the setting of that name. Raises ValueError."""
    found = bounded_json.loads(text) if text else {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("labels must be a JSON object of texts")
    return found


BY_FIELD = {setting.field: setting for setting in STREAM_SETTINGS}


def _for_people() -> tuple[Setting, ...]:
    ordered = [setting for setting in STREAM_SETTINGS if not setting.after]
    for setting in STREAM_SETTINGS:
        if setting.after:
            ordered.insert(ordered.index(BY_FIELD[setting.after]) + 1, setting)
    return tuple(ordered)


FOR_PEOPLE = _for_people()
"""The settings of a stream, in the order in which people see them."""
