"""ACL rules, and the decision whether a principal may do something.

A rule allows or denies operations on streams, or on the cluster, to one principal or to all (`*`).
A stream rule has a pattern for names and one for subjects. An allow rule holds for a stream whose
name matches and whose subjects all match. A deny rule holds where the name matches and any of its
subjects does.

`commit` is about the cursors and consumer groups of a stream. A rule for it may have a pattern for
their names as well.

Deny wins. Without a rule that allows it, an operation is denied. A principal that may do anything
with a stream but `commit` may describe it, unless that is denied. Pure: depends only on the rules
passed in.

**safety** The server's own streams tell of all others, of cursors, tokens and rules. An allow rule
counts for them only if its pattern begins as their names do, or the principal may alter the
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from jetstream_protocol import subjects
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.stream_names import INTERNAL_PREFIX

EVERYBODY = "*"
ALL = "all"
PRINCIPAL_LENGTH_MAX = 255
ANY_NAME, ANY_SUBJECT = "*", ">"

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,255}")


class Operation(StrEnum):
    """What a rule may allow or deny. WRITE is about what producers send to a node itself: NATS
    decides who may publish there."""

    CREATE = "create"
    DESCRIBE = "describe"
    ALTER = "alter"
    DELETE = "delete"
    PURGE = "purge"
    READ = "read"
    WRITE = "write"
    COMMIT = "commit"
    CLUSTER_DESCRIBE = "cluster_describe"
    CLUSTER_ALTER = "cluster_alter"
    SECURITY_ALTER = "security_alter"

    __hash__ = str.__hash__  # Enum's own is written in Python; decisions are looked up by it.


CLUSTER_OPERATIONS = (
    Operation.CLUSTER_DESCRIBE,
    Operation.CLUSTER_ALTER,
    Operation.SECURITY_ALTER,
)
STREAM_OPERATIONS = tuple(each for each in Operation if each not in CLUSTER_OPERATIONS)
_EARLIER_OPERATIONS = tuple(
    each for each in STREAM_OPERATIONS if each not in (Operation.COMMIT, Operation.WRITE)
)
_NEEDS_SUBJECT = (ALL, Operation.CREATE, Operation.READ, Operation.WRITE)


@dataclass(frozen=True, slots=True)
class AclRule:
    """operations: of one kind of resource, or ("all",). stream: a pattern of names, in which `*`
    stands for any characters; "" in a rule for the cluster. subject: a NATS pattern; ""
    likewise. cursor: a pattern of the names of cursors and consumer groups, for `commit` alone; ""
    is all of them."""

    id: int
    principal: str
    operations: tuple[str, ...]
    allow: bool
    stream: str = ""
    subject: str = ""
    cursor: str = ""

    @property
    def is_for_cluster(self) -> bool:
        return not self.stream

    def says(self) -> tuple[Any, ...]:
        """Everything but the id: rules with equal content count as one rule."""
        return self.principal, self.operations, self.allow, self.stream, self.subject, self.cursor

    def names(self, operation: Operation, cursor: str = "") -> bool:
        """Whether the rule covers that operation. cursor: the one that `commit` is about."""
        if self.is_for_cluster is not (operation in CLUSTER_OPERATIONS):
            return False
        if ALL in self.operations or operation in self.operations:
            is_limited = self.cursor and operation is Operation.COMMIT
            return not is_limited or name_matches(self.cursor, cursor)
        # `commit` needs `read` besides, so it may be given for all streams, and shows none of them.
        is_known_by = any(each != Operation.COMMIT for each in self.operations)
        return operation is Operation.DESCRIBE and self.allow and is_known_by

    def holds(self, name: str, subject: str) -> bool:
        """Whether the rule applies to the stream. A rule for the cluster always applies."""
        if self.is_for_cluster:
            return True
        if self.allow:
            return name_matches(self.stream, name) and subjects.covers(self.subject, subject)
        return self.is_about(name, subject)

    def is_about(self, name: str, subject: str) -> bool:
        """Whether the rule is for some of the stream's subjects."""
        return name_matches(self.stream, name) and subjects.overlaps(self.subject, subject)

    def to_row(self) -> list[Any]:
        """The fields in their order. **safety** A cursor is left out while there is none: older
        software reads the row."""
        row = [getattr(self, each.name) for each in fields(self)]
        return row if self.cursor else row[:-1]

    @classmethod
    def from_row(cls, row: list[Any]) -> AclRule:
        rule_id, principal, operations, *others = row
        return cls(rule_id, principal, tuple(operations), *others)

    def with_commit(self) -> AclRule:
        """The rule as it must be for `commit` to be allowed where `read` was enough for it."""
        if not self.allow or Operation.READ not in self.operations or ALL in self.operations:
            return self
        return replace(self, operations=(*self.operations, Operation.COMMIT.value))


