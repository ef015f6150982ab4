"""What the replicas of one node share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetstream_server.clocks import MonotonicClock, WallClock
from jetstream_server.log.config import LogConfig
from jetstream_server.log.flusher import Flusher
from jetstream_server.replication.failures import Failures
from jetstream_server.replication.listeners import Listeners, ProgressListener

if TYPE_CHECKING:
    from jetstream_server.replication.replica import Replica


@dataclass(slots=True)
class Services:
    """See the module. `ReplicaManager` makes it, and changes it."""

    flusher: Flusher
    wall_clock: WallClock
    monotonic_clock: MonotonicClock
    log_config: LogConfig
    """Of the node. What a stream's settings add to it is in core/log_config.py."""
    failures: Failures
    call_later: Callable[..., object]
    """`loop.call_later`: takes seconds and a function."""
    flush_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the end of each flush."""
    listeners: Listeners = field(default_factory=Listeners)
    progress: dict[ProgressListener, None] = field(default_factory=dict)
    """Called in this order. A follower's connection is in it while it lasts."""
    dirty: dict[Replica, None] = field(default_factory=dict)
    """Flush `interval`: what was appended to since the last round."""
    full_reason: str = ""
    """Why every append is refused; "": appends are accepted."""
