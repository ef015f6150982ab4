"""The ends of pulls whose clients could not be told, because nobody hears their inboxes. Pure.

A leaf link that is lost takes with it what was on its way: nobody knows how much of a pull is left.
Its client waits for messages or for a status, half a minute long as a rule, until it misses
heartbeats. So the pull waits no more, and the client is told once its inbox is heard again: it asks
again at once. One that has asked by itself meanwhile is told nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT, Pull, Status
from jetstream_server.jetstream_api.heard_pulls import OF_AN_INBOX

OWED_MAX: Final = 20_000
"""By one node; the oldest are forgotten first."""
KEPT_US: Final = 60_000_000
"""How long an inbox may take to be heard again while there is a link: clients notice by missing
heartbeats before."""


class _Owed(NamedTuple):
    """pulls: of one inbox. was_heard: whether NATS tells who hears it; it does not where another
    cluster or account stands between."""

    pulls: list[Pull]
    was_heard: bool
    since_us: MonotonicUs


class OwedEnds:
    def __init__(self) -> None:
        self._owed: OrderedDict[bytes, _Owed] = OrderedDict()
        """By inbox, the oldest first."""
        self._linked_us = MonotonicUs(0)

    def __len__(self) -> int:
        return len(self._owed)

    def owe(self, pulls: Iterable[Pull], now_us: MonotonicUs) -> None:
        """Have the clients of these pulls told. Another node may have heard the same."""
        found: dict[bytes, list[Pull]] = {}
        for pull in pulls:
            found.setdefault(pull.reply, []).append(pull)
        for inbox, last in found.items():
            known = self._owed.pop(inbox, None)
            kept = known.pulls if known and len(known.pulls) >= len(last) else last
            self._owed[inbox] = _Owed(kept[-OF_AN_INBOX:], last[-1].is_heard, now_us)
            if len(self._owed) > OWED_MAX:
                self._owed.popitem(last=False)

    def asked_again(self, inbox: bytes) -> None:
        """Its client does not wait for an old pull."""
        self._owed.pop(inbox, None)

    def linked(self, now_us: MonotonicUs) -> None:
        """There is a link again: from now on clients may come back."""
        self._linked_us = now_us

    def due(self, is_heard: Callable[[bytes], bool], now_us: MonotonicUs) -> list[Status]:
        """The statuses that can be sent now, while there is a link."""
        found, kept = list[Status](), OrderedDict[bytes, _Owed]()
        for inbox, owed in self._owed.items():
            if not owed.was_heard or is_heard(inbox):
                found += [_end_of(pull) for pull in owed.pulls]
            elif now_us - max(owed.since_us, self._linked_us) < KEPT_US:
                kept[inbox] = owed
        self._owed = kept
        return found


def _end_of(pull: Pull) -> Status:
    """What was sent may be lost: all that it has asked for counts as open. Clients do not take that
    amiss."""
    messages = pull.left + pull.delivered
    headers: dict[str, object] = {"Nats-Pending-Messages": messages}
    headers["Nats-Pending-Bytes"] = pull.bytes_max
    return Status(pull.reply, REQUEST_TIMEOUT, headers)
