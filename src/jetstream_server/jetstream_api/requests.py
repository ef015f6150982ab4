"""Requests of the JetStream API: which verb, which stream, and the body. Pure.

    $JS.<domain>.API.STREAM.MSG.GET.<stream>    {"last_by_subj": "orders.eu"}

Fields that are not known are ignored, as older nats-servers do; known ones of a wrong type are
refused. docs/jetstream_api.md lists them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.subjects import check_pattern
from jetstream_protocol.times import to_timestamp_us
from jetstream_protocol.types import WallUs
from jetstream_server.jetstream_api.errors import (
    ApiError,
    bad_request_error,
    invalid_json_error,
)

BODY_BYTES_MAX: Final = 256 * 1024
"""Upper bound on the body of a request: 1,024 subjects of `multi_last` fit."""

BATCH_MAX: Final = 10_000
SUBJECTS_MAX: Final = 1024
"""Upper bound on the subjects of one `multi_last`, in the request and in the answer."""

_SEQUENCE_MAX: Final = 2**63 - 1
_BEYOND_US: Final = re.compile(r"[.,][0-9]{6}([0-9]+)")

VERBS: Final = (
    "INFO",
    "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE",
    "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.GET", "STREAM.MSG.DELETE",
    "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE", "STREAM.SNAPSHOT", "STREAM.RESTORE",
    "DIRECT.GET",
    "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.INFO", "CONSUMER.NAMES",
    "CONSUMER.LIST", "CONSUMER.DELETE", "CONSUMER.PAUSE", "CONSUMER.UNPIN", "CONSUMER.RESET",
    "CONSUMER.LEADER.STEPDOWN",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE", "ACCOUNT.STREAM.MOVE",
)  # fmt: skip
"""Without CONSUMER.MSG.NEXT: no node announces it, so that NATS itself answers 503 at once."""

_TYPES: Final = {
    "INFO": "account_info",
    "STREAM.PEER.REMOVE": "stream_remove_peer",
    "CONSUMER.DURABLE.CREATE": "consumer_create",
    "SERVER.REMOVE": "meta_server_remove",
}
"""Where the type of an answer does not follow from the verb."""

_ANNOUNCED: Final = (
    "*", "STREAM.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>", "CONSUMER.CREATE.>",
    "CONSUMER.DURABLE.>", "CONSUMER.INFO.>", "CONSUMER.NAMES.>", "CONSUMER.LIST.>",
    "CONSUMER.DELETE.>", "CONSUMER.PAUSE.>", "CONSUMER.UNPIN.>", "CONSUMER.RESET.>",
    "CONSUMER.LEADER.>",
)  # fmt: skip
"""Patterns only, `*` for INFO: NATS closes a link that announces a literal subject which its user
may not have, and only filters patterns."""

QUEUE: Final = "jetstream"
"""The queue group of all nodes: one of them gets each request."""


def announcement(domain: str) -> bytes:
    """The lines by which a node announces on its leaf link what it answers."""
    return b"".join(b"LS+ %b 1\r\n" % each for each in _subjects(domain))


def withdrawal(domain: str) -> bytes:
    """The lines by which it takes that back."""
    return b"".join(b"LS- %b\r\n" % each for each in _subjects(domain))


def _subjects(domain: str) -> list[bytes]:
    """The subjects to announce, each with the queue group."""
    return [f"$JS.{domain}.API.{each} {QUEUE}".encode() for each in _ANNOUNCED]


class Request(NamedTuple):
    """verb: one of VERBS; "": another one. stream: as the client writes it, "" without. rest: the
    tokens after the stream: a subject, a consumer."""

    verb: str
    stream: str
    rest: str

    @property
    def type(self) -> str:
        """The `type` of its answer."""
        verb = self.verb or "INFO"
        name = _TYPES.get(verb) or verb.lower().replace(".", "_")
        return f"io.nats.jetstream.api.v1.{name}_response"

    @property
    def is_direct(self) -> bool:
        """Whether it is answered by messages and statuses, not by JSON."""
        return self.verb == "DIRECT.GET"


def request_of(subject: bytes, domain: str) -> Request:
    """The request that was sent to `subject`."""
    prefix = f"$JS.{domain}.API."
    text = subject.decode("utf-8", "replace")
    tokens = text[len(prefix) :].split(".") if text.startswith(prefix) else []
    for count in (3, 2, 1):
        verb = ".".join(tokens[:count])
        if verb in VERBS and count <= len(tokens):
            stream = tokens[count] if len(tokens) > count else ""
            return Request(verb, stream, ".".join(tokens[count + 1 :]))
    return Request("", "", "")


# Names: NATS's have no dots.


def api_name(name: str) -> str:
    """A stream's name as NATS clients write it."""
    return name.replace(".", "%2E")


def own_name(name: str) -> str:
    """The name of a stream that a client has written."""
    return name.replace("%2E", ".")


# Bodies.


def body_of(payload: bytes) -> dict[str, Any]:
    """The body as an object; empty for none. Raises ApiError."""
    if len(payload) > BODY_BYTES_MAX:
        raise invalid_json_error(f"a request has at most {BODY_BYTES_MAX} bytes")
    if not payload.strip():
        return {}
    try:
        found = bounded_json.loads(payload)
    except ValueError as error:
        raise invalid_json_error(str(error)[:200]) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid_json_error("a request is an object")
    return found


