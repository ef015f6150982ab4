"""What a client answers to a delivery: +ACK, -NAK with its delay, +WPI, +TERM, +NXT. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from jetstream_server.jetstream_api.consumer_requests import DURATION_US_MAX, ns_us
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.jetstream_api.requests import body_of


class AckSubject(NamedTuple):
    """Where a client acknowledges: $JS.ACK.<domain>.<hash>.<stream>.<consumer>.<delivered>.
    <sequence>.<consumer sequence>.<time>.<pending>.<mark>. consumer: all before <delivered>, which
    is how often the message came. mark: of this consumer: another one had the same name before."""

    consumer: bytes
    delivery: int
    sequence: int
    mark: bytes

    @classmethod
    def of(cls, subject: bytes) -> AckSubject | None:
        """None: it is of another form."""
        consumer, *tokens = subject.rsplit(b".", 6)
        if len(tokens) != 6 or not all(each.isdigit() and len(each) < 20 for each in tokens[:2]):
            return None
        return cls(consumer, int(tokens[0]), int(tokens[1]), tokens[5])


class AckKind(StrEnum):
    ACK = "+ACK"
    NAK = "-NAK"
    PROGRESS = "+WPI"
    TERM = "+TERM"
    NEXT = "+NXT"


_WITH_MORE: Final = (AckKind.NAK, AckKind.PROGRESS, AckKind.TERM, AckKind.NEXT)
"""Words after which more may follow, as nats-server takes it."""


class Ack(NamedTuple):
    """delay_us: of a NAK. rest: what follows the word: a reason, a pull."""

    kind: AckKind
    delay_us: int = 0
    rest: bytes = b""

    @classmethod
    def of(cls, payload: bytes) -> Ack | None:
        """None: not an acknowledgement."""
        if payload in (b"", b"+ACK", b"+OK"):
            return cls(AckKind.ACK)
        kind = next((each for each in _WITH_MORE if payload.startswith(each.value.encode())), None)
        if kind is None:
            return None
        rest = payload[len(kind.value) :].strip()
        return cls(kind, _delay_us(rest) if kind is AckKind.NAK else 0, rest)


_UNITS_US: Final = {
    "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "µs": 1, "ns": 0.001,
}  # fmt: skip
_GO_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,9})?(?:h|ms|m|s|us|µs|ns))+")
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)")


def _delay_us(text: bytes) -> int:
    """The delay of a NAK: {"delay": ns}, or as Go writes durations; 0 for anything else."""
    if not text:
        return 0
    if text.startswith(b"{"):
        try:
            return ns_us(body_of(text), "delay")
        except ApiError:
            return 0
    found = text.decode("utf-8", "replace")
    if not _GO_DURATION.fullmatch(found):
        return 0
    total = sum(float(count) * _UNITS_US[unit] for count, unit in _GO_PART.findall(found))
    return int(min(total, DURATION_US_MAX))
