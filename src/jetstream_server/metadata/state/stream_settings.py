"""Reads and checks a stream's settings: types, ranges, and which settings fit together.

This is the registry's check: the same on every node, for every proposer. Names and units are those
of StreamSettings.
"""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_server.metadata.state.fields import Fields
from jetstream_server.metadata.state.model import (
    ACK_POLICIES,
    ENCRYPTION_POLICIES,
    FLUSH_POLICIES,
    SETTING_LEVELS,
    FeatureLevel,
    RequestedSettings,
    StreamSettings,
)

SEGMENT_BYTES_MIN = 64 * 1024
"""Smaller segments would consist mostly of overhead: index, descriptor and folder entry."""
SEGMENT_BYTES_MAX = 2 * 1024**3
TIME_US_MIN = 100_000
"""Limits are checked several times a second: a shorter time could not be kept."""
TIME_US_MAX = 100 * 365 * 86_400 * 1_000_000
"""A century. Added to any clock it stays far within 64 bits."""

_RANGES = {
    # name: (least, most); 0 is always allowed, and means unlimited, off or the default
    "max_age_us": (TIME_US_MIN, TIME_US_MAX),
    "max_bytes": (1, 1 << 62),
    "max_messages": (1, 1 << 62),
    "tombstone_grace_us": (0, TIME_US_MAX),
    "duplicate_window_us": (TIME_US_MIN, TIME_US_MAX),
    "segment_bytes": (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "segment_age_us": (TIME_US_MIN, TIME_US_MAX),
}


def requested_settings(config: RequestedSettings, op: str, level: FeatureLevel) -> dict[str, Any]:
    """The settings that a command sets, without nulls. Raises InvalidRequestError, naming the
    setting. **safety** A setting of a later feature level than the cluster's is unknown."""
    fields = Fields(config, f"{op}.config")
    wished: dict[str, Any] = {}
    for name in ("replicas", "min_insync_replicas"):
        if fields.has(name):
            wished[name] = fields.integer(name, minimum=1)
    if fields.has("flush"):
        wished["flush"] = fields.choice("flush", FLUSH_POLICIES)
    if fields.has("acks"):
        wished["acks"] = fields.choice("acks", ACK_POLICIES)
    if fields.has("compact"):
        wished["compact"] = fields.flag("compact")
    if level >= SETTING_LEVELS["restoring"] and fields.has("restoring"):
        wished["restoring"] = fields.flag("restoring")
    if level >= SETTING_LEVELS["encryption"] and fields.has("encryption"):
        wished["encryption"] = fields.choice("encryption", ENCRYPTION_POLICIES)
    if level >= SETTING_LEVELS["observers"] and fields.has("observers"):
        wished["observers"] = fields.integer("observers")
    for name, (least, most) in _RANGES.items():
        if fields.has(name):
            wished[name] = _within(name, fields.integer(name), least, most)
    fields.finish()
    return wished


def _within(name: str, value: int, least: int, most: int) -> int:
    if value and not least <= value <= most:
        said, found = in_words(name, value)
        first, last = in_words(name, least)[1], in_words(name, most)[1]
        raise InvalidRequestError(f"{said} is {found}; it must be 0 or from {first} to {last}")
    return value


def in_words(name: str, value: Any) -> tuple[str, str]:
    """A setting in the user's terms: durations in seconds."""
    if name.endswith("_us"):
        return name.removesuffix("_us"), f"{value / 1_000_000:.15g} s"
    return name, repr(value)


def effective_settings(
    wished: RequestedSettings, replicas: int, observers: int = 0
) -> StreamSettings:
    """The settings of a new stream on so many nodes. Raises InvalidRequestError."""
    if wished.get("replicas", replicas) != replicas or replicas == 0:
        raise InvalidRequestError(
            f"the stream was placed on {replicas} nodes, not {wished.get('replicas', 'at least 1')}"
        )
    if wished.get("observers", observers) != observers:
        raise InvalidRequestError(
            f"the stream was given {observers} observers, not {wished['observers']}"
        )
    placed = {"replicas": replicas, "observers": observers}
    return checked(StreamSettings.with_defaults(**{**wished, **placed}))


def checked(config: StreamSettings) -> StreamSettings:
    """The shared object for these settings. Raises InvalidRequestError when they do not fit
    together."""
    if config.min_insync_replicas > config.replicas:
        raise InvalidRequestError(
            f"min_insync_replicas {config.min_insync_replicas} is more than the stream's "
            f"{config.replicas} replicas"
        )
    return StreamSettings.shared(config.to_row())
