"""Who may do what: tokens and ACL rules, as methods of `AsyncClient`."""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_client.clients.async_methods import AsyncMethods
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.security import Security
from jetstream_client.values.access import AclDecision, AclRule, NewToken, Operation, Token
from jetstream_client.values.settings import Seconds


class AsyncSecurityMethods(AsyncMethods):
    """A part of AsyncClient."""

    _control: ControlPlane

    @property
    def _security(self) -> Security:
        self._check_open()
        return Security(self._control)

    async def create_token(self, principal: str, *, lifetime: Seconds | None = None) -> NewToken:
        """Create a token for a principal, `user:NAME`. Only the returned value has its text.

        lifetime: seconds or a timedelta, after which the token is refused; None: it does not
        expire.
        """
        return await self._security.create_token(principal, lifetime)

    async def list_tokens(self) -> list[Token]:
        """List all tokens, expired ones too, without their texts."""
        return await self._security.list_tokens()

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id: from now on it is refused, also on open connections."""
        await self._security.revoke_token(token_id)

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
        return await self._security.add_acl(
            principal, operations, allow=allow, stream=stream, subject=subject, cursor=cursor
        )

    async def list_acls(self, principal: str | None = None) -> list[AclRule]:
        """List the ACL rules; with a principal only those that hold for it, `*` included."""
        return await self._security.list_acls(principal)

    async def remove_acl(self, rule_id: int) -> None:
        """Remove an ACL rule by its id."""
        await self._security.remove_acl(rule_id)

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
        return await self._security.test_acl(
            operation, stream=stream, subject=subject, principal=principal, cursor=cursor
        )
