"""The subscriptions that a NATS connection restores on every server. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.ingest.nats.delivery import Delivery

OnDelivery = Callable[[Delivery], None]
OnRefusal = Callable[[int, PermissionDeniedError | None], None]
"""Called with the sid when the NATS server refuses a subscription, and with None when that is over:
NATS has accepted it after all, or the connection that refused it is gone."""


@dataclass(slots=True, eq=False)
class Subscription:
    """The subscription of one listener to the messages of a subject.

    With a `prefix` it covers a second subject too: the prefix followed by the first one, outside of
    the queue group, under the sid after `sid`. Both begin and end together.

    ping_number: how many PINGs its link had sent before its SUB; a later PONG confirms it.
    is_asked: its SUB was sent on the present link, and has not been refused since.
    refusal: why NATS refuses it; None: it does not, as far as is known.
    """

    sid: int
    subject: str
    queue_group: str
    on_delivery: OnDelivery
    on_refusal: OnRefusal | None
    prefix: str = ""
    draining: bool = False
    ping_number: int = 0
    is_asked: bool = False
    refusal: PermissionDeniedError | None = None

    @property
    def longest_line(self) -> int:
        """Length of the longest line that its server has to read, in bytes."""
        return max(map(len, self.sub_line().split(b"\r\n")))

    def sub_line(self) -> bytes:
        group = f" {self.queue_group}" if self.queue_group else ""
        line = f"SUB {self.subject}{group} {self.sid}\r\n"
        if self.prefix:
            line += f"SUB {self.prefix}{self.subject} {self.sid + 1}\r\n"
        return line.encode()

    def unsub_line(self) -> bytes:
        line = b"UNSUB %d\r\n" % self.sid
        return line + b"UNSUB %d\r\n" % (self.sid + 1) if self.prefix else line

    def deliver(self, delivery: Delivery) -> None:
        """Pass on the delivery. Subjects under the prefix are passed on without it."""
        if delivery.sid != self.sid:
            delivery.remove_prefix(len(self.prefix.encode()))
        self.on_delivery(delivery)


class Subscriptions:
    """All subscriptions by sid, in the order they were made. A sid is never used twice."""

    __slots__ = ("_by_second_sid", "_by_sid", "_last_sid")

    def __init__(self) -> None:
        self._by_sid: dict[int, Subscription] = {}
        self._by_second_sid: dict[int, Subscription] = {}
        self._last_sid = 0

    def __len__(self) -> int:
        return len(self._by_sid)

    def add(
        self,
        subject: str,
        queue_group: str,
        on_delivery: OnDelivery,
        on_refusal: OnRefusal | None,
        prefix: str = "",
    ) -> Subscription:
        subscription = Subscription(
            self._last_sid + 1, subject, queue_group, on_delivery, on_refusal, prefix
        )
        self._last_sid += 1
        self._by_sid[subscription.sid] = subscription
        if prefix:
            self._last_sid += 1
            self._by_second_sid[self._last_sid] = subscription
        return subscription

    def get(self, sid: int) -> Subscription | None:
        """The subscription whose first or second sid this is."""
        return self._by_sid.get(sid) or self._by_second_sid.get(sid)

    def remove(self, sid: int) -> Subscription | None:
        """Remove a subscription by its first sid."""
        self._by_second_sid.pop(sid + 1, None)
        return self._by_sid.pop(sid, None)

    def clear(self) -> None:
        self._by_sid.clear()
        self._by_second_sid.clear()

    def all(self) -> list[Subscription]:
        return list(self._by_sid.values())

    def active(self) -> list[Subscription]:
        """The subscriptions that the server should have."""
        return [each for each in self._by_sid.values() if not each.draining]

    def concerned_by(
        self, complaint: PermissionsViolation, pongs_received: int
    ) -> list[Subscription]:
        """The subscriptions that an -ERR refuses. NATS names the subject, not the sid."""
        return [
            each
            for each in self._by_sid.values()
            if complaint.concerns(each, is_next=each.ping_number == pongs_received)
        ]


_QUOTED: Final = r'"((?:[^"\\]|\\.)*)"'
_VIOLATION: Final = re.compile(
    rf"permissions violation for (subscription to|publish to) {_QUOTED}(?: using queue {_QUOTED})?",
    re.IGNORECASE,
)
_UNNAMED: Final = ("maximum subscriptions exceeded", "invalid subject")
"""NATS does not say which subscription it refuses: it is the one that it answers next."""


class PermissionsViolation(NamedTuple):
    """An -ERR that concerns subjects, not the connection.

    subscription: it concerns a subscription, not a publish. subject, queue_group: None for any.
    """

    subscription: bool
    subject: str | None
    queue_group: str | None

    def concerns(self, each: Subscription, *, is_next: bool) -> bool:
        """is_next: whether the next PONG is the one after its SUB."""
        if not self.subscription:
            return False
        if self.subject is None:
            return is_next
        if each.prefix and self.subject == each.prefix + each.subject:
            return not self.queue_group
        return each.subject == self.subject and self.queue_group in (None, each.queue_group)


def parse_permissions_violation(text: str) -> PermissionsViolation | None:
    """Parse an -ERR; None if it is of another kind."""
    if text.lower().startswith(_UNNAMED):
        return PermissionsViolation(True, None, None)
    match = _VIOLATION.match(text)
    if match is None:
        return None
    kind, subject, queue_group = match.groups()
    return PermissionsViolation(
        kind.lower().startswith("sub"), _unquoted(subject), _unquoted(queue_group)
    )


def _unquoted(text: str | None) -> str | None:
    """Undo Go's %q, as far as a subject can need it."""
    return None if text is None else re.sub(r"\\(.)", r"\1", text)


def unsub_lines(subscriptions: Iterable[Subscription]) -> bytes:
    return b"".join([each.unsub_line() for each in subscriptions])
