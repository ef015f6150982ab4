"""Parses what a nats-server sends: the client's side of the NATS protocol.

    INFO {json}␍␊                                     PING␍␊   PONG␍␊   +OK␍␊   -ERR 'text'␍␊
    MSG subject sid [reply] length␍␊ payload ␍␊
    HMSG subject sid [reply] header-length total-length␍␊ header-block payload ␍␊

No I/O: `feed` takes the bytes of a socket read, returns the complete events and keeps the rest.
Messages are gathered by subscription into one `Delivery`, from which a record batch is built
(delivery.py). The loop over the messages is gathering.py, or its compiled twin.

Invariants.
* How the bytes are split into reads changes neither the deliveries nor their order within a sid.
* An event other than a delivery comes after every message that preceded it on the wire, so a PONG
  is a barrier. Between two such events deliveries come in the order of their first message.
* At most one unfinished frame is kept: 64 MiB of payload or 64 KiB of control line. Anything the
  protocol does not allow raises NatsProtocolError. The parser and its connection are then unusable,
  because the start of the next frame is unknown.
"""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

from jetstream_protocol import bounded_json
from jetstream_server.ingest.nats.compiled import compiled
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.gathering import PAYLOAD_BYTES_MAX, Gathering, is_sid, length_of

CONTROL_LINE_BYTES_MAX: Final = 64 * 1024
"""nats-server's own default is 4 KiB; INFO grows with the cluster's list of addresses."""

_MESSAGE_LINES: Final = {(b"MSG", 4), (b"MSG", 5), (b"HMSG", 5), (b"HMSG", 6)}
"""Verb and number of fields, without and with a reply."""


class NatsProtocolError(Exception):
    """The peer does not speak the NATS protocol. The connection must be closed."""


class Info(NamedTuple):
    """The server's description of itself. It is sent again when the cluster changes."""

    fields: dict[str, Any]


class Ping(NamedTuple):
    """The server wants a PONG."""


class Pong(NamedTuple):
    """The answer to our oldest unanswered PING. Everything that the server sent before it has been
    delivered."""


class ServerError(NamedTuple):
    """`-ERR`; text without its quotes."""

    text: str


ControlEvent = Info | Ping | Pong | ServerError
CONTROL_EVENTS: Final = frozenset((Info, Ping, Pong, ServerError))
Event = Delivery | ControlEvent
EventT = TypeVar("EventT")

FASTEST_GATHERING: type[Gathering] = Gathering if compiled is None else compiled.Gathering


class FrameParser(Generic[EventT]):
    """Holds an unfinished frame until it is whole. `_parse` takes the events out of bytes that
    begin with a frame."""

    __slots__ = ("_held", "_held_bytes", "_needed_bytes")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # The unfinished frame, in the pieces in which it arrived.
        self._held_bytes = 0
        self._needed_bytes = 0  # parse again only when this many bytes are held

    @property
    def held_bytes(self) -> int:
        """Length of the unfinished frame; 0 between two frames."""
        return self._held_bytes

    def feed(self, data: bytes) -> list[EventT]:
        """The events that `data` completes. Raises NatsProtocolError."""
        if self._held:
            # Join the pieces of a long payload once, when it is complete. Joining at every read
            # would be quadratic.
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._held)
            self._held.clear()
        events: list[EventT] = []
        consumed, needed = self._parse(data, events)
        self._held_bytes = len(data) - consumed
        self._needed_bytes = needed
        if self._held_bytes:
            self._held.append(data[consumed:])
        return events

    def _parse(self, data: bytes, events: list[EventT]) -> tuple[int, int]:
        """Append the events of all whole frames. Returns the bytes used, and the full length of the
        first unfinished frame (0: unknown)."""
        raise NotImplementedError


class NatsParser(FrameParser[Event]):
    """Use one for each connection, from its first byte."""

    __slots__ = ("_gathering",)

    def __init__(self, gathering: type[Gathering] = FASTEST_GATHERING) -> None:
        super().__init__()
        self._gathering = gathering()

    def _parse(self, data: bytes, events: list[Event]) -> tuple[int, int]:
        gathering = self._gathering
        position, needed = 0, 0
        while not needed:
            position = gathering.take(data, position)
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                break
            line = data[position:line_end]
            needed = _needed_bytes(line, data, line_end + 2)
            if not needed:
                event = control_event(line)
                if event is not None:
                    events += gathering.finish()
                    events.append(event)
                position = line_end + 2
        if not needed and len(data) - position > CONTROL_LINE_BYTES_MAX:
            raise protocol_error("control line too long", data[position:])
        events += gathering.finish()
        return position, needed


def _needed_bytes(line: bytes, data: bytes, start: int) -> int:
    """The full length of the message that begins with `line`; 0 for a line of another kind.

    start: of the message's payload in `data`. Only for an unfinished message. Raises
    NatsProtocolError for a malformed one.
    """
    fields = line.split(b" ")
    has_headers = fields[0] == b"HMSG"
    if (fields[0], len(fields)) not in _MESSAGE_LINES:
        return 0
    sid, digits = fields[2], fields[-1]
    length = length_of(digits)
    header_length = length_of(fields[-2]) if has_headers else 0
    if length < 0 or header_length < 0:
        raise protocol_error(
            f"malformed length, or one of more than {PAYLOAD_BYTES_MAX} bytes", line
        )
    stop = start + length
    if data[stop : stop + 2] != b"\r\n" and stop + 2 <= len(data):
        raise protocol_error("payload does not end where its length says", line)
    if header_length > length:
        raise protocol_error("header block longer than its message", line)
    if not is_sid(sid):
        raise protocol_error("malformed subscription id", sid)
    return len(line) + 2 + length + 2


def control_event(line: bytes) -> ControlEvent | None:
    """The event of a line that is not a message; None for +OK. Raises NatsProtocolError."""
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
            fields = bounded_json.loads(rest)
        except ValueError as error:
            raise NatsProtocolError(f"INFO is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise protocol_error("INFO is not a JSON object", line)
        return Info(fields)
    raise protocol_error("unknown operation", line)


def protocol_error(reason: str, found: bytes) -> NatsProtocolError:
    return NatsProtocolError(f"{reason}: {found[:64]!r}")
