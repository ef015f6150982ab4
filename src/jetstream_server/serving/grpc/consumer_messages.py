"""Consumers in the words of gRPC. Pure.

Who publishes dead letters is the reader, which has the right to: so a consumer with a `dead_letter`
has no `max_deliver` of its own, and its labels say after how many deliveries a message is one.
Labels are kept by every version, and NATS clients see them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.subjects import check_literal, check_pattern, overlaps
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.config import (
    ACK_PENDING_MAX,
    BACKOFF_MAX,
    DESCRIPTION_BYTES_MAX,
    FILTERS_MAX,
    UNLIMITED,
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
)
from jetstream_server.consumers.consumer import Consumer

DEAD_LETTER: Final = "jetstream.dead_letter"
MAX_DELIVER: Final = "jetstream.max_deliver"
_US_PER_MS: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def check_name(name: str) -> str:
    """Return the name of a new consumer. Raises InvalidRequestError for one that would not do as a
    token of a NATS subject, or as a cursor's name in rules."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"invalid consumer name {name[:300]!r}: use 1 to 255 letters, digits, '_' and '-'"
        )
    return name


def new_config(request: pb.CreateConsumerRequest) -> ConsumerConfig:
    """Raises InvalidRequestError."""
    filters = tuple(request.filters)
    config = ConsumerConfig(
        name=check_name(request.name),
        is_durable=True,
        filters=filters,
        has_filter_list=len(filters) > 1,
    )
    if request.HasField("start_offset"):
        if request.start_offset < 0:
            raise InvalidRequestError("start_offset must not be negative")
        config = replace(
            config,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            start_sequence=request.start_offset + 1,
        )
    _check_filters(filters)
    return altered(config, request)


def _check_filters(filters: tuple[str, ...]) -> None:
    if len(filters) > FILTERS_MAX:
        raise InvalidRequestError(f"at most {FILTERS_MAX} filters")
    for at, each in enumerate(filters):
        check_pattern(each)
        if any(overlaps(each, other) for other in filters[:at]):
            raise InvalidRequestError(f"filter {each!r} overlaps another one")


def altered(config: ConsumerConfig, request: pb.CreateConsumerRequest) -> ConsumerConfig:
    """The configuration with what the request sets. Raises InvalidRequestError."""
    backoff_us = tuple(each * _US_PER_MS for each in request.backoff_ms) or config.backoff_us
    ack_wait_us = config.ack_wait_us
    if request.HasField("ack_wait_ms"):
        ack_wait_us = request.ack_wait_ms * _US_PER_MS
        backoff_us = backoff_us if request.backoff_ms else ()
    max_deliver, dead_letter = limits_of(config)
    if request.HasField("max_deliver"):
        max_deliver = request.max_deliver
    if request.HasField("dead_letter"):
        dead_letter = request.dead_letter
    _check(request, ack_wait_us, backoff_us, max_deliver, dead_letter)
    labels = {k: v for k, v in config.metadata if k not in (DEAD_LETTER, MAX_DELIVER)}
    if dead_letter:
        labels |= {DEAD_LETTER: dead_letter, MAX_DELIVER: str(max_deliver)}
    own_max = 0 if dead_letter else max_deliver
    return replace(
        config,
        description=request.description if request.HasField("description") else config.description,
        ack_wait_us=(backoff_us or (ack_wait_us,))[0],
        backoff_us=backoff_us,
        max_deliver=own_max or UNLIMITED,
        max_ack_pending=request.max_ack_pending
        if request.HasField("max_ack_pending")
        else config.max_ack_pending,
        metadata=tuple(sorted(labels.items())),
    )


def _check(
    request: pb.CreateConsumerRequest,
    ack_wait_us: int,
    backoff_us: tuple[int, ...],
    max_deliver: int,
    dead_letter: str,
) -> None:
    if min((ack_wait_us, *backoff_us)) < _US_PER_MS:
        raise InvalidRequestError("ack_wait and backoff must be at least a millisecond")
    if len(backoff_us) > BACKOFF_MAX:
        raise InvalidRequestError(f"at most {BACKOFF_MAX} steps of backoff")
    if max_deliver and len(backoff_us) > max_deliver:
        raise InvalidRequestError("backoff is longer than max_deliver")
    if dead_letter and not max_deliver:
        raise InvalidRequestError("a dead_letter needs max_deliver")
    if dead_letter:
        check_literal(dead_letter)
    if request.HasField("max_ack_pending") and not 1 <= request.max_ack_pending <= ACK_PENDING_MAX:
        raise InvalidRequestError(f"max_ack_pending must be from 1 to {ACK_PENDING_MAX}")
    if len(request.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise InvalidRequestError(f"a description has at most {DESCRIPTION_BYTES_MAX} bytes")


def check_shared(config: ConsumerConfig) -> None:
    """Raise PreconditionFailedError for a consumer whose messages are not acknowledged one by one
    by those who pull them."""
    if config.is_push or config.ack_policy is not AckPolicy.EXPLICIT:
        kind = "pushes" if config.is_push else f"has the ack policy `{config.ack_policy}`"
        raise PreconditionFailedError(
            f"consumer {config.name!r} {kind}: only one that is pulled from, with explicit "
            "acknowledgements, is shared by readers"
        )


def limits_of(config: ConsumerConfig) -> tuple[int, str]:
    """How often a message is delivered, 0 without end; and where it is published then."""
    labels = dict(config.metadata)
    most = labels.get(MAX_DELIVER, "")
    if labels.get(DEAD_LETTER) and _NUMBER.fullmatch(most):
        return int(most), labels[DEAD_LETTER]
    return max(config.max_deliver, 0), ""


def description_of(consumer: Consumer) -> pb.ConsumerDescription:
    pending = consumer.pending
    config, deliveries = consumer.config, consumer.deliveries
    max_deliver, dead_letter = limits_of(config)
    return pb.ConsumerDescription(
        name=config.name,
        created_us=consumer.created_us,
        stream=consumer.replica.stream.full_name,
        stream_id=consumer.replica.stream.id,
        is_durable=config.is_durable,
        is_push=config.is_push,
        ack_policy=config.ack_policy,
        description=config.description,
        filters=config.filters,
        ack_wait_ms=min(config.ack_wait_us // _US_PER_MS, 2**32 - 1),
        backoff_ms=[min(each // _US_PER_MS, 2**32 - 1) for each in config.backoff_us],
        max_deliver=max_deliver,
        dead_letter=dead_letter,
        max_ack_pending=config.open_max,
        paused_until_us=config.pause_until_us if consumer.paused_us else 0,
        position=deliveries.position,
        ack_floor=next(iter(deliveries.open), deliveries.position),
        pending=-1 if pending is None else pending,
        ack_pending=len(deliveries.open),
        redelivered=deliveries.redelivered,
        waiting=len(consumer.pulls),
        oldest_unacknowledged_ms=consumer.oldest_open_us // _US_PER_MS,
        redeliveries=consumer.redeliveries,
        given_up=consumer.given_up,
    )


def delivered(delivery: Delivery, *, headers_only: bool) -> pb.DeliveredMessage:
    record = delivery.record
    return pb.DeliveredMessage(
        offset=record.offset,
        appended_us=record.appended_us,
        subject=record.subject.decode("utf-8", "replace"),
        key=record.key,
        value=None if record.is_tombstone else (b"" if headers_only else record.value),
        headers=record.headers,
        deliveries=delivery.times,
    )
