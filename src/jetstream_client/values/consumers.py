"""What a program is told of a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer, whose messages several readers share. stream: `name@subject`. ack_wait, backoff:
    seconds. max_deliver: 0: without end. paused_until: seconds since 1970; None: it is not paused.
    position: the next offset that is delivered for the first time. ack_floor: below it all is done.
    pending: messages not yet delivered; None: unknown, the log cannot be read. ack_pending:
    delivered and not acknowledged; redelivered: of these, more than once. waiting: pulls.
    oldest_unacknowledged: seconds since the first of those was delivered; None: there is none.
    redeliveries, given_up: since its node began to serve it. is_push: it pushes to NATS clients."""

    name: str
    stream: str
    stream_id: int
    created_us: int
    is_durable: bool
    is_push: bool
    ack_policy: str
    description: str
    filters: tuple[str, ...]
    ack_wait: float
    backoff: tuple[float, ...]
    max_deliver: int
    dead_letter: str | None
    max_ack_pending: int
    paused_until: float | None
    position: int
    ack_floor: int
    pending: int | None
    ack_pending: int
    redelivered: int
    waiting: int
    oldest_unacknowledged: float | None
    redeliveries: int
    given_up: int
