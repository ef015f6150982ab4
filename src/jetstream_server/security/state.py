"""The metadata group's security state, tokens and ACL rules, as one immutable value.

A change makes a new value. So a cached decision is valid as long as the value is the same object.
Token texts are not included, only their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jetstream_protocol.types import WallUs
from jetstream_server.security.acl import EVERYBODY, AclRule, Operation


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token of a principal. hash: see token_text.py. expires_at_us: 0 is never."""

    id: str
    principal: str
    hash: str = field(repr=False)
    created_at_us: WallUs
    expires_at_us: WallUs

    def is_expired(self, now_us: int) -> bool:
        return bool(self.expires_at_us) and now_us >= self.expires_at_us

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SecurityState:
    """Tokens and rules by id. Never changed in place. has_commit: whether `commit` is a right of
    its own; before, it is a part of `read`."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    rules: Mapping[int, AclRule] = field(default_factory=dict)
    has_commit: bool = False
    _by_principal: Mapping[str, tuple[AclRule, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        found: dict[str, list[AclRule]] = {}
        for rule in self.rules.values():
            found.setdefault(rule.principal, []).append(rule)
        by_principal = {principal: tuple(rules) for principal, rules in found.items()}
        object.__setattr__(self, "_by_principal", by_principal)

    def rules_of(self, principal: str) -> tuple[AclRule, ...]:
        """The rules that apply to a principal: its own and those for every principal."""
        own = self._by_principal.get(principal, ())
        return own + self._by_principal.get(EVERYBODY, ())

    def effective(self, operation: Operation) -> Operation:
        """The operation by whose rules that one is decided."""
        if operation is Operation.COMMIT and not self.has_commit:
            return Operation.READ
        return operation

    @property
    def administrators(self) -> list[str]:
        """The principals that a rule allows to change tokens and rules."""
        allowing = [
            rule.principal
            for rule in self.rules.values()
            if rule.allow and rule.names(Operation.SECURITY_ALTER)
        ]
        return sorted(dict.fromkeys(allowing))

    def with_token(self, token: Token) -> SecurityState:
        return replace(self, tokens={**self.tokens, token.id: token})

    def without_token(self, token_id: str) -> SecurityState:
        kept = {each: token for each, token in self.tokens.items() if each != token_id}
        return replace(self, tokens=kept)

    def with_rules(self, *rules: AclRule) -> SecurityState:
        return replace(self, rules={**self.rules, **{rule.id: rule for rule in rules}})

    def without_rule(self, rule_id: int) -> SecurityState:
        kept = {each: rule for each, rule in self.rules.items() if each != rule_id}
        return replace(self, rules=kept)

    def with_commit(self) -> SecurityState:
        """`commit` as a separate right, which everybody has who had it as a part of `read`."""
        rules = {rule_id: rule.with_commit() for rule_id, rule in self.rules.items()}
        return replace(self, rules=rules, has_commit=True)

    def to_dict(self) -> dict[str, Any]:
        """**safety** Before `commit` is a separate right, older software writes the same."""
        return {
            "tokens": [token.to_dict() for token in self.tokens.values()],
            "rules": [rule.to_row() for rule in self.rules.values()],
            **({"has_commit": True} if self.has_commit else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SecurityState:
        """The reverse of `to_dict`. Raises KeyError, TypeError or ValueError for values that are
        not such a state."""
        tokens = [Token(**each) for each in values["tokens"]]
        rules = [AclRule.from_row(row) for row in values["rules"]]
        return cls(
            {token.id: token for token in tokens},
            {rule.id: rule for rule in rules},
            values.get("has_commit", False),
        )
