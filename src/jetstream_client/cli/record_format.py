r"""`fetch --format`: the format of each record, with the letters of kcat.

    %o  offset                        %h  headers, as name=value,name=value
    %s  value; %v too                 %S  size of the value in bytes, -1 for a tombstone
    %k  key                           %K  size of the key, -1: none
    %t  name of the stream; %N too    %T  timestamp in milliseconds since 1970
    %u  subject                       %d  timestamp, as 2026-01-31T12:00:00.000000Z
    %%  a percent sign

Escapes: \n \t \r \0 \\ and \xHH. Nothing is added: a line needs its \n. Nothing is written for a
missing key or value. Fields are written as they are stored, byte for byte; on a terminal, control
characters are shown as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from jetstream_client.cli.output import printable, shown
from jetstream_client.reading.messages import Message
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.times import timestamp_text

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)

Field = Callable[[Message], bytes]


def _size(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _headers(message: Message) -> bytes:
    headers = message.headers
    pairs = [f"{name}={value}" for name in headers for value in headers.get_all(name)]
    return ",".join(pairs).encode("utf-8", "surrogateescape")


_FIELDS: dict[str, Field] = {
    "o": lambda message: b"%d" % message.offset,
    "s": lambda message: message.value or b"",
    "v": lambda message: message.value or b"",
    "S": lambda message: _size(message.value),
    "k": lambda message: message.key or b"",
    "K": lambda message: _size(message.key),
    "h": _headers,
    "t": lambda message: message.stream.encode(),
    "N": lambda message: message.stream.encode(),
    "u": lambda message: message.subject.encode("utf-8", "surrogateescape"),
    "d": lambda message: timestamp_text(message.timestamp).encode(),
    "T": lambda message: b"%d" % (message.timestamp_us // 1000),
}
_ELSEWHERE = {
    "p": "%p is the partition in kcat, and a stream is one: %s is the value, %t the stream's name"
}
"""Letters of kcat that mean nothing here."""


class RecordFormat:
    """A format, parsed. Raises InvalidRequestError for a letter or an escape that it does not know.

    for_terminal: control characters in fields become escapes.
    """

    def __init__(self, text: str, *, for_terminal: bool = False) -> None:
        self._parts: list[bytes | Field] = [_part(match) for match in _TOKEN.finditer(text)]
        self._for_terminal = for_terminal

    def __call__(self, message: Message) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else self._field(part(message)) for part in self._parts
        )

    def _field(self, field: bytes) -> bytes:
        return printable(shown(field)).encode() if self._for_terminal else field


def _part(match: re.Match[str]) -> bytes | Field:
    letter, code, escape, text = match.groups()
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    if code is not None:
        return bytes.fromhex(code)
    if letter == "%":
        return b"%"
    if letter is not None and letter in _FIELDS:
        return _FIELDS[letter]
    if escape is not None and escape in _ESCAPES:
        return _ESCAPES[escape]
    if letter in _ELSEWHERE:
        raise InvalidRequestError(f"invalid format: {_ELSEWHERE[letter]}")
    raise InvalidRequestError(
        f"invalid format at {match.group()!r}: fields are %{' %'.join(_FIELDS)} %%, "
        r"escapes \n \t \r \0 \\ \xHH"
    )
