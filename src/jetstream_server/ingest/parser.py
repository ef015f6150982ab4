"""What a nats-server says, from bytes to batches: the client's side of the NATS protocol.

    INFO {json}␍␊                                     PING␍␊   PONG␍␊   +OK␍␊   -ERR 'text'␍␊
    MSG subject sid [reply] length␍␊ payload ␍␊
    HMSG subject sid [reply] header-length total-length␍␊ header-block payload ␍␊

No I/O: `feed` takes whatever a socket read gave and returns what is complete, the rest is kept.
Messages are gathered by subscription into one `Delivery` of parallel lists, which is what a record
batch is built from; nothing here makes an object per message.

Invariants.
* How the bytes were split over reads never changes what is delivered, nor its order within a sid.
* An event other than a delivery comes after every message that preceded it on the wire, so a PONG
  is a barrier. Between two such events deliveries come in the order of their first message.
* At most one unfinished frame is kept: 64 MiB of payload or 64 KiB of control line. Anything the
  protocol does not allow raises NatsProtocolError; the parser must then be thrown away with its
  connection, because nothing tells where the next frame begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import repeat
from typing import Any, Final, NamedTuple

from jetstream_protocol.envelope import COOKIE

PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Header block and payload together. Not the `max_payload` of the server's INFO: that binds its own
publishers, while a message routed from a differently configured server of the cluster, or one to
which NATS added headers, may be longer. Taking it for a broken connection would let one publisher
cut every stream off, again and again. nats-server refuses to be configured beyond 64 MiB."""

CONTROL_LINE_BYTES_MAX: Final = 64 * 1024
"""nats-server's own default is 4 KiB; INFO grows with the cluster's list of addresses."""

_LENGTHS_MAX: Final = 4096
"""Lengths remembered: a table look-up is half the price of `int`, and it keeps the checks off the
hot path. Beyond this many different lengths they are computed."""


_COOKIE_START: Final = COOKIE[:1]
"""One byte that ASCII does not have: looking for it in a whole read costs a few nanoseconds a
message, and saves looking at each."""


class NatsProtocolError(Exception):
    """The peer does not speak NATS, or not to us. The connection must be closed."""


class Delivery:
    """Messages of one subscription that arrived together, as parallel lists in wire order.

    replies: b"" for messages without one. header_blocks: verbatim, from `NATS/1.0` to the empty
    line, b"" for messages without headers; None when no message had any. may_be_enveloped: whether
    a value may begin as envelopes do; no part of what is compared, for it depends on the reads.
    """

    __slots__ = ("header_blocks", "may_be_enveloped", "replies", "sid", "subjects", "values")

    def __init__(
        self,
        sid: int,
        subjects: list[bytes] | None = None,
        replies: list[bytes] | None = None,
        values: list[bytes] | None = None,
        header_blocks: list[bytes] | None = None,
        *,
        may_be_enveloped: bool = True,
    ) -> None:
        self.sid = sid
        self.may_be_enveloped = may_be_enveloped
        self.subjects: list[bytes] = [] if subjects is None else subjects
        self.replies: list[bytes] = [] if replies is None else replies
        self.values: list[bytes] = [] if values is None else values
        self.header_blocks = header_blocks

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Delivery):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Delivery(sid={self.sid}, {len(self)} messages)"


_COMPARED: Final = ("header_blocks", "replies", "sid", "subjects", "values")


class Info(NamedTuple):
    """The server's description of itself; also sent anew when the cluster changes."""

    fields: dict[str, Any]


class Ping(NamedTuple):
    """The server wants a PONG."""


class Pong(NamedTuple):
    """Answers our oldest unanswered PING; everything delivered before it came before it."""


class ServerError(NamedTuple):
    """`-ERR`; text without its quotes."""

    text: str


Event = Delivery | Info | Ping | Pong | ServerError


