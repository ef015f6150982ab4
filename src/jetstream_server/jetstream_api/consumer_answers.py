"""What is told of consumers, in JetStream's words; and the lines of delivered messages. Pure."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.types import WallUs
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.jetstream_api.answers import time_text
from jetstream_server.jetstream_api.delivered_lines import lines
from jetstream_server.jetstream_api.requests import api_name

_NS = 1000


def consumer_config(config: ConsumerConfig) -> dict[str, Any]:
    """The configuration with the values that hold."""
    found: dict[str, Any] = {
        "name": config.name,
        "deliver_policy": config.deliver_policy.value,
        "ack_policy": config.ack_policy.value,
        "max_deliver": config.max_deliver,
        "replay_policy": "instant",
        "num_replicas": config.num_replicas,
    }
    more: dict[str, Any] = {
        "durable_name": config.name if config.is_durable else "",
        "description": config.description,
        "opt_start_seq": config.start_sequence,
        "opt_start_time": (
            time_text(config.start_time_us, config.start_time_ns) if config.start_time_us else ""
        ),
        "ack_wait": config.ack_wait_us * _NS,
        "backoff": [each * _NS for each in config.backoff_us],
        "max_waiting": config.max_waiting,
        "max_ack_pending": config.max_ack_pending,
        "headers_only": config.headers_only,
        "max_batch": config.max_batch,
        "max_expires": config.max_expires_us * _NS,
        "max_bytes": config.max_bytes,
        "deliver_subject": config.deliver_subject.decode(),
        "deliver_group": config.deliver_group.decode(),
        "idle_heartbeat": config.heartbeat_us * _NS,
        "flow_control": config.flow_control,
        "inactive_threshold": config.inactive_us * _NS,
        "mem_storage": config.mem_storage,
        "sample_freq": config.sample_freq,
        "pause_until": (
            time_text(config.pause_until_us, config.pause_until_ns) if config.pause_until_us else ""
        ),
        "metadata": dict(config.metadata),
    }
    if config.has_filter_list:
        more["filter_subjects"] = list(config.filters)
    elif config.filters:
        more["filter_subject"] = config.filters[0]
    return found | {name: value for name, value in more.items() if value}


def consumer_info(
    consumer: Consumer, stream: str, pending: int, cluster: dict[str, Any], now_us: WallUs
) -> dict[str, Any]:
    """stream: its own name. pending: messages not yet delivered."""
    deliveries, config = consumer.deliveries, consumer.config
    floor_sequence, floor = deliveries.floor
    found = {
        "stream_name": api_name(stream),
        "name": config.name,
        "created": time_text(consumer.created_us),
        "config": consumer_config(config),
        "delivered": _pair(deliveries.sequence, deliveries.last_offset + 1, consumer.delivered_us),
        "ack_floor": _pair(floor_sequence, floor, consumer.acknowledged_us),
        "num_ack_pending": len(deliveries.open),
        "num_redelivered": deliveries.redelivered,
        "num_waiting": len(consumer.pulls),
        "num_pending": pending,
        "cluster": cluster,
        "ts": time_text(now_us),
    }
    if config.is_push and consumer.is_bound:
        found["push_bound"] = True
    if paused_us := consumer.paused_us:
        found |= {"paused": True, "pause_remaining": remaining_ns(paused_us)}
    return found


def remaining_ns(paused_us: int) -> int:
    """Of a pause, as clients can read it: their durations have 64 bits."""
    return min(paused_us * _NS, 2**63 - 1)


def _pair(sequence: int, stream_sequence: int, active_us: WallUs | None) -> dict[str, Any]:
    found: dict[str, Any] = {"consumer_seq": sequence, "stream_seq": stream_sequence}
    return found | ({"last_active": time_text(active_us)} if active_us else {})


class Lines:
    """The protocol lines of one consumer's messages, as it is configured now."""

    __slots__ = ("_before", "_behind", "_headers_only", "_queue", "config")

    def __init__(self, consumer: Consumer, domain: str, account: str, mark: str) -> None:
        """account, mark: of acknowledgements, see AckSubject. Without acknowledgements the short
        form is used, which all clients of ordered consumers understand."""
        config = self.config = consumer.config
        stream = api_name(consumer.replica.stream.name)
        if config.acknowledges:
            before = f"$JS.ACK.{domain}.{account}.{stream}.{config.name}."
            behind = f".{mark}"
        else:
            before, behind = f"$JS.ACK.{stream}.{config.name}.", ""
        self._before, self._behind = before.encode(), behind.encode()
        self._queue = config.deliver_group
        self._headers_only = config.headers_only

    def of(self, to: bytes, deliveries: list[Delivery]) -> bytes:
        """One line with its payload for each message."""
        routing, queue = (b" + ", b" " + self._queue) if self._queue else (b" ", b"")
        if self._headers_only:
            deliveries = [_without_value(each) for each in deliveries]
        return lines(deliveries, to + routing + self._before, self._behind, queue)

    def reply_length(self, delivery: Delivery) -> int:
        """Of the subject on which a message is acknowledged."""
        record, times, sequence, pending = delivery
        numbers = f"{times}.{record.sequence}.{sequence}.{record.appended_us * _NS}.{pending}"
        return len(self._before) + len(numbers) + len(self._behind)


def _without_value(delivery: Delivery) -> Delivery:
    record = delivery.record
    headers = _with_size(record.headers, len(record.value))
    return delivery._replace(record=record._replace(headers=headers, value=b""))


def _with_size(headers: bytes, size: int) -> bytes:
    block = headers.removesuffix(b"\r\n") or b"NATS/1.0\r\n"
    return block + b"Nats-Msg-Size: %d\r\n\r\n" % size
