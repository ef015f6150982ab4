"""Tokens and ACL rules as a program sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

Operation: TypeAlias = Literal[
    "all",
    "create",
    "describe",
    "alter",
    "delete",
    "purge",
    "read",
    "write",
    "commit",
    "cluster_describe",
    "cluster_alter",
    "security_alter",
]
"""What a rule allows or denies: on streams, or (`cluster_…`, `security_alter`) on the cluster."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its text. principal: `user:NAME`. expires_at: None is never."""

    id: str
    principal: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created. text: the client sends it; it cannot be shown again."""

    token: Token
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AclRule:
    """An ACL rule. principal: `user:NAME`, or `*` for all. stream: a pattern of names, in which `*`
    stands for any characters; subject: a NATS pattern. A rule for the cluster has neither. cursor:
    a pattern of names of cursors and consumer groups, for `commit`; "" is all of them."""

    id: int
    principal: str
    operations: tuple[str, ...]
    allow: bool
    stream: str = ""
    subject: str = ""
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class AclDecision:
    """The result of `test_acl`. rule: the rule that decides; None: no rule allows the operation, so
    it is denied. enforced: whether the server checks rights; False: security is off there, and
    everybody may do everything."""

    allowed: bool
    rule: AclRule | None
    enforced: bool = True
