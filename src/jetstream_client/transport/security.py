"""Who may do what: tokens and ACL rules."""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.values.access import AclDecision, AclRule, NewToken, Operation, Token
from jetstream_client.values.checks import check_number, check_text, text_or_empty
from jetstream_client.values.durations import Seconds, to_us
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.times import to_datetime


class AsyncSecurity(AsyncMethods):
    """A part of `AsyncClient`. Every call repeats itself where that is safe; see `control`."""

    async def create_token(self, principal: str, *, lifetime: Seconds | None = None) -> NewToken:
        """Create a token for a principal, `user:NAME`. Only the returned value has its text.

        lifetime: seconds or a timedelta, after which the token is refused; None: it does not
        expire.
        """
        # Repeated after an answer was lost, it makes another: the first one stays unknown.
        check_text("the principal", principal)
        lifetime_us = 0 if lifetime is None else to_us("lifetime", lifetime)
        if lifetime is not None and lifetime_us <= 0:
            raise InvalidRequestError("lifetime must be positive; None: the token does not expire")
        answer: pb.CreateTokenResponse = await self._calls.call(
            pb.CreateTokenRequest(principal=principal, lifetime_us=lifetime_us),
            what=f"making a token for {principal!r}",
            changes=True,
        )
        return NewToken(_token_of(answer.token), answer.text)

    async def list_tokens(self) -> list[Token]:
        """List all tokens, expired ones too, without their texts."""
        answer: pb.ListTokensResponse = await self._calls.call(
            pb.ListTokensRequest(), what="listing tokens"
        )
        return [_token_of(token) for token in answer.tokens]

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id: from now on it is refused, also on open connections."""
        check_text("the token's id", token_id)
        if token_id.startswith("jst_"):
            raise InvalidRequestError("say the token's id, not its text: `list_tokens` has it")
        await self._calls.call(
            pb.RevokeTokenRequest(id=token_id), what=f"revoking token {token_id!r}", changes=True
        )

    async def add_acl(
        self,
        principal: str,
        operations: Operation | Iterable[Operation],
        *,
        allow: bool = True,
        stream: str | None = None,
        subject: str | None = None,
        cursor: str | None = None,
    ) -> AclRule:
        """Allow (or with `allow=False` deny) a principal some operations. A deny rule wins over an
        allow rule.

        principal: `user:NAME`, or `*` for all. stream: a pattern of stream names, in which `*`
        stands for any characters. subject: a NATS pattern that must cover the stream's subject, `>`
        for all; a rule that allows `read` or `create` needs one. cursor: a pattern of names of
        cursors and consumer groups, to which `commit` is limited. Without all three the rule is for
        the cluster. Returns the rule; an equal rule that exists already is returned as
        it is.
        """
        check_text("the principal", principal)
        names = [operations] if isinstance(operations, str) else list(operations)
        for each in names:
            check_text("the operation", each)
        if stream is None and (subject is not None or cursor is not None):
            stream = "*"
        rule = pb.AclRule(
            principal=principal,
            operations=names,
            allow=allow,
            stream=text_or_empty("the stream", stream),
            subject=text_or_empty("the subject", subject),
            cursor=text_or_empty("the cursor", cursor),
        )
        answer: pb.AddAclResponse = await self._calls.call(
            pb.AddAclRequest(rule=rule), what=f"adding an ACL rule for {principal!r}", changes=True
        )
        return _rule_of(answer.rule)

    async def list_acls(self, principal: str | None = None) -> list[AclRule]:
        """List the ACL rules; with a principal only those that hold for it, `*` included."""
        request = pb.ListAclsRequest(principal=text_or_empty("the principal", principal))
        answer: pb.ListAclsResponse = await self._calls.call(request, what="listing ACL rules")
        return [_rule_of(rule) for rule in answer.rules]

    async def remove_acl(self, rule_id: int) -> None:
        """Remove an ACL rule by its id."""
        await self._calls.call(
            pb.RemoveAclRequest(id=check_number("the rule", rule_id)),
            what=f"removing ACL rule {rule_id}",
            changes=True,
        )

    async def test_acl(
        self,
        operation: Operation,
        *,
        stream: str | None = None,
        subject: str | None = None,
        principal: str | None = None,
        cursor: str | None = None,
    ) -> AclDecision:
        """Say whether a principal may do an operation, and which rule decides. Does nothing else.

        stream: without it the operation is on the cluster. subject: without it, the subject of the
        stream of this name. principal: by default the caller. cursor: the cursor or consumer group
        that `commit` is about.
        """
        check_text("the operation", operation)
        request = pb.TestAclRequest(
            principal=text_or_empty("the principal", principal),
            operation=operation,
            stream=text_or_empty("the stream", stream),
            subject=text_or_empty("the subject", subject),
            cursor=text_or_empty("the cursor", cursor),
        )
        answer: pb.TestAclResponse = await self._calls.call(request, what="testing the ACL rules")
        rule = _rule_of(answer.rule) if answer.HasField("rule") else None
        return AclDecision(answer.allowed, rule, not answer.security_off)


def _token_of(token: pb.Token) -> Token:
    return Token(
        token.id,
        token.principal,
        to_datetime(token.created_at_us),
        to_datetime(token.expires_at_us) if token.expires_at_us else None,
    )


def _rule_of(rule: pb.AclRule) -> AclRule:
    return AclRule(
        rule.id,
        rule.principal,
        tuple(rule.operations),
        rule.allow,
        rule.stream,
        rule.subject,
        rule.cursor,
    )