def decide(
    rules: Collection[AclRule],
    operation: Operation,
    name: str = "",
    subject: str = "",
    cursor: str = "",
) -> bool:
    """Whether the rules, all of the calling principal, allow it. name, subject: of the stream;
    "" for an operation on the cluster. cursor: the one that `commit` is about."""
    return deciding_rule(rules, operation, name, subject, cursor) is not None


def deciding_rule(
    rules: Collection[AclRule],
    operation: Operation,
    name: str = "",
    subject: str = "",
    cursor: str = "",
) -> AclRule | None:
    """The rule that allows it; None: a rule denies it, or none allows it."""
    allowing = None
    must_name = name.startswith(INTERNAL_PREFIX) and not decide(rules, Operation.CLUSTER_ALTER)
    for rule in rules:
        if rule.names(operation, cursor) and rule.holds(name, subject):
            if not rule.allow:
                return None
            if rule.stream.startswith(INTERNAL_PREFIX) or not must_name:
                allowing = allowing or rule
    return allowing


def denying_rule(
    rules: Iterable[AclRule],
    operation: Operation,
    name: str = "",
    subject: str = "",
    cursor: str = "",
) -> AclRule | None:
    """The rule that denies it; None: there is none."""
    for rule in rules:
        if not rule.allow and rule.names(operation, cursor) and rule.holds(name, subject):
            return rule
    return None


def may_exist(rules: Iterable[AclRule], operation: Operation, name: str) -> bool:
    """Whether the rules would allow it for a stream of that name on some subject."""
    return any(
        rule.allow and rule.names(operation) and name_matches(rule.stream, name) for rule in rules
    )


def check_rule(rule: AclRule, *, has_commit: bool = True) -> None:
    """Raise InvalidRequestError for a rule that makes no sense. has_commit: as in SecurityState;
    without, the words are those of older software."""
    if rule.principal != EVERYBODY:
        check_principal(rule.principal)
    of_streams = STREAM_OPERATIONS if has_commit else _EARLIER_OPERATIONS
    known = CLUSTER_OPERATIONS if rule.is_for_cluster else of_streams
    if not rule.operations:
        raise InvalidRequestError(f"say which operations: {ALL}, or of {', '.join(known)}")
    for operation in rule.operations:
        if operation != ALL and operation not in known:
            where = "the cluster" if rule.is_for_cluster else "streams"
            raise InvalidRequestError(
                f"{operation!r} is not an operation on {where}: they are {ALL}, {', '.join(known)}"
            )
    if rule.cursor and Operation.COMMIT not in rule.operations:
        raise InvalidRequestError(f"a rule with cursors must name the operation {Operation.COMMIT}")
    if rule.is_for_cluster:
        if rule.subject:
            raise InvalidRequestError("a rule with a subject needs a stream pattern, such as '*'")
        return
    _check_name_pattern("stream names", rule.stream)
    if rule.cursor:
        _check_name_pattern("names of cursors", rule.cursor)
    subjects.check_pattern(rule.subject)


def _check_name_pattern(what: str, pattern: str) -> None:
    if not _NAME_PATTERN.fullmatch(pattern):
        raise InvalidRequestError(
            f"invalid pattern of {what} {pattern!r}: use letters, digits, '_', '-', '.', "
            "and '*' for any characters"
        )


def check_subject_given(operations: Iterable[str], allow: bool, subject: str) -> None:
    """Raise InvalidRequestError if the rule must name a subject and does not: the right to create
    or read a stream, or to write to it, is a right to the messages of its subject."""
    if allow and not subject and any(each in _NEEDS_SUBJECT for each in operations):
        raise InvalidRequestError(
            "say the subject, too: the right to read, write or create a stream is one to the "
            "messages of its subject; '>' is every subject"
        )


def check_principal(principal: str) -> None:
    """Raise InvalidRequestError unless the principal has the form `user:NAME`."""
    kind, _, name = principal.partition(":")
    if kind != "user" or not name or name != name.strip() or not name.isprintable():
        raise InvalidRequestError(f"invalid principal {principal[:100]!r}: write user:NAME")
    if len(principal) > PRINCIPAL_LENGTH_MAX:
        raise InvalidRequestError(f"a principal has at most {PRINCIPAL_LENGTH_MAX} characters")


def name_matches(pattern: str, name: str) -> bool:
    return pattern in (ANY_NAME, name) or _compile(pattern).fullmatch(name) is not None


@lru_cache(4096)
def _compile(pattern: str) -> re.Pattern[str]:
    # Match each part as early as possible: then nothing is tried again, for any number of `*`.
    first, *rest = (re.escape(part) for part in re.sub(r"\*+", "*", pattern).split("*"))
    if not rest:
        return re.compile(first)
    *middle, last = rest
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + f".*{last}", re.DOTALL)
