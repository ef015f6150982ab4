"""Reads and checks a stream's settings: types, ranges, and which settings fit together.

This is the registry's check: the same on every node, for every proposer. What each setting may be
is stated in the table (jetstream_protocol/settings.py). Names and units are those of
StreamSettings.
"""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.settings import BY_FIELD, STREAM_SETTINGS, Kind, Setting
from jetstream_server.metadata.state.fields import Fields
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import RequestedSettings, StreamSettings


def requested_settings(config: RequestedSettings, op: str, level: FeatureLevel) -> dict[str, Any]:
    """The settings that a command sets, without nulls. Raises InvalidRequestError, naming the
    setting. **safety** A setting of a later feature level than the cluster's is unknown."""
    fields = Fields(config, f"{op}.config")
    wished = {
        setting.field: _value(fields, setting)
        for setting in STREAM_SETTINGS
        if level >= setting.level and fields.has(setting.field)
    }
    fields.finish()
    return wished


def _value(fields: Fields, setting: Setting) -> Any:
    if setting.kind is Kind.FLAG:
        return fields.flag(setting.field)
    if setting.kind is Kind.CHOICE:
        return fields.choice(setting.field, setting.choices)
    if setting.kind is Kind.TEXT:
        text = fields.text(setting.field)
        try:
            setting.check_text(text)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        return text
    return check_range(setting, fields.integer(setting.field, minimum=setting.minimum))


def check_range(setting: Setting, value: int) -> int:
    """The value. Raises InvalidRequestError, in the user's terms, if it is out of the range."""
    if not setting.allows(value):
        raise InvalidRequestError(
            f"{setting.name} is {setting.in_words(value)}; it must be {setting.range_in_words}"
        )
    return value


def in_words(field: str, value: Any) -> tuple[str, str]:
    """A setting in the user's terms: its name, and durations in seconds."""
    return BY_FIELD[field].name, BY_FIELD[field].in_words(value)


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
    return checked_settings(StreamSettings.with_defaults(**{**wished, **placed}))


def checked_settings(config: StreamSettings) -> StreamSettings:
    """The shared object for these settings. Raises InvalidRequestError when they do not fit
    together."""
    if config.min_insync_replicas > config.replicas:
        raise InvalidRequestError(
            f"min_insync_replicas {config.min_insync_replicas} is more than the stream's "
            f"{config.replicas} replicas"
        )
    return StreamSettings.of_row(config.to_row())
