"""The hot loop of the NATS parser in plain Python: turns MSG and HMSG frames into deliveries.

_columns.pyx is its compiled twin, with the same interface. Both accept only whole, well-formed
messages. parser.py handles everything else: control lines, unfinished frames, errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetstream_protocol.envelope import COOKIE
from jetstream_server.ingest.nats.delivery import Delivery

PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Upper bound on header block and payload together. Not the `max_payload` of the server's INFO,
which binds only its own publishers: a message from another server of the cluster, or one to which
NATS added headers, may be longer. If such a message broke the connection, one publisher could cut
off every stream again and again. nats-server cannot be configured beyond 64 MiB."""

_LENGTHS_MAX: Final = 4096
"""How many length fields are remembered: a table look-up costs half of `int` and keeps the checks
off the hot path. Other lengths are computed."""

_COOKIE_START: Final = COOKIE[:1]
"""A byte that is not ASCII. Searching a whole read for one costs a few nanoseconds per message,
and saves checking each message."""


def length_of(digits: bytes) -> int:
    """Parse a length field; -1 when it is invalid or out of bounds."""
    if not digits.isdigit() or len(digits) > 8:
        return -1
    length = int(digits)
    return length if length <= PAYLOAD_BYTES_MAX else -1


def is_sid(sid: bytes) -> bool:
    """Whether this is a subscription id of ours: a decimal number from 1 on."""
    return sid.isdigit() and len(sid) <= 18 and not sid.startswith(b"0")


class Gathering:
    """Gathers messages by subscription, until `finish`. One per connection."""

    __slots__ = ("_gathered", "_lengths")

    def __init__(self) -> None:
        self._gathered: dict[bytes, _Gathered] = {}
        self._lengths: dict[bytes, int] = {}

    def take(self, data: bytes, position: int) -> int:
        """Gather the whole messages from `position` on. Returns the position where something else
        begins.

        Plain `find` and `split` are faster than a regex and than splitting the whole chunk.
        """
        find = data.find
        lengths = self._lengths
        may_be_enveloped = _COOKIE_START in data
        current: bytes | None = None  # No sid equals None, not even an empty one.
        delivery, add_subject, add_reply, add_value = _NOWHERE
        while True:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                return position
            fields = data[position:line_end].split(b" ")
            header_bytes = 0
            count = len(fields)
            if count == 5 and fields[0] == b"MSG":
                _, subject, sid, reply, digits = fields
            elif count == 4 and fields[0] == b"MSG":
                _, subject, sid, digits = fields
                reply = b""
            elif count == 6 and fields[0] == b"HMSG":
                _, subject, sid, reply, header_digits, digits = fields
                header_bytes = lengths.get(header_digits) or self._length(header_digits)
            elif count == 5 and fields[0] == b"HMSG":
                _, subject, sid, header_digits, digits = fields
                reply = b""
                header_bytes = lengths.get(header_digits) or self._length(header_digits)
            else:
                return position
            try:
                length = lengths[digits]
            except KeyError:
                length = self._length(digits)
            start = line_end + 2
            stop = start + length
            if data[stop : stop + 2] != b"\r\n" or not 0 <= header_bytes <= length:
                return position
            if sid != current:
                if not is_sid(sid):
                    return position
                current = sid
                delivery, add_subject, add_reply, add_value = self._gathered.get(
                    sid
                ) or self._gather(sid, may_be_enveloped)
            if header_bytes:
                if delivery.header_blocks is None:
                    delivery.header_blocks = []
                if len(delivery.header_blocks) < len(delivery.values):
                    delivery.pad_header_blocks()
                delivery.header_blocks.append(data[start : start + header_bytes])
                start += header_bytes
            add_subject(subject)
            add_reply(reply)
            add_value(data[start:stop])
            position = stop + 2

    def _length(self, digits: bytes) -> int:
        """`length_of`, with the result remembered."""
        length = length_of(digits)
        if length >= 0 and len(self._lengths) < _LENGTHS_MAX:
            self._lengths[digits] = length
        return length

    def _gather(self, sid: bytes, may_be_enveloped: bool) -> _Gathered:
        """Begin the delivery of a subscription."""
        entry = _entry(Delivery(int(sid), may_be_enveloped=may_be_enveloped))
        self._gathered[sid] = entry
        return entry

    def finish(self) -> list[Delivery]:
        """Return what was gathered, in the order of each subscription's first message, and begin
        again."""
        deliveries = [entry[0] for entry in self._gathered.values()]
        self._gathered.clear()
        for delivery in deliveries:
            delivery.pad_header_blocks()
        return deliveries


_Adder = Callable[[bytes], None]
_Gathered = tuple[Delivery, _Adder, _Adder, _Adder]
"""A delivery and the `append` of its subjects, replies and values."""


def _entry(delivery: Delivery) -> _Gathered:
    return delivery, delivery.subjects.append, delivery.replies.append, delivery.values.append


_NOWHERE: Final = _entry(Delivery(0))
"""The initial value of the hot loop's names, before the first message."""
