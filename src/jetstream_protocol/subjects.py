"""NATS subjects and patterns: validity, matching, overlap.

A subject is tokens joined by dots. In a pattern, `*` stands for one token and `>`, as the last
token, for one or more. All functions are pure. Ingest compiles patterns once.
"""

from __future__ import annotations

import re

from jetstream_protocol.errors import InvalidRequestError

SUBJECT_BYTES_MAX = 1024  # nats-server's default max_control_line is 4096, for the whole line.

# NATS allows any byte but white space and NUL; control characters would garble logs and terminals.
_TOKEN = re.compile(r"[^\s\x00-\x20\x7f.]+")

CONTROL_BYTES = bytes([*range(0x20), 0x7F])
"""nats-server lets some of them through. Clients that take one for white space lose their place."""

_READABLE = bytes(0x3F if each <= 0x20 or each == 0x7F else each for each in range(256))

RESERVED = ("$SYS.>", "$JS.>", "_INBOX.>")
"""Subjects of NATS's own traffic: a stream that overlaps one must not acknowledge."""

INGEST_SUBJECTS = "_INGEST.>"
"""First token of the subjects on which publishers choose the stream of a keyed group. A message is
stored under the rest of its subject."""


def ingest_prefix(group: str, partition: int) -> str:
    """The prefix with which publishers choose the partition of a keyed group. A dot in the group's
    name is written as %2E, so that the name is one token."""
    return f"_INGEST.{group.replace('.', '%2E')}.{partition}."


def check_pattern(subject: str) -> None:
    """Raise InvalidRequestError unless `subject` is a NATS subject or pattern."""
    if not isinstance(subject, str):
        raise TypeError(f"a subject must be one str, not {type(subject).__name__}")
    tokens = subject.split(".")
    if len(subject.encode("utf-8", "surrogatepass")) > SUBJECT_BYTES_MAX:
        raise InvalidRequestError(f"subject is longer than {SUBJECT_BYTES_MAX} bytes")
    for position, token in enumerate(tokens):
        if not _TOKEN.fullmatch(token) or not token.isprintable():
            raise InvalidRequestError(
                f"invalid subject {subject!r}: tokens between dots must not be empty and must not "
                "contain white space or control characters"
            )
        if token == ">" and position != len(tokens) - 1:
            raise InvalidRequestError(f"invalid subject {subject!r}: '>' must be the last token")


def check_literal(subject: str) -> None:
    """Raise InvalidRequestError unless `subject` is valid and has no wildcard."""
    check_pattern(subject)
    if is_pattern(subject):
        raise InvalidRequestError(f"cannot publish to {subject!r}: it contains a wildcard")


def has_control_bytes(subject: bytes) -> bool:
    return len(subject.translate(None, CONTROL_BYTES)) != len(subject)


def readable(subject: bytes) -> bytes:
    """The subject of a stored record as any NATS client can read it: `?` for each character that
    no subject may have. Earlier versions stored such ones, and backups may hold them."""
    return subject.translate(_READABLE)


def is_pattern(subject: str) -> bool:
    return any(token in ("*", ">") for token in subject.split("."))


def example_pattern(subject: str) -> str:
    """What a stream that is to hear `subject` could listen on: all that begins with the same token,
    or the subject itself if it has only one, because `a.>` does not match `a`."""
    first, dot, _ = subject.partition(".")
    return f"{first}.>" if dot else subject


def matches(pattern: str, subject: str) -> bool:
    """Whether a message published on the literal `subject` reaches a subscriber of `pattern`."""
    wanted = pattern.split(".")
    given = subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(w in ("*", g) for w, g in zip(wanted, given, strict=False))


def overlaps(left: str, right: str) -> bool:
    """Whether some literal subject matches both patterns."""
    a, b = left.split("."), right.split(".")
    for x, y in zip(a, b, strict=False):
        if x == ">" or y == ">":
            return True
        if x != y and x != "*" and y != "*":
            return False
    return len(a) == len(b)


def covers(outer: str, inner: str) -> bool:
    """Whether every literal subject that matches the pattern `inner` matches `outer` as well."""
    a, b = outer.split("."), inner.split(".")
    for position, token in enumerate(a):
        if position >= len(b):
            return False
        if token == ">":
            return True
        if b[position] == ">" or token not in ("*", b[position]):
            return False
    return len(a) == len(b)


def to_regex(pattern: str) -> bytes:
    """A bytes regex that matches exactly the literal subjects that `pattern` matches."""
    parts = []
    for token in pattern.split("."):
        if token == "*":
            parts.append(rb"[^.]+")
        elif token == ">":
            parts.append(rb".+")
        else:
            parts.append(re.escape(token.encode()))
    return rb"\.".join(parts)
