"""JetStream's configuration of a stream in our settings. Pure.

What we do not have is refused, never ignored: whoever asks for it relies on it.
docs/jetstream_api.md has the table.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.settings import BY_FIELD
from jetstream_protocol.subjects import check_pattern
from jetstream_server.jetstream_api.answers import MESSAGE_BYTES_MAX
from jetstream_server.jetstream_api.errors import ApiError, invalid_json_error
from jetstream_server.jetstream_api.requests import flag, own_name

_NS_PER_US: Final = 1000
_UNLIMITED: Final = -1
_DURATION_NS_MIN: Final = 100_000_000
_OF_BUCKETS: Final = ("allow_rollup_hdrs", "allow_msg_ttl")
_FLAGS: Final = (*_OF_BUCKETS, "deny_delete", "allow_direct", "pedantic")
_OWN_LABELS: Final = ("jetstream.", "_nats.")
"""Prefixes of what `metadata` holds in our answers, and of what clients put there themselves."""

_ABSENT: Final[dict[str, tuple[Any, ...]]] = {
    "retention": ("limits",),
    "max_consumers": (-1, 0),
    "storage": ("file", "memory"),
    "compression": ("none", ""),
    "sealed": (False,),
    "deny_purge": (False,),
    "no_ack": (False,),
    "mirror_direct": (False,),
    "discard_new_per_subject": (False,),
    "allow_atomic": (False,),
    "allow_msg_counter": (False,),
    "allow_msg_schedules": (False,),
    "allow_batched": (False,),
    "subject_delete_marker_ttl": (0,),
    "first_seq": (0, 1),
    "persist_mode": ("", "default"),
    "template_owner": ("",),
}
"""Fields of which we have one value only, or none; beside each what is the same as its absence."""
_EMPTY: Final = (
    "mirror", "sources", "republish", "subject_transform", "placement", "consumer_limits",
)  # fmt: skip
"""Fields that we do not have: null, or an object or list without anything in it."""
_FREE: Final = {
    "name", "subjects", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size",
    "discard", "num_replicas", "duplicate_window", "deny_delete", "allow_rollup_hdrs",
    "allow_direct", "allow_msg_ttl", "description", "metadata", "pedantic",
}  # fmt: skip


class WantedStream(NamedTuple):
    """name, subject: ours. settings: by their fields in the metadata; those that the client leaves
    to us are missing."""

    name: str
    subject: str
    settings: dict[str, Any]


def wanted_stream(api_name: str, body: dict[str, Any]) -> WantedStream:
    """What STREAM.CREATE or UPDATE asks for. Raises ApiError."""
    given = body.get("name")
    if given != api_name:
        raise ApiError(400, 10056, "stream name in subject does not match request")
    for field, value in body.items():
        _check(field, value)
    if body.get("num_replicas") == _UNLIMITED:
        raise ApiError(400, 10133, "replicas count cannot be negative")
    is_bucket = _is_bucket(body)
    age, window = _duration(body, "max_age"), _duration(body, "duplicate_window")
    if age and window > age:
        raise config_error("duplicates window can not be larger then max age")
    settings: dict[str, Any] = {
        "replicas": _number(body, "num_replicas", 1) or 1,
        "max_messages": _number(body, "max_msgs"),
        "max_bytes": _number(body, "max_bytes"),
        "max_age_us": age // _NS_PER_US,
        "max_message_bytes": _number(body, "max_msg_size", most=MESSAGE_BYTES_MAX),
        "compact": is_bucket,
        "key": "subject" if is_bucket else "record",
        "description": _description(body),
        "labels": _labels(body),
    }
    if window:
        settings["duplicate_window_us"] = window // _NS_PER_US
    if settings["max_age_us"] * _NS_PER_US != age:
        raise config_error("max_age must be whole microseconds")
    _check_discard(body, settings, is_bucket=is_bucket)
    for field in _FLAGS:
        # Some clients always ask for all on a bucket. A message with a TTL is refused itself.
        if flag(body, field) and field in _OF_BUCKETS and not is_bucket:
            raise config_error(f"{field} is not supported without max_msgs_per_subject 1")
    return WantedStream(own_name(api_name), _subject(body, api_name), settings)


def config_error(why: str) -> ApiError:
    """Of a configuration that we do not have."""
    return ApiError(500, 10052, why)


def _check(field: str, value: object) -> None:
    if value is None or field in _FREE:
        return
    if field in _EMPTY:
        if value not in ({}, []) and not (isinstance(value, dict) and not any(value.values())):
            raise config_error(f"{field} is not supported")
        return
    absent = _ABSENT.get(field)
    if absent is None:
        return  # Not known to JetStream, or to us: ignored, as older nats-servers do.
    if type(value) is not type(absent[0]) or value not in absent:
        raise config_error(
            f"{field} {str(value)[:60]!r} is not supported: it must be {absent[0]!r}"
        )


def _is_bucket(body: dict[str, Any]) -> bool:
    per_subject = _number(body, "max_msgs_per_subject")
    if per_subject > 1:
        raise config_error(
            f"max_msgs_per_subject {per_subject} is not supported: a stream keeps all records of a "
            "subject, or the last one (a history of 1)"
        )
    return per_subject == 1


def _check_discard(body: dict[str, Any], settings: dict[str, Any], *, is_bucket: bool) -> None:
    discard = body.get("discard") or "old"
    if discard not in ("old", "new"):
        raise invalid_json_error("discard must be old or new")
    is_limited = settings["max_messages"] or settings["max_bytes"]
    if discard == "new" and (is_limited or not is_bucket):
        raise config_error("discard new is not supported: limits remove the oldest messages")
    if is_bucket and is_limited:
        raise config_error(
            "max_msgs and max_bytes of a bucket are not supported: they would remove keys"
        )
    if is_bucket and settings["max_age_us"]:
        raise config_error("max_age (TTL) of a bucket is not supported: it would remove keys")


def _description(body: dict[str, Any]) -> str:
    found = body.get("description") or ""
    if not isinstance(found, str):
        raise invalid_json_error("description must be a text")
    return _checked("description", found)


def _labels(body: dict[str, Any]) -> str:
    found = body.get("metadata") or {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise invalid_json_error("metadata must be an object of texts")
    kept = {name: found[name] for name in sorted(found) if not name.startswith(_OWN_LABELS)}
    return _checked("labels", json.dumps(kept, ensure_ascii=False)) if kept else ""


def _checked(field: str, text: str) -> str:
    try:
        BY_FIELD[field].check_text(text)
    except UnicodeEncodeError:
        raise invalid_json_error(f"{field} is no text") from None
    except ValueError as error:
        raise config_error(str(error).replace("labels", "metadata")) from None
    return text


def _subject(body: dict[str, Any], api_name: str) -> str:
    subjects = body.get("subjects")
    if subjects is None or subjects == []:
        return own_name(api_name)
    if not isinstance(subjects, list) or not all(isinstance(each, str) for each in subjects):
        raise invalid_json_error("subjects must be a list of subjects")
    if len(subjects) > 1:
        raise config_error("a stream has one subject; take a pattern, or several streams")
    try:
        check_pattern(subjects[0])
    except InvalidRequestError as error:
        raise config_error(error.message) from None
    return str(subjects[0])


def _number(body: dict[str, Any], field: str, default: int = 0, most: int = 2**63 - 1) -> int:
    found = body.get(field)
    if found is None:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or not _UNLIMITED <= found <= most:
        raise invalid_json_error(f"{field} must be a whole number up to {most}")
    return max(found, 0)


def _duration(body: dict[str, Any], field: str) -> int:
    """In ns; 0: absent."""
    found = _number(body, field)
    label = "max age" if field == "max_age" else "duplicates window"
    if body.get(field) == _UNLIMITED:
        raise config_error(f"{label} can not be negative")
    if 0 < found < _DURATION_NS_MIN:
        raise config_error(f"{label} needs to be >= 100ms")
    return found