class NatsParser:
    """One per connection, from its first byte."""

    __slots__ = ("_held", "_held_bytes", "_lengths", "_needed_bytes")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the unfinished frame, in the pieces it came in
        self._held_bytes = 0
        self._needed_bytes = 0  # parsing again is pointless before so many are held
        self._lengths: dict[bytes, int] = {}

    @property
    def held_bytes(self) -> int:
        """Length of the unfinished frame: 0 exactly between two frames."""
        return self._held_bytes

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises NatsProtocolError."""
        if self._held:
            # Pieces of a long payload are joined once, when it is whole: joining them at every
            # read would be quadratic.
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._held)
            self._held.clear()
        events: list[Event] = []
        consumed, needed = self._parse(data, events)
        self._held_bytes = len(data) - consumed
        self._needed_bytes = needed
        if self._held_bytes:
            self._held.append(data[consumed:])
        return events

    def _parse(self, data: bytes, events: list[Event]) -> tuple[int, int]:
        """Append the events of all whole frames; returns the bytes used, and how many the first
        unfinished frame needs in all (0: unknown).

        The hot loop. Plain `find` and `split` beat a regex and splitting the chunk as a whole.
        """
        find = data.find
        lengths = self._lengths
        may_be_enveloped = _COOKIE_START in data
        end = len(data)
        position = 0
        gathered: dict[bytes, _Gathered] = {}
        current: bytes | None = None  # no sid equals it, not even an empty one
        delivery, add_subject, add_reply, add_value = _NOWHERE
        while position < end:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                break
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
                event = _control_event(data[position:line_end])
                if event is not None:
                    _finish(gathered, events)
                    current = None
                    events.append(event)
                position = line_end + 2
                continue
            try:
                length = lengths[digits]
            except KeyError:
                length = self._length(digits)
            start = line_end + 2
            stop = start + length
            if data[stop : stop + 2] != b"\r\n":
                if stop + 2 > end:
                    _finish(gathered, events)
                    return position, stop + 2 - position
                raise _refused(
                    "payload does not end where its length says", data[position:line_end]
                )
            if sid != current:
                current = sid
                delivery, add_subject, add_reply, add_value = gathered.get(sid) or _gather(
                    gathered, sid, may_be_enveloped
                )
            if header_bytes:
                if header_bytes > length:
                    raise _refused("header block longer than its message", data[position:line_end])
                if delivery.header_blocks is None:
                    delivery.header_blocks = []
                if len(delivery.header_blocks) < len(delivery.values):
                    _pad_header_blocks(delivery)
                delivery.header_blocks.append(data[start : start + header_bytes])
                start += header_bytes
            add_subject(subject)
            add_reply(reply)
            add_value(data[start:stop])
            position = stop + 2
        if end - position > CONTROL_LINE_BYTES_MAX:
            raise _refused("control line too long", data[position:])
        _finish(gathered, events)
        return position, 0

    def _length(self, digits: bytes) -> int:
        """A length field as a number: digits only, within bounds."""
        length = self._lengths.get(digits)
        if length is None:
            if not digits.isdigit() or len(digits) > 8:
                raise _refused("malformed length", digits)
            length = int(digits)
            if length > PAYLOAD_BYTES_MAX:
                raise _refused(f"message longer than {PAYLOAD_BYTES_MAX} bytes", digits)
            if len(self._lengths) < _LENGTHS_MAX:
                self._lengths[digits] = length
        return length


_Adder = Callable[[bytes], None]
_Gathered = tuple[Delivery, _Adder, _Adder, _Adder]
"""A delivery and the `append` of its subjects, replies and values."""


def _gather(gathered: dict[bytes, _Gathered], sid: bytes, may_be_enveloped: bool) -> _Gathered:
    """Begin the delivery of a subscription."""
    # Our own sids are decimal numbers: anything else was not asked for by us.
    if not sid.isdigit() or len(sid) > 18:
        raise _refused("malformed subscription id", sid)
    delivery = Delivery(int(sid), may_be_enveloped=may_be_enveloped)
    entry = (delivery, delivery.subjects.append, delivery.replies.append, delivery.values.append)
    gathered[sid] = entry
    return entry


_NOWHERE: Final = _gather({}, b"0", False)
"""What the hot loop's names are bound to before the first message."""


def _pad_header_blocks(delivery: Delivery) -> None:
    """Messages since the last one with headers had none."""
    blocks = delivery.header_blocks
    if blocks is not None:
        blocks.extend(repeat(b"", len(delivery.values) - len(blocks)))


def _finish(gathered: dict[bytes, _Gathered], events: list[Event]) -> None:
    """Hand over what was gathered."""
    for entry in gathered.values():
        _pad_header_blocks(entry[0])
        events.append(entry[0])
    gathered.clear()


def _control_event(line: bytes) -> Event | None:
    """The event of a line that is not a message; None for +OK, which tells nothing."""
    verb, _, rest = line.partition(b" ")
    if verb == b"PING":
        return Ping()
    if verb == b"PONG":
        return Pong()
    if verb == b"+OK":
        return None
    if verb == b"-ERR":
        return ServerError(rest.decode("utf-8", "backslashreplace").strip(" '"))
    if verb == b"INFO":
        try:
            fields = json.loads(rest)
        except (ValueError, RecursionError) as error:
            raise NatsProtocolError(f"INFO is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise _refused("INFO is not a JSON object", line)
        return Info(fields)
    raise _refused("unknown operation", line)


def _refused(reason: str, found: bytes) -> NatsProtocolError:
    return NatsProtocolError(f"{reason}: {found[:64]!r}")
