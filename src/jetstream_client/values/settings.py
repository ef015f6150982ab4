"""A stream's settings as programs give them: seconds and bytes; None leaves a setting as it is."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, TypedDict

from jetstream_client.values.types import AcksOption, EncryptionOption, Flush
from jetstream_protocol.errors import InvalidRequestError

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a timedelta. The server keeps whole microseconds."""

_US = 1_000_000
_US_MAX = (1 << 63) - 1


class AlterableSettings(TypedDict, total=False):
    """Settings that `alter_stream` can change. A setting that is left out or None stays as it is.

    max_age (seconds), max_bytes, max_messages: limits of retention; 0 is unlimited. compact: keep
    only the last record of each key. tombstone_grace: seconds that a tombstone stays after the
    first compaction that saw it. restoring: False ends a restore: the stream listens to its subject
    from then on, for good. duplicate_window: seconds for which message ids are remembered; 0 is
    off. segment_bytes, segment_age (seconds): when a segment is sealed; 0 leaves it to the server.
    encryption: "aes-256-gcm": what is stored from now on is encrypted on disk, and needs nodes with
    keys; "node", the default: as the nodes are configured. observers: how many further nodes hold a
    copy that serves readers and never counts; which ones, the cluster chooses.
    """

    min_insync_replicas: int | None
    flush: Flush | None
    acks: AcksOption | None
    max_age: Seconds | None
    max_bytes: int | None
    max_messages: int | None
    compact: bool | None
    tombstone_grace: Seconds | None
    duplicate_window: Seconds | None
    segment_bytes: int | None
    segment_age: Seconds | None
    restoring: bool | None
    encryption: EncryptionOption | None
    observers: int | None


class GroupSettings(AlterableSettings, total=False):
    """What `create_group` sets on each of its streams; see StreamSettings."""

    replicas: int | None


class StreamSettings(GroupSettings, total=False):
    """Further settings of `create_stream`, which cannot be changed later. restoring: the new stream
    does not listen to its subject; `restore_batches` fills it, until `alter_stream` sets this to
    False. group: the streams of a group share the messages of their subject; each message goes to
    one of them. partition, partitions: `create_group` sets these for keyed groups."""

    group: str | None
    partition: int | None
    partitions: int | None


def to_us(name: str, value: Seconds) -> int:
    """Microseconds. Raises InvalidRequestError, which names the setting."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    else:
        try:
            us = round(value * _US)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"{name} {value!r} is not a number of seconds") from error
    if not 0 <= us <= _US_MAX:
        raise InvalidRequestError(f"{name} {value!r} is negative or too long")
    return us
