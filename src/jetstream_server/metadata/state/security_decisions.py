"""Decides commands about tokens and ACL rules.

The class of each command (commands.py) says what it means; security/acl.py says what a rule means.
"""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError, NotFoundError, PreconditionFailedError
from jetstream_server.metadata.state.changes import SecurityChanged
from jetstream_server.metadata.state.commands import (
    AddAcl,
    BootstrapSecurity,
    CreateToken,
    RemoveAcl,
    RevokeToken,
)
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.security.acl import (
    ALL,
    ANY_NAME,
    ANY_SUBJECT,
    AclRule,
    check_principal,
    check_rule,
    check_subject_given,
)
from jetstream_server.security.state import SecurityState, Token

TOKENS_MAX = 10_000
RULES_MAX = 10_000
"""Every change copies them, and every snapshot contains them: together a few megabytes."""
TOKEN_ID_LENGTH_MAX = 64
HASH_LENGTH_MAX = 255
OPERATIONS_MAX = 16


def create_token(tables: Tables, command: CreateToken) -> Decision:
    state = tables.security
    token = _token(command)
    if state.tokens.get(token.id) == token:
        return Decision()
    return _decision_for(tables, _with_token(state, token))


def revoke_token(tables: Tables, command: RevokeToken) -> Decision:
    if command.token_id not in tables.security.tokens:
        raise NotFoundError(f"there is no token {command.token_id[:100]!r}")
    return _decision_for(tables, tables.security.without_token(command.token_id))


def add_acl(tables: Tables, command: AddAcl) -> Decision:
    state = tables.security
    if command.stream:
        check_subject_given(command.operations, command.allow, command.subject)
    operations = tuple(dict.fromkeys(command.operations))
    if len(operations) > OPERATIONS_MAX:
        raise InvalidRequestError("there are not so many operations")
    subject = command.subject or (ANY_SUBJECT if command.stream else "")
    rule = AclRule(
        tables.revision,
        command.principal,
        operations,
        command.allow,
        command.stream,
        subject,
        command.cursor,
    )
    check_rule(rule, has_commit=state.has_commit)
    for known in state.rules.values():
        if known.says() == rule.says():
            return Decision({"id": known.id, "created": False})
    if len(state.rules) >= RULES_MAX:
        raise PreconditionFailedError(f"there are {RULES_MAX} ACL rules: remove some first")
    return _decision_for(tables, state.with_rules(rule), {"id": rule.id, "created": True})


def remove_acl(tables: Tables, command: RemoveAcl) -> Decision:
    if command.rule_id not in tables.security.rules:
        raise NotFoundError(f"there is no ACL rule {command.rule_id}")
    return _decision_for(tables, tables.security.without_rule(command.rule_id))


def bootstrap_security(tables: Tables, command: BootstrapSecurity) -> Decision:
    state = tables.security
    if state.administrators:
        names = ", ".join(state.administrators)[:200]
        are = "are administrators" if len(state.administrators) > 1 else "is the administrator"
        raise PreconditionFailedError(
            f"{names} {are} already: ask there for a token; if that token is lost, see "
            "docs/security.md, The first administrator"
        )
    # A rule's id is a revision, and this command makes two rules: the second has a lower number.
    rules = (
        AclRule(tables.revision, command.principal, (ALL,), allow=True),
        AclRule(_free_id(tables), command.principal, (ALL,), True, ANY_NAME, ANY_SUBJECT),
    )
    for rule in rules:
        check_rule(rule)
    return _decision_for(tables, _with_token(state, _token(command)).with_rules(*rules))


def _free_id(tables: Tables) -> int:
    """The highest number below this revision that no rule has."""
    number = tables.revision - 1
    while number in tables.security.rules:
        number -= 1
    return number


def _token(command: CreateToken | BootstrapSecurity) -> Token:
    check_principal(command.principal)
    if not 0 < len(command.token_id) <= TOKEN_ID_LENGTH_MAX:
        raise InvalidRequestError("a token needs an id, and a short one")
    if not 0 < len(command.hash) <= HASH_LENGTH_MAX:
        raise InvalidRequestError("a token needs its hash")
    return Token(
        command.token_id,
        command.principal,
        command.hash,
        command.created_at_us,
        command.expires_at_us,
    )


def _with_token(state: SecurityState, token: Token) -> SecurityState:
    if token.id in state.tokens:
        raise PreconditionFailedError(f"there is a token {token.id!r} already")
    if len(state.tokens) >= TOKENS_MAX:
        raise PreconditionFailedError(f"there are {TOKENS_MAX} tokens: revoke some first")
    return state.with_token(token)


def _decision_for(
    tables: Tables, after: SecurityState, result: dict[str, object] | None = None
) -> Decision:
    return Decision(result or {}, (SecurityChanged(tables.security, after),))
