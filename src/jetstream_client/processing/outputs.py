"""The result of a handler, and the messages that a processing publishes: outputs and dead letters.

Both carry a message id made of the processing's name and the record's stream id and offset. So a
record that is handled again, within the `duplicate_window` of the stream that stores them, adds
nothing to it.

A dead letter that is too large is published once more without what it says about the failure at
length. If the record itself is too large, the caller gets the error.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from jetstream_client.reading.deserializers import text_of
from jetstream_client.reading.messages import Message
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.records import speaks_to_the_server
from jetstream_client.values.types import Payload, Value
from jetstream_protocol.errors import InvalidRequestError, MessageTooLargeError
from jetstream_protocol.header_names import HEADER_NAME

_PREFIX: Final = "Dead-Letter-"
STREAM: Final = _PREFIX + "Stream"
STREAM_ID: Final = _PREFIX + "Stream-Id"
OFFSET: Final = _PREFIX + "Offset"
SUBJECT: Final = _PREFIX + "Subject"
TIMESTAMP: Final = _PREFIX + "Timestamp"
PROCESS: Final = _PREFIX + "Process"
ATTEMPTS: Final = _PREFIX + "Attempts"
ERROR: Final = _PREFIX + "Error"
ERROR_MESSAGE: Final = _PREFIX + "Error-Message"
KEY: Final = _PREFIX + "Key-Base64"

_MESSAGE_MAX = 1_000
"""Characters of an error's message: NATS limits headers and value together."""


@dataclass(frozen=True, slots=True)
class Output:
    """A message that a handler returns for a record. `process` publishes it before the record
    counts as done. subject, value, key, headers: as in `publish`."""

    subject: str
    value: Value | None
    key: Payload | None = None
    headers: HeadersLike | None = field(default=None)


def outputs_of(returned: Any) -> list[Output]:
    """The outputs in what a handler returned. Raises InvalidRequestError."""
    if returned is None:
        return []
    if isinstance(returned, Output):
        return [returned]
    outputs = None
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes):
        outputs = list(returned)
    if outputs is None or not all(isinstance(each, Output) for each in outputs):
        raise InvalidRequestError(
            "a handler returns None, an Output or a list of Outputs, not "
            f"{type(returned).__name__}: what it returns is published"
        )
    return outputs


def message_id(process: str, stream_id: int, offset: int, place: object) -> str:
    """The message id of an output. place: its place among the messages of the record."""
    return f"{process}:{stream_id}:{offset}:{place}"


def dead_letter(
    message: Message,
    stream: str,
    stream_id: int,
    process: str,
    attempts: int,
    error: BaseException,
    *,
    is_short: bool = False,
) -> tuple[bytes | None, dict[str, list[str]]]:
    """Key and headers of a dead letter: the record's own, and before them where it comes from and
    why. The value stays as it is. message: as it is stored. stream: `name@subject`. is_short: leave
    out the error's text, and what an earlier dead letter of the record said.
    """
    texts = {
        STREAM: stream,
        STREAM_ID: str(stream_id),
        OFFSET: str(message.offset),
        SUBJECT: message.subject,
        TIMESTAMP: message.timestamp.isoformat(),
        PROCESS: process,
        ATTEMPTS: str(attempts),
        ERROR: f"{type(error).__module__}.{type(error).__qualname__}",
    }
    if not is_short:
        texts[ERROR_MESSAGE] = text_of(error)[:_MESSAGE_MAX]
    key: bytes | None = message.key
    if key is not None and not _passes_as_text(key):
        texts[KEY] = base64.b64encode(key).decode()
        key = None
    headers = {name: [_header_text(text)] for name, text in texts.items()}
    for name, value in message.headers.multi_items():
        is_older = name.startswith(_PREFIX)  # A dead letter that fails again: the newest is first.
        if not speaks_to_the_server(name) and not (is_short and is_older and name != KEY):
            headers.setdefault(_header_name(name), []).append(_header_text(value))
    return key, headers


async def as_it_fits(publish: Callable[[bool], Awaitable[object]]) -> None:
    """Publish a dead letter. publish: takes `is_short`. Raises what it raises."""
    try:
        await publish(False)
    except MessageTooLargeError:
        await publish(True)


def _passes_as_text(key: bytes) -> bool:
    """Whether the key can travel in a header."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return False
    return text == _header_text(text)


def _header_text(text: str) -> str:
    """The text on one line, with bytes that are not text written as escapes, so that a header can
    carry it."""
    spelled = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return " ".join(spelled.split()) if "\r" in spelled or "\n" in spelled else spelled.strip()


def _header_name(name: str) -> str:
    return "".join(sign if HEADER_NAME.fullmatch(sign) else "_" for sign in name) or "_"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, read back. message: as it is stored. stream, stream_id, record_offset, subject
    and timestamp say which record it was; process is the name of the cursor or group.
    key, headers: the record's own, without what a dead letter adds."""

    message: Message
    stream: str
    stream_id: int
    record_offset: int
    subject: str
    timestamp: datetime | None
    process: str
    attempts: int
    error: str
    error_message: str
    key: bytes | None
    headers: dict[str, list[str]]

    @property
    def retry_id(self) -> str:
        """The message id with which the record is published again."""
        return message_id(
            self.process, self.stream_id, self.record_offset, f"retry-{self.message.offset}"
        )

    def is_of(self, record: Message) -> bool:
        """Whether it is a copy of that record."""
        _, expected = dead_letter(record, "", 0, "", 0, Exception())
        headers = {name: texts for name, texts in expected.items() if not name.startswith(_PREFIX)}
        own = self.subject, self.key, self.message.value, self.headers
        return own == (record.subject, record.key, record.value, headers)


def read_dead_letter(message: Message) -> DeadLetter | None:
    """What `dead_letter` wrote; None: the record is no dead letter. Where a dead letter failed
    again, its newest headers count, and the record's subject is that of the dead letter."""
    found: dict[str, str] = {}
    headers: dict[str, list[str]] = {}
    for name, value in message.headers.multi_items():
        if name.startswith(_PREFIX):
            found.setdefault(name, value)
        elif not speaks_to_the_server(name):
            headers.setdefault(name, []).append(value)
    try:
        key = base64.b64decode(found[KEY], validate=True) if KEY in found else message.key
        return DeadLetter(
            message,
            found[STREAM],
            int(found[STREAM_ID]),
            int(found[OFFSET]),
            found[SUBJECT],
            datetime.fromisoformat(found[TIMESTAMP]) if TIMESTAMP in found else None,
            found.get(PROCESS, ""),
            int(found.get(ATTEMPTS, "1")),
            found.get(ERROR, ""),
            found.get(ERROR_MESSAGE, ""),
            key,
            headers,
        )
    except (KeyError, ValueError):
        return None
