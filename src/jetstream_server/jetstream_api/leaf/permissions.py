"""What the NATS server lets this link send.

**safety** NATS closes a whole link for one message to a subject that its user may not publish to.
Clients choose the subjects of answers, so each is compared here before it is written. NATS
announces the permissions after the login; without any, everything is allowed.

Subscriptions need no such care: all of ours are patterns, and NATS filters what a pattern would
bring that the user may not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jetstream_protocol.subjects import SUBJECT_BYTES_MAX, to_regex

_LITERAL = re.compile(rb"[^\x00-\x20\x7f*>.]+(?:\.[^\x00-\x20\x7f*>.]+)*")
_SERVICE_REPLY = b"_R_."
"""Replies that NATS makes for services of other accounts: always allowed."""
_GATEWAY_PREFIX = re.compile(rb"_GR_\.[^.]{6}\.[^.]{6}\.")
"""NATS puts it before replies of other clusters: what follows is compared."""


def is_literal(subject: bytes) -> bool:
    """Whether something can be published to it. A reply with white space would hold a second
    protocol line."""
    return len(subject) <= SUBJECT_BYTES_MAX and _LITERAL.fullmatch(subject) is not None


def plain_reply(reply: bytes) -> bytes:
    """The reply as the client gave it, as far as that is known: b"" for one that NATS has made for
    another account."""
    prefix = _GATEWAY_PREFIX.match(reply)
    plain = reply if prefix is None else reply[prefix.end() :]
    return b"" if plain.startswith(_SERVICE_REPLY) else plain


class Permissions:
    """The subjects to which a link may send, as INFO announces them in `export`."""

    __slots__ = ("_allowed", "_denied")

    def __init__(self, announced: object = None) -> None:
        """announced: `export`; None: everything is allowed."""
        rules = announced if isinstance(announced, Mapping) else {}
        self._allowed = _matcher(rules.get("allow"))
        self._denied = _matcher(rules.get("deny"))

    def may_send(self, subject: bytes) -> bool:
        plain = plain_reply(subject)
        if not plain:
            return True
        if self._allowed is not None and not self._allowed.fullmatch(plain):
            return False
        return self._denied is None or not self._denied.fullmatch(plain)


def _matcher(patterns: Any) -> re.Pattern[bytes] | None:
    """None: there are no such rules."""
    if not isinstance(patterns, Iterable) or isinstance(patterns, str | bytes):
        return None
    found = [to_regex(each) for each in patterns if isinstance(each, str) and each]
    return re.compile(b"|".join(b"(?:%b)" % each for each in found), re.DOTALL) if found else None
