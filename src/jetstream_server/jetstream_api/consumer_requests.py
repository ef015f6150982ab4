"""Requests about consumers: CONSUMER.CREATE and CONSUMER.MSG.NEXT. Pure.

Durations are nanoseconds on the wire, and µs inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeVar

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.subjects import check_pattern, covers, is_pattern
from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.config import (
    ACK_PENDING_DEFAULT,
    ACK_WAIT_US,
    BACKOFF_MAX,
    DESCRIPTION_BYTES_MAX,
    FILTERS_MAX,
    INACTIVE_US,
    UNLIMITED,
    WAITING_DEFAULT,
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
)
from jetstream_server.consumers.pulls import WAITING_MAX, Pull
from jetstream_server.jetstream_api.errors import (
    ApiError,
    bad_request_error,
    invalid_json_error,
)
from jetstream_server.jetstream_api.requests import (
    beyond_us_of,
    body_of,
    flag,
    number,
    own_name,
    pattern,
    time_of,
)

NAME_LENGTH_MAX: Final = 255
METADATA_BYTES_MAX: Final = 16 * 1024
HEARTBEAT_US_MIN: Final = 100_000
DURATION_US_MAX: Final = 10 * 365 * 86_400 * 1_000_000

_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]+")
_SAMPLE = re.compile(r"[0-9]{1,18}%?")
_US = 1000

_UNSERVED: Final = (
    "replay_policy", "rate_limit_bps", "priority_policy", "priority_groups", "priority_timeout",
)  # fmt: skip
"""Fields that change what a client gets, and are refused unless they have no effect."""
_WITHOUT_EFFECT: Final[tuple[object, ...]] = (None, "", 0, [], "instant", "none")

_Choice = TypeVar("_Choice", bound=StrEnum)


def ns_us(body: Mapping[str, Any], field: str) -> int:
    """A duration in ns, as µs; 0: absent, or negative. A part of a µs counts as one. Raises
    ApiError."""
    return max(0, min(-(-_ns(body, field) // _US), DURATION_US_MAX))


def _ns(body: Mapping[str, Any], field: str) -> int:
    found = body.get(field)
    if found is None:
        return 0
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) > 2**63:
        raise invalid_json_error(f"{field} must be nanoseconds")
    return found


def _count(body: Mapping[str, Any], field: str, default: int) -> int:
    """A number that may be -1 for "no limit"; the default for 0 and absence."""
    found = body.get(field)
    if found is None:
        return default
    if not isinstance(found, int) or isinstance(found, bool):
        raise invalid_json_error(f"{field} must be a whole number")
    return UNLIMITED if found < 0 else min(found, 2**31) or default


def _text(body: Mapping[str, Any], field: str) -> str:
    found = body.get(field)
    if found is None:
        return ""
    if not isinstance(found, str) or not found.isprintable():
        raise invalid_json_error(f"{field} must be text")
    return found


def _choice(body: Mapping[str, Any], field: str, kind: type[_Choice], default: _Choice) -> _Choice:
    found = _text(body, field)
    if not found:
        return default
    try:
        return kind(found)
    except ValueError:
        raise invalid_json_error(f"unknown {field} {found[:40]!r}") from None


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """action: "", "create" or "update"."""

    config: ConsumerConfig
    action: str

    @classmethod
    def of(cls, verb: str, stream: str, rest: str, payload: bytes, name: str) -> CreateRequest:
        """Parse CONSUMER.CREATE and CONSUMER.DURABLE.CREATE. rest: what follows the stream in the
        subject. name: for a consumer that is given none. Raises ApiError."""
        body = body_of(payload)
        named = _text(body, "stream_name")
        if named and own_name(named) != own_name(stream):
            raise ApiError(400, 10056, "stream name in subject does not match request")
        fields = body.get("config")
        if not isinstance(fields, dict):
            raise invalid_json_error("config must be an object")
        action = _text(body, "action")
        if action not in ("", "create", "update"):
            raise invalid_json_error(f"unknown action {action[:40]!r}")
        in_subject, _, filtered = rest.partition(".")
        durable, given = _text(fields, "durable_name"), _text(fields, "name")
        _check_names(verb, in_subject, durable, given)
        config = _config(fields, durable or given or in_subject or name, bool(durable))
        if filtered and (config.has_filter_list or len(config.filters) > 1):
            raise ApiError(400, 10137, "consumer with multiple subject filters cannot use subject "
                           "based API")  # fmt: skip
        if filtered and config.filters != (filtered,):
            raise ApiError(400, 10131, "Consumer create request did not match filtered subject "
                           "from create subject")  # fmt: skip
        return cls(config, action)


def _check_names(verb: str, in_subject: str, durable: str, given: str) -> None:
    if verb == "CONSUMER.DURABLE.CREATE":
        if not durable:
            raise ApiError(400, 10018, "consumer expected to be durable but a durable name was not "
                           "set")  # fmt: skip
        if durable != in_subject:
            raise ApiError(400, 10017, "consumer name in subject does not match durable name in "
                           "request")  # fmt: skip
    elif durable and not in_subject:
        raise ApiError(400, 10020, "consumer expected to be ephemeral but a durable name was set "
                       "in request")  # fmt: skip
    for each in filter(None, (in_subject, durable, given)):
        if in_subject and each != in_subject:
            raise ApiError(400, 10017, "consumer name in subject does not match durable name in "
                           "request")  # fmt: skip
        if len(each) > NAME_LENGTH_MAX:
            raise ApiError(400, 10102, f"consumer name is too long, maximum allowed is "
                           f"{NAME_LENGTH_MAX}")  # fmt: skip
        if not _NAME.fullmatch(each) or not each.isprintable():
            raise ApiError(400, 10103, "durable name can not contain '.', '*', '>', '/', '\\'")


def _config(fields: dict[str, Any], name: str, is_durable: bool) -> ConsumerConfig:
    for field in _UNSERVED:
        if fields.get(field) not in _WITHOUT_EFFECT:
            raise ApiError(500, 10052, f"{field} is not supported")
    single, several = pattern(fields, "filter_subject"), _filters(fields)
    if single and several:
        raise ApiError(400, 10136, "consumer cannot have both FilterSubject and FilterSubjects "
                       "specified")  # fmt: skip
    ack = _choice(fields, "ack_policy", AckPolicy, AckPolicy.NONE)
    deliver_subject = _text(fields, "deliver_subject")
    acknowledges = ack is not AckPolicy.NONE
    inactive_us = ns_us(fields, "inactive_threshold")
    backoff_us = _backoff(fields)
    if _ns(fields, "ack_wait") < 0:
        raise ApiError(400, 10183, "consumer ack wait needs to be positive")
    ack_wait_us = ns_us(fields, "ack_wait") or (ACK_WAIT_US if acknowledges else 0)
    waiting = _count(fields, "max_waiting", WAITING_DEFAULT)
    config = ConsumerConfig(
        name=name,
        is_durable=is_durable,
        description=_text(fields, "description"),
        deliver_policy=_choice(fields, "deliver_policy", DeliverPolicy, DeliverPolicy.ALL),
        start_sequence=number(fields, "opt_start_seq"),
        start_time_us=time_of(fields, "opt_start_time") or None,
        start_time_ns=beyond_us_of(fields, "opt_start_time"),
        ack_policy=ack,
        ack_wait_us=(backoff_us or (ack_wait_us,))[0],
        max_deliver=_count(fields, "max_deliver", UNLIMITED),
        backoff_us=backoff_us,
        filters=several or ((single,) if single else ()),
        has_filter_list=bool(several),
        max_ack_pending=_count(fields, "max_ack_pending", ACK_PENDING_DEFAULT)
        if acknowledges
        else 0,
        max_waiting=0 if deliver_subject else WAITING_DEFAULT if waiting < 0 else waiting,
        headers_only=flag(fields, "headers_only"),
        max_batch=number(fields, "max_batch"),
        max_expires_us=ns_us(fields, "max_expires"),
        max_bytes=number(fields, "max_bytes"),
        deliver_subject=deliver_subject.encode(),
        deliver_group=_text(fields, "deliver_group").encode(),
        heartbeat_us=ns_us(fields, "idle_heartbeat"),
        flow_control=flag(fields, "flow_control"),
        inactive_us=inactive_us or (0 if is_durable else INACTIVE_US),
        num_replicas=number(fields, "num_replicas", 5),
        mem_storage=flag(fields, "mem_storage"),
        sample_freq=_text(fields, "sample_freq"),
        pause_until_us=time_of(fields, "pause_until") or 0,
        pause_until_ns=beyond_us_of(fields, "pause_until"),
        metadata=_metadata(fields),
    )
    _check(config, fields)
    return config


def _filters(fields: dict[str, Any]) -> tuple[str, ...]:
    found = fields.get("filter_subjects")
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) > FILTERS_MAX:
        raise invalid_json_error(f"filter_subjects must be a list of at most {FILTERS_MAX}")
    if any(not each for each in found):
        raise ApiError(400, 10139, "consumer filter in FilterSubjects cannot be empty")
    checked = tuple(pattern({"filter_subjects": each}, "filter_subjects") for each in found)
    for at, each in enumerate(checked):
        if any(covers(each, other) or covers(other, each) for other in checked[:at]):
            raise ApiError(400, 10138, "consumer subject filters cannot overlap")
    return checked


def _backoff(fields: dict[str, Any]) -> tuple[int, ...]:
    found = fields.get("backoff")
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) > BACKOFF_MAX:
        raise invalid_json_error(f"backoff must be a list of at most {BACKOFF_MAX} durations")
    if any(_ns({"backoff": each}, "backoff") < 0 for each in found):
        raise ApiError(400, 10184, "consumer backoff needs to be positive")
    return tuple(ns_us({"backoff": each}, "backoff") for each in found)


def _metadata(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    found = fields.get("metadata")
    if found is None:
        return ()
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise invalid_json_error("metadata must be an object of texts")
    texts = [*found, *found.values()]
    try:
        size = sum(len(each.encode()) for each in texts)
    except UnicodeEncodeError:
        raise invalid_json_error("metadata must be an object of texts") from None
    if size > METADATA_BYTES_MAX:
        raise ApiError(400, 10135, f"metadata has more than {METADATA_BYTES_MAX} bytes")
    return tuple(sorted(found.items()))


def _check(config: ConsumerConfig, fields: dict[str, Any]) -> None:
    """Raise ApiError for fields that contradict each other."""
    _check_start(config)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise ApiError(400, 10107, f"consumer description is too long, maximum allowed is "
                       f"{DESCRIPTION_BYTES_MAX}")  # fmt: skip
    if config.max_deliver != UNLIMITED and len(config.backoff_us) > config.max_deliver:
        raise ApiError(400, 10116, "max deliver is required to be > length of backoff values")
    if config.sample_freq and not _SAMPLE.fullmatch(config.sample_freq):
        raise ApiError(400, 10095, "failed to parse consumer sampling configuration")
    if config.is_push:
        _check_push(config, fields)
    else:
        _check_pull(config)


def _check_start(config: ConsumerConfig) -> None:
    policy = config.deliver_policy
    by_sequence, by_time = DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME
    why = ""
    if policy is by_sequence and not config.start_sequence:
        why = "deliver by start sequence, but optional start sequence is not set"
    elif policy is by_time and config.start_time_us is None:
        why = "deliver by start time, but optional start time is not set"
    elif policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        why = "deliver last per subject, but optional filter subject is not set"
    elif policy is not by_sequence and config.start_sequence:
        why = f"deliver {policy.value.replace('_', ' ')}, but optional start sequence is also set"
    elif policy is not by_time and config.start_time_us is not None:
        why = f"deliver {policy.value.replace('_', ' ')}, but optional start time is also set"
    if why:
        raise ApiError(400, 10094, f"consumer delivery policy is {why}")


def _check_push(config: ConsumerConfig, fields: dict[str, Any]) -> None:
    subject = config.deliver_subject.decode()
    try:
        check_pattern(subject)
    except (InvalidRequestError, UnicodeEncodeError):
        raise ApiError(400, 10112, "invalid push consumer deliver subject") from None
    if is_pattern(subject):
        raise ApiError(400, 10079, "consumer deliver subject has wildcards")
    if len(config.deliver_group) > NAME_LENGTH_MAX:
        raise ApiError(500, 10052, f"deliver_group has at most {NAME_LENGTH_MAX} bytes")
    if fields.get("max_waiting"):
        raise ApiError(400, 10080, "consumer in push mode can not set max waiting")
    if config.heartbeat_us and config.heartbeat_us < HEARTBEAT_US_MIN:
        raise ApiError(400, 10083, "consumer idle heartbeat needs to be >= 100ms")
    if config.flow_control and not config.heartbeat_us:
        raise ApiError(400, 10108, "consumer with flow control also needs heartbeats")


def _check_pull(config: ConsumerConfig) -> None:
    if config.heartbeat_us:
        raise ApiError(400, 10088, "consumer idle heartbeat requires a push based consumer")
    if config.flow_control:
        raise ApiError(400, 10089, "consumer flow control requires a push based consumer")
    if config.deliver_group:
        raise ApiError(400, 10052, "deliver_group is for push consumers")
    if config.max_waiting > WAITING_MAX:
        raise ApiError(400, 10052, f"max_waiting is at most {WAITING_MAX}")
    if 0 < config.max_expires_us < _US:
        raise ApiError(400, 10115, "consumer max request expires needs to be >= 1ms")


_FIXED: Final = (
    ("is_push", "deliver subject"),
    ("deliver_policy", "deliver policy"), ("start_sequence", "start sequence"),
    ("start_time_us", "start time"), ("start_time_ns", "start time"), ("ack_policy", "ack policy"),
    ("mem_storage", "memory storage"), ("heartbeat_us", "heart beats"),
    ("flow_control", "flow control"), ("max_waiting", "max waiting"),
)  # fmt: skip


def altered(before: ConsumerConfig, after: ConsumerConfig) -> ConsumerConfig:
    """The configuration of a consumer that is updated. Raises ApiError for what must stay."""
    for field, label in _FIXED:
        if getattr(before, field) != getattr(after, field):
            raise ApiError(500, 10012, f"{label} can not be updated")
    if before.is_durable and not after.is_durable:
        # Its default is for consumers that nobody keeps: a position would be lost by it.
        after = replace(after, inactive_us=before.inactive_us)
    return replace(after, is_durable=before.is_durable, creator=before.creator)


# Pulls.

_WISH_BYTES: Final = 200
"""Longer requests are not kept."""
_RESUMED_BATCH: Final = 100
"""What `"batch": 0` of a reader means that waits. nats.js asks so after it has begun its ordered
consumer anew: it still counts on the 100 messages that it asked the one before for. With fewer it
would wait until it misses heartbeats."""


def pull_of(payload: bytes, reply: bytes, now_us: MonotonicUs) -> Pull:
    """Parse CONSUMER.MSG.NEXT. Raises ApiError: its description is the status to send."""
    asked = _wish(payload) if len(payload) <= _WISH_BYTES else _wish.__wrapped__(payload)
    batch, size, expires_us, no_wait, heartbeat_us = asked
    expires = MonotonicUs(now_us + max(0, expires_us)) if expires_us else None
    return Pull(reply, batch, size, expires, no_wait, heartbeat_us)


@lru_cache(maxsize=256)
def _wish(payload: bytes) -> tuple[int, int, int, bool, int]:
    """Batch, bytes, microseconds until it expires (negative: it is over, as of a client that counts
    what is left of its time), whether it does not wait, heartbeat. A client asks with the same
    words again and again. Raises ApiError."""
    text = payload.strip()
    if text.isdigit() and len(text) < 10:
        return int(text) or 1, 0, 0, False, 0
    try:
        body = body_of(payload)
        for field in ("group", "min_pending", "min_ack_pending", "priority", "id"):
            if body.get(field):
                raise bad_request_error(f"{field} is not supported")
        expires_us = ns_us(body, "expires") or min(0, _ns(body, "expires"))
        no_wait = flag(body, "no_wait")
        size, heartbeat_us = number(body, "max_bytes"), ns_us(body, "idle_heartbeat")
        nothing = _RESUMED_BATCH if "batch" in body and expires_us and heartbeat_us else 1
        batch = number(body, "batch", 1_000_000) or nothing
        if expires_us >= 0 and 2 * _ns(body, "idle_heartbeat") > _ns(body, "expires"):
            raise bad_request_error("heartbeat value too large")
    except ApiError as error:
        raise ApiError(400, 10003, f"Bad Request - {error.description}") from None
    return batch, size, expires_us, no_wait, heartbeat_us
