"""When the segments of a stream's log are sealed, and whether its batches must be encrypted."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.settings import SEGMENT_BYTES_MIN
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.encryption import why_no_key
from jetstream_server.metadata.state.streams import StreamSettings

SEGMENTS_PER_LIMIT = 8
"""A log may exceed a limit by one segment: by default an eighth of the limit."""
SEGMENT_AGE_US_MIN = 1_000_000
SEGMENT_OFFSETS_MIN = 1_024
COMPACTED_SEGMENT_AGE_US = 3_600_000_000
"""Only sealed segments are compacted: the records of a slow stream wait at most an hour."""

LAKE_LAG_US = 3_600_000_000
"""Only sealed segments are copied to the lake: by default a record waits at most an hour."""


def log_config_for(base: LogConfig, settings: StreamSettings) -> LogConfig:
    """The log's part of a stream's settings. Segments are sealed as the user has set, otherwise as
    its limits need, otherwise as in `base`."""
    size = settings.segment_bytes or base.segment_bytes
    if settings.max_bytes and not settings.segment_bytes:
        size = min(size, max(settings.max_bytes // SEGMENTS_PER_LIMIT, SEGMENT_BYTES_MIN))
    ages = [settings.segment_age_us] if settings.segment_age_us else []
    if settings.max_age_us and not ages:
        ages.append(max(settings.max_age_us // SEGMENTS_PER_LIMIT, SEGMENT_AGE_US_MIN))
    if settings.compact and not settings.segment_age_us:
        ages.append(COMPACTED_SEGMENT_AGE_US)
    if settings.lake and not settings.segment_age_us:
        ages.append(max(settings.lake_lag_us or LAKE_LAG_US, SEGMENT_AGE_US_MIN))
    if settings.local_max_bytes and not settings.segment_bytes:
        size = min(size, max(settings.local_max_bytes // SEGMENTS_PER_LIMIT, SEGMENT_BYTES_MIN))
    offsets = base.segment_offsets
    if settings.max_messages:
        offsets = max(settings.max_messages // SEGMENTS_PER_LIMIT, SEGMENT_OFFSETS_MIN)
    return replace(
        base,
        segment_bytes=size,
        segment_age_us=min(ages, default=base.segment_age_us),
        segment_offsets=offsets,
        must_encrypt=settings.is_encrypted,
        index_subjects=settings.is_keyed_by_subject,
    )


def why_no_appends(settings: StreamSettings, log: CommitLog) -> str:
    """Why nothing can be appended to a stream's log on this node; "" if it can."""
    return log.offline_reason or (why_no_key(log.encryption) if settings.is_encrypted else "")


def active_key_id(settings: StreamSettings, log: CommitLog) -> str:
    """The id of the key with which this node would encrypt new batches of the stream; "": it would
    store them plain."""
    if log.encryption is None or not (settings.is_encrypted or log.encryption.keys.encrypts):
        return ""
    return log.encryption.keys.active_id