def check_empty(payload: bytes) -> None:
    """Raise ApiError for a body where none may be."""
    if payload.strip() not in (b"", b"{}", b"null"):
        raise ApiError(400, 10038, "expected an empty request payload")


def number(body: dict[str, Any], field: str, most: int = _SEQUENCE_MAX) -> int:
    """A field that is a whole number from 0 to `most`; 0: absent. Raises ApiError."""
    found = body.get(field)
    if found is None:
        return 0
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= 2**64 - 1:
        raise invalid_json_error(f"{field} must be a whole number that is not negative")
    return min(found, most)


def flag(body: dict[str, Any], field: str) -> bool:
    found = body.get(field)
    if found is not None and not isinstance(found, bool):
        raise invalid_json_error(f"{field} must be true or false")
    return bool(found)


def pattern(body: dict[str, Any], field: str) -> str:
    """A field that is a subject or pattern; "": absent. Raises ApiError."""
    found = body.get(field)
    return "" if found in (None, "") else _checked_subject(found, field)


def _checked_subject(found: object, field: str) -> str:
    if not isinstance(found, str):
        raise invalid_json_error(f"{field} must be a subject")
    try:
        check_pattern(found)
    except (InvalidRequestError, UnicodeEncodeError):
        raise bad_request_error(f"{field}: not a valid subject") from None
    return found


def _patterns(body: dict[str, Any], field: str) -> tuple[str, ...]:
    found = body.get(field)
    if found is None:
        return ()
    if not isinstance(found, list):
        raise invalid_json_error(f"{field} must be a list of subjects")
    if len(found) > SUBJECTS_MAX:
        raise ApiError(413, 10003, f"{field} has more than {SUBJECTS_MAX} subjects",
                       "413 Too Many Results")  # fmt: skip
    return tuple(_checked_subject(each, field) for each in found)


def time_of(body: dict[str, Any], field: str) -> WallUs | None:
    """A field that is an RFC 3339 time. Raises ApiError."""
    found = body.get(field)
    if found is None:
        return None
    try:
        return WallUs(max(0, to_timestamp_us(datetime.fromisoformat(found))))
    except (TypeError, ValueError, OverflowError, InvalidRequestError):
        raise invalid_json_error(f"{field} must be an RFC 3339 time") from None


def beyond_us_of(body: dict[str, Any], field: str) -> int:
    """The nanoseconds that a time has beyond its microseconds. Raises ApiError."""
    if not time_of(body, field):
        return 0
    found = _BEYOND_US.search(body[field])
    return int(found[1][:3].ljust(3, "0")) if found else 0


def _start_of(body: dict[str, Any]) -> WallUs | None:
    """From when messages are wanted. Raises ApiError."""
    us = time_of(body, "start_time")
    return us and WallUs(us + bool(beyond_us_of(body, "start_time")))


@dataclass(frozen=True, slots=True)
class GetRequest:
    """MSG.GET and DIRECT.GET. sequence: 0: not given. batch: 0: one message. last_subject,
    next_subject: "" not given. subjects: of `multi_last`."""

    sequence: int = 0
    last_subject: str = ""
    next_subject: str = ""
    start_time: WallUs | None = None
    batch: int = 0
    bytes_max: int = 0
    subjects: tuple[str, ...] = ()
    up_to_sequence: int = 0
    up_to_time: WallUs | None = None
    no_headers: bool = False

    @classmethod
    def of(cls, payload: bytes) -> GetRequest:
        """Parse a body. Raises ApiError, also where its fields contradict each other."""
        body = body_of(payload)
        found = cls(
            number(body, "seq"),
            pattern(body, "last_by_subj"),
            pattern(body, "next_by_subj"),
            _start_of(body),
            number(body, "batch", BATCH_MAX),
            number(body, "max_bytes"),
            _patterns(body, "multi_last"),
            number(body, "up_to_seq"),
            time_of(body, "up_to_time"),
            flag(body, "no_hdr"),
        )
        found._check()
        return found

    @property
    def is_of_the_past(self) -> bool:
        """Whether it asks for what was last at an earlier moment."""
        return bool(self.up_to_sequence) or self.up_to_time is not None

    @classmethod
    def last_of(cls, subject: str) -> GetRequest:
        return cls(last_subject=_checked_subject(subject, "subject"))

    def _check(self) -> None:
        starts = (bool(self.sequence), self.start_time is not None)
        ways = (bool(self.last_subject), bool(self.next_subject), bool(self.subjects))
        if sum(ways) > 1 or all(starts) or (self.last_subject and any(starts)):
            raise bad_request_error()
        if not any(starts) and not any(ways):
            raise ApiError(400, 10003, "bad request", "408 Empty Request")
        if self.batch and self.last_subject:
            raise bad_request_error()
        if self.is_of_the_past and not self.subjects:
            raise bad_request_error()
        if self.up_to_sequence and self.up_to_time is not None:
            raise bad_request_error()
