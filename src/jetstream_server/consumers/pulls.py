"""The pulls that wait at one consumer: who gets the next message, and how each one ends. Pure.

Every pull ends by its last message or by a status: clients wait for one of them. The texts are
compared by clients, letter by letter (docs/jetstream_api.md).

Invariants.
* A pull gets at most what it asked for. Pulls are served in turn, one message each.
* After its end a pull gets nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.config import ConsumerConfig

HEARTBEAT: Final = "100 Idle Heartbeat"
NO_MESSAGES: Final = "404 No Messages"
REQUEST_TIMEOUT: Final = "408 Request Timeout"
BATCH_COMPLETED: Final = "409 Batch Completed"
CONSUMER_DELETED: Final = "409 Consumer Deleted"
EXCEEDS_MAX_BYTES: Final = "409 Message Size Exceeds MaxBytes"
EXCEEDED_MAX_WAITING: Final = "409 Exceeded MaxWaiting"
PUSH_BASED: Final = "409 Consumer is push based"
NO_RESPONDERS: Final = "503"

WAITING_MAX: Final = 4096
"""Pulls at one consumer, whatever it is configured for. Each costs some 300 bytes."""
PULLS_MAX: Final = 100_000
"""Pulls at all consumers of a node."""


class Status(NamedTuple):
    """A message without a record. to: the inbox. text: code and text. headers: more of them."""

    to: bytes
    text: str
    headers: dict[str, object] = {}  # noqa: RUF012  never changed


@dataclass(slots=True, eq=False)
class Pull:
    """A request for messages. left: how many more. bytes_left: 0: any. expires_us: None: it waits
    as long as its inbox exists. sent_us: when it was last sent anything."""

    reply: bytes
    left: int
    bytes_left: int = 0
    expires_us: MonotonicUs | None = None
    no_wait: bool = False
    heartbeat_us: int = 0
    sent_us: MonotonicUs = MonotonicUs(0)
    delivered: int = 0
    is_heard: bool = False
    """Whether its inbox was known to have a subscriber."""
    bytes_max: int = field(init=False)
    """What it has asked for; 0: any."""

    def __post_init__(self) -> None:
        self.bytes_max = self.bytes_left

    @property
    def open_headers(self) -> dict[str, object]:
        return {"Nats-Pending-Messages": self.left, "Nats-Pending-Bytes": self.bytes_left}

    @property
    def next_us(self) -> MonotonicUs | None:
        """When it ends, or is to be sent a heartbeat; None: never."""
        if not self.heartbeat_us:
            return self.expires_us
        beats_us = MonotonicUs(self.sent_us + self.heartbeat_us)
        return beats_us if self.expires_us is None else min(self.expires_us, beats_us)

    def ended(self, text: str) -> Status:
        """The status that ends it early: clients count on what is still open."""
        return Status(self.reply, text, self.open_headers)


class PullRoom:
    """How many pulls wait at all consumers of a node, and how many may."""

    def __init__(self, most: int = PULLS_MAX) -> None:
        self.most = most
        self.taken = 0


class Pulls:
    """See the module."""

    def __init__(self, room: PullRoom | None = None) -> None:
        """room: shared by the consumers of a node."""
        self._waiting: deque[Pull] = deque()
        self._room = room or PullRoom()
        self._counted = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Pull]:
        return iter(self._waiting)

    def add(self, pull: Pull, config: ConsumerConfig, now_us: MonotonicUs) -> Status | None:
        """Have a pull wait; or the status that refuses it."""
        wait_us = 0 if pull.expires_us is None else pull.expires_us - now_us
        if config.is_push:
            return Status(pull.reply, PUSH_BASED)
        if config.max_batch and pull.left > config.max_batch:
            return _exceeded(pull, f"MaxRequestBatch of {config.max_batch}")
        if config.max_expires_us and (not wait_us or wait_us > config.max_expires_us):
            return _exceeded(pull, f"MaxRequestExpires of {duration_text(config.max_expires_us)}")
        if config.max_bytes and pull.bytes_left > config.max_bytes:
            return _exceeded(pull, f"MaxRequestMaxBytes of {config.max_bytes}")
        is_full = len(self._waiting) >= min(config.max_waiting, WAITING_MAX)
        if is_full or self._room.taken >= self._room.most:
            # Clients with heartbeats back off when they miss them.
            return None if pull.heartbeat_us else Status(pull.reply, EXCEEDED_MAX_WAITING)
        pull.sent_us = now_us
        self._waiting.append(pull)
        self._count()
        return None

    def _count(self) -> None:
        self._room.taken += len(self._waiting) - self._counted
        self._counted = len(self._waiting)

    def first(self) -> Pull | None:
        """Whose turn it is."""
        return self._waiting[0] if self._waiting else None

    def bring_forward(self, takes: Callable[[Pull], bool]) -> bool:
        """Have it be the turn of one that takes a message now. Returns whether there is one."""
        for _ in range(len(self._waiting)):
            if takes(self._waiting[0]):
                return True
            self._waiting.rotate(-1)
        return False

    def withdraw(self, reply: bytes) -> None:
        """Forget the pull of this inbox."""
        self._waiting = deque(pull for pull in self._waiting if pull.reply != reply)
        self._count()

    def fits(self, size: int) -> list[Status]:
        """End the pulls, in their turn, for which a message of that size is too large."""
        ended = []
        while self._waiting and self._waiting[0].bytes_max:
            if size <= self._waiting[0].bytes_left:
                break
            ended.append(self._waiting.popleft().ended(EXCEEDS_MAX_BYTES))
        self._count()
        return ended

    def served(self, size: int, now_us: MonotonicUs) -> Status | None:
        """Note that the first pull was sent a message. The next one has its turn."""
        pull = self._waiting.popleft()
        pull.left -= 1
        pull.delivered += 1
        pull.sent_us = now_us
        if pull.bytes_max:
            pull.bytes_left = max(0, pull.bytes_left - size)
            if not pull.bytes_left:
                pull.left = 0
        if pull.left:
            self._waiting.append(pull)
            return None
        self._count()
        if pull.bytes_max:
            return Status(pull.reply, BATCH_COMPLETED, pull.open_headers)
        return None

    @property
    def only_inbox(self) -> tuple[bytes, int]:
        """The inbox that all messages go to for now, and how many it may be sent; b"": there are
        several inboxes, or the length of the messages matters."""
        if not self._waiting:
            return b"", 0
        reply, left = self._waiting[0].reply, 0
        for pull in self._waiting:
            if pull.reply != reply or pull.bytes_max:
                return b"", 0
            left += pull.left
        return reply, left

    def only_inbox_served(self, count: int, now_us: MonotonicUs) -> None:
        """Note that the only inbox was sent so many messages."""
        while count:
            pull = self._waiting[0]
            part = min(count, pull.left)
            pull.left -= part
            pull.delivered += part
            count -= part
            if not pull.left:
                self._waiting.popleft()
        for pull in self._waiting:
            pull.sent_us = now_us
        self._count()

    def end_some(self, ends: Callable[[Pull], str]) -> list[Status]:
        """End the pulls to which `ends` gives a status; "": they go on waiting."""
        ended, kept = [], deque[Pull]()
        for pull in self._waiting:
            text = ends(pull)
            if text:
                ended.append(pull.ended(text))
            else:
                kept.append(pull)
        if ended:
            self._waiting = kept
            self._count()
        return ended

    def expired(self, now_us: MonotonicUs) -> list[Status]:
        """End the pulls whose time is over."""

        def ends(pull: Pull) -> str:
            is_over = pull.expires_us is not None and pull.expires_us <= now_us
            return REQUEST_TIMEOUT if is_over else ""

        return self.end_some(ends)

    def nothing_left(self) -> list[Status]:
        """End the pulls that do not wait for more: there is nothing now."""

        def ends(pull: Pull) -> str:
            waits = not pull.no_wait or (pull.expires_us is not None and not pull.delivered)
            return "" if waits else NO_MESSAGES

        found = self.end_some(ends)
        return [Status(each.to, each.text) for each in found]

    def unheard(self, is_heard: Callable[[bytes], bool]) -> list[Pull]:
        """Take out the pulls whose inbox had a subscriber, and has none any more."""
        if not any(pull.is_heard for pull in self._waiting):
            return []
        return self.take(lambda pull: pull.is_heard and not is_heard(pull.reply))

    def take(self, is_wanted: Callable[[Pull], bool]) -> list[Pull]:
        """Take out pulls, which end in another way."""
        found, kept = list[Pull](), deque[Pull]()
        for pull in self._waiting:
            (found if is_wanted(pull) else kept).append(pull)
        self._waiting = kept
        self._count()
        return found

    def heartbeats(self, now_us: MonotonicUs) -> list[bytes]:
        """The inboxes that are to be sent a heartbeat now."""
        due = []
        for pull in self._waiting:
            if pull.heartbeat_us and pull.sent_us + pull.heartbeat_us <= now_us:
                pull.sent_us = now_us
                due.append(pull.reply)
        return due

    def next_us(self) -> MonotonicUs | None:
        """When the next one ends, or is to be sent a heartbeat; None: never."""
        times = [pull.next_us for pull in self._waiting]
        return min((each for each in times if each is not None), default=None)


def _exceeded(pull: Pull, what: str) -> Status:
    return Status(pull.reply, f"409 Exceeded {what}")


def duration_text(us: int) -> str:
    """As Go writes durations: 1s, 1.5s, 2m0s, 100ms."""
    if us < 1_000_000:
        return f"{us / 1000:g}ms"
    minutes, rest = divmod(us, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + seconds
