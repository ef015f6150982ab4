"""The settings of a stream as fields.

Written by scripts/generate from jetstream_protocol/settings.py. Do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FlushPolicy = Literal["none", "interval", "group"]
AcksPolicy = Literal["reply", "envelope", "off"]
EncryptionPolicy = Literal["node", "aes-256-gcm"]
KeyPolicy = Literal["record", "subject"]
OnMismatchPolicy = Literal["keep", "refuse"]


@dataclass(frozen=True, slots=True)
class SettingFields:
    """Times in microseconds, sizes in bytes. Their order is that of a row in the metadata."""

    replicas: int
    min_insync_replicas: int
    flush: FlushPolicy
    acks: AcksPolicy = "reply"
    max_age_us: int = 0
    max_bytes: int = 0
    max_messages: int = 0
    compact: bool = False
    tombstone_grace_us: int = 86400000000
    duplicate_window_us: int = 120000000
    segment_bytes: int = 0
    segment_age_us: int = 0
    restoring: bool = False
    encryption: EncryptionPolicy = "node"
    observers: int = 0
    max_message_bytes: int = 0
    key: KeyPolicy = "record"
    lake: bool = False
    local_max_age_us: int = 0
    local_max_bytes: int = 0
    lake_lag_us: int = 0
    lake_object_bytes: int = 0
    on_mismatch: OnMismatchPolicy = "keep"
    description: str = ""
    labels: str = ""
