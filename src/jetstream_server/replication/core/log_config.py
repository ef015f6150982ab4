"""When the segments of a stream's log are sealed."""

from __future__ import annotations

from dataclasses import replace

from jetstream_server.log.commit_log import LogConfig
from jetstream_server.metadata.state.model import StreamSettings
from jetstream_server.metadata.state.stream_settings import SEGMENT_BYTES_MIN

SEGMENTS_PER_LIMIT = 8
"""A log may exceed a limit by one segment: by default an eighth of the limit."""
SEGMENT_AGE_US_MIN = 1_000_000
SEGMENT_OFFSETS_MIN = 1_024
COMPACTED_SEGMENT_AGE_US = 3_600_000_000
"""Only sealed segments are compacted: the records of a slow stream wait at most an hour."""


def log_config_for(base: LogConfig, settings: StreamSettings) -> LogConfig:
    """When a stream's segments are sealed: as the user has set, otherwise as its limits need,
    otherwise as in `base`."""
    size = settings.segment_bytes or base.segment_bytes
    if settings.max_bytes and not settings.segment_bytes:
        size = min(size, max(settings.max_bytes // SEGMENTS_PER_LIMIT, SEGMENT_BYTES_MIN))
    ages = [settings.segment_age_us] if settings.segment_age_us else []
    if settings.max_age_us and not ages:
        ages.append(max(settings.max_age_us // SEGMENTS_PER_LIMIT, SEGMENT_AGE_US_MIN))
    if settings.compact and not settings.segment_age_us:
        ages.append(COMPACTED_SEGMENT_AGE_US)
    offsets = base.segment_offsets
    if settings.max_messages:
        offsets = max(settings.max_messages // SEGMENTS_PER_LIMIT, SEGMENT_OFFSETS_MIN)
    return replace(
        base,
        segment_bytes=size,
        segment_age_us=min(ages, default=base.segment_age_us),
        segment_offsets=offsets,
    )
