"""What a consumer is asked to do. Pure.

Durations are µs. Sequences are offsets plus one, as NATS clients count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jetstream_protocol.types import WallUs

UNLIMITED: Final = -1
ACK_WAIT_US: Final = 30_000_000
ACK_PENDING_DEFAULT: Final = 1000
ACK_PENDING_MAX: Final = 10_000
"""Open messages of one consumer, whatever it is configured for: about 100 bytes of memory each, and
6 in each stored state."""
WAITING_DEFAULT: Final = 512
FILTERS_MAX: Final = 64
BACKOFF_MAX: Final = 64
DESCRIPTION_BYTES_MAX: Final = 4096
INACTIVE_US: Final = 5_000_000
"""After so long without a client, a consumer that is not durable is deleted."""


class DeliverPolicy(StrEnum):
    """Where a new consumer begins."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class AckPolicy(StrEnum):
    """Which messages are done: those delivered, those up to an acknowledged one, those that are
    acknowledged."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """name: one token. filters: patterns; (): every message. max_deliver, max_ack_pending:
    UNLIMITED for no limit. backoff_us: (): `ack_wait_us` each time. inactive_us: 0: never deleted.
    max_batch, max_expires_us, max_bytes: of one pull; 0: any. deliver_subject: b"" for a consumer
    that is pulled from. pause_until_us: 0: not paused. start_time_ns, pause_until_ns: beyond the
    microseconds; clients compare them with what they asked for. metadata: labels of its client.
    creator: the principal whose quota it counts against; "": none."""

    name: str
    is_durable: bool = False
    description: str = ""
    deliver_policy: DeliverPolicy = DeliverPolicy.ALL
    start_sequence: int = 0
    start_time_us: WallUs | None = None
    start_time_ns: int = 0
    ack_policy: AckPolicy = AckPolicy.EXPLICIT
    ack_wait_us: int = ACK_WAIT_US
    max_deliver: int = UNLIMITED
    backoff_us: tuple[int, ...] = ()
    filters: tuple[str, ...] = ()
    has_filter_list: bool = False
    max_ack_pending: int = ACK_PENDING_DEFAULT
    max_waiting: int = WAITING_DEFAULT
    headers_only: bool = False
    max_batch: int = 0
    max_expires_us: int = 0
    max_bytes: int = 0
    deliver_subject: bytes = b""
    deliver_group: bytes = b""
    heartbeat_us: int = 0
    flow_control: bool = False
    inactive_us: int = 0
    num_replicas: int = 0
    mem_storage: bool = False
    sample_freq: str = ""
    pause_until_us: int = 0
    pause_until_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = field(default=())
    creator: str = field(default="", compare=False)

    @property
    def begins_us(self) -> WallUs:
        """Messages from then on are delivered; `start_time_us` is set."""
        assert self.start_time_us is not None
        return WallUs(self.start_time_us + bool(self.start_time_ns))

    @property
    def is_push(self) -> bool:
        return bool(self.deliver_subject)

    @property
    def acknowledges(self) -> bool:
        return self.ack_policy is not AckPolicy.NONE

    @property
    def open_max(self) -> int:
        """How many messages may be open."""
        most = self.max_ack_pending
        return ACK_PENDING_MAX if most == UNLIMITED else min(most, ACK_PENDING_MAX)

    def wait_us(self, count: int) -> int:
        """How long the delivery number `count` of a message, from 1 on, may stay open."""
        if not self.backoff_us:
            return self.ack_wait_us
        return self.backoff_us[min(count, len(self.backoff_us)) - 1]
