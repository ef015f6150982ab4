"""Parses what a nats-server sends on a leaf link.

    LMSG subject [reply] length␍␊ payload ␍␊            LS+ subject [queue weight]␍␊   LS- …␍␊
    LMSG subject + reply queue… length␍␊ payload ␍␊     INFO, PING, PONG, +OK, -ERR as for clients
    LMSG subject | queue… length␍␊ payload ␍␊
    HMSG … header-length total-length␍␊ header-block payload ␍␊

    LMSG $JS.ACK.….mark 4␍␊+ACK␍␊: plain acknowledgements are gathered (acknowledged.py)

No I/O: `feed` takes the bytes of a read, returns the complete events and keeps the rest. What
others subscribe to (LS+, LS-) is kept in `interest`; that it has changed is an event without a
message.

Invariants.
* How the bytes are split into reads changes neither the messages nor their order.
* An event other than messages comes after every message that preceded it on the wire.
* At most one unfinished frame is kept, of PAYLOAD_BYTES_MAX or CONTROL_LINE_BYTES_MAX. Anything
  else than the protocol raises NatsProtocolError; the parser is unusable then.
"""

from __future__ import annotations

from typing import NamedTuple

from jetstream_server.ingest.nats.gathering import PAYLOAD_BYTES_MAX, length_of
from jetstream_server.ingest.nats.parser import (
    CONTROL_LINE_BYTES_MAX,
    ControlEvent,
    FrameParser,
    control_event,
    protocol_error,
)
from jetstream_server.jetstream_api.leaf.acknowledged import Acknowledged, acknowledged
from jetstream_server.jetstream_api.leaf.interest import Interest

MESSAGES_MAX = 64
"""Messages in one event: the link may end its turn between two events."""

_WITH_REPLY, _WITHOUT_REPLY = b"+", b"|"


class LeafMessage(NamedTuple):
    """reply, headers: b"" without. headers: the whole block."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


LeafMessages = list[LeafMessage | Acknowledged]
"""Empty: only `interest` has changed."""
LeafEvent = LeafMessages | ControlEvent


class LeafParser(FrameParser[LeafEvent]):
    """Use one for each link, from its first byte."""

    __slots__ = ("interest",)

    def __init__(self) -> None:
        super().__init__()
        self.interest = Interest()

    def _parse(self, data: bytes, events: list[LeafEvent]) -> tuple[int, int]:
        messages: LeafMessages = []
        position, has_changed = 0, False
        while True:
            if data.startswith(b"LMSG $JS.ACK.", position):
                plain, position = acknowledged(data, position)
                messages += [Acknowledged(*each) for each in plain]
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                break
            line, start = data[position:line_end], line_end + 2
            if line.startswith((b"LMSG ", b"HMSG ")):
                message, stop = _message(line, data, start)
                if message is None:
                    _take(messages, events)
                    if has_changed:
                        events.append([])
                    return position, stop - position
                messages.append(message)
                start = stop
                if len(messages) >= MESSAGES_MAX:
                    messages = _take(messages, events)
            elif line.startswith((b"LS+ ", b"LS- ")):
                self.interest.take(line)
                has_changed = True
            else:
                event = control_event(line)
                if event is not None:
                    messages = _take(messages, events)
                    events.append(event)
            position = start
        if len(data) - position > CONTROL_LINE_BYTES_MAX:
            raise protocol_error("control line too long", data[position:])
        _take(messages, events)
        if has_changed:
            events.append([])
        return position, 0


def _take(messages: LeafMessages, events: list[LeafEvent]) -> LeafMessages:
    """Make an event of the messages, if there are any. Returns where the next ones go."""
    if messages:
        events.append(messages)
        return []
    return messages


def _message(line: bytes, data: bytes, start: int) -> tuple[LeafMessage | None, int]:
    """The message that begins with `line`, and where it ends; None: it is not whole yet. start: of
    its payload."""
    fields = line.split(b" ")
    if fields[0] == b"LMSG" and 3 <= len(fields) <= 4 and fields[1]:  # Nearly all are such.
        length = length_of(fields[-1])
        stop = start + length
        if length >= 0 and data[stop : stop + 2] == b"\r\n":
            reply = fields[2] if len(fields) == 4 else b""
            return LeafMessage(fields[1], reply, b"", data[start:stop]), stop + 2
    verb, *fields = fields
    has_headers = verb == b"HMSG"
    lengths = 2 if has_headers else 1
    if len(fields) <= lengths or not fields[0]:
        raise protocol_error("malformed message", line)
    subject, *routing = fields[:-lengths]
    length = length_of(fields[-1])
    header_length = length_of(fields[-2]) if has_headers else 0
    if length < 0 or header_length < 0:
        raise protocol_error(
            f"malformed length, or one of more than {PAYLOAD_BYTES_MAX} bytes", line
        )
    if header_length > length:
        raise protocol_error("header block longer than its message", line)
    reply, stop = _reply(routing, line), start + length
    if stop + 2 > len(data):
        return None, stop + 2
    if data[stop : stop + 2] != b"\r\n":
        raise protocol_error("payload does not end where its length says", line)
    body = start + header_length
    return LeafMessage(subject, reply, data[start:body], data[body:stop]), stop + 2


def _reply(routing: list[bytes], line: bytes) -> bytes:
    """The reply among the fields between subject and lengths: `[reply]`, `+ reply queue…` or
    `| queue…`."""
    if len(routing) <= 1:
        return routing[0] if routing else b""
    if routing[0] == _WITH_REPLY:
        return routing[1]
    if routing[0] != _WITHOUT_REPLY:
        raise protocol_error("malformed queues", line)
    return b""
