"""A stream's settings as programs give them: seconds and bytes; None leaves a setting as it is."""

from __future__ import annotations

from jetstream_client.values.durations import Seconds, to_us
from jetstream_client.values.setting_types import (
    AlterableSettings,
    ClusterSettings,
    GroupSettings,
)

__all__ = [
    "AlterableSettings",
    "ClusterSettings",
    "GroupSettings",
    "Seconds",
    "StreamSettings",
    "to_us",
]


class StreamSettings(GroupSettings, total=False):
    """Further settings of `create_stream`, which cannot be changed later. restoring: the new stream
    does not listen to its subject; `restore_batches` fills it, until `alter_stream` sets this to
    False. group: the streams of a group share the messages of their subject; each message goes to
    one of them. partition, partitions: `create_group` sets these for keyed groups."""

    group: str | None
    partition: int | None
    partitions: int | None
