"""Who may do what: tokens and ACL rules, as methods of `Client`."""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.values.access import AclDecision, AclRule, NewToken, Operation, Token
from jetstream_client.values.settings import Seconds


class SecurityMethods:
    """A part of Client."""

    _client: AsyncClient
    _thread: LoopThread

    def create_token(self, principal: str, *, lifetime: Seconds | None = None) -> NewToken:
        """Make a token for a principal, `user:NAME`. Its text is in the answer and nowhere else.

        lifetime: after it the token is refused; None: it does not expire.
        """
        return self._thread.run(self._client.create_token(principal, lifetime=lifetime))

    def list_tokens(self) -> list[Token]:
        """Every token, expired ones too, without their texts."""
        return self._thread.run(self._client.list_tokens())

    def revoke_token(self, token_id: str) -> None:
        """End a token by its id: from now on it is refused, also on connections that are open."""
        self._thread.run(self._client.revoke_token(token_id))

    def add_acl(
        self,
        principal: str,
        operations: Operation | Iterable[Operation],
        *,
        allow: bool = True,
        stream: str | None = None,
        subject: str | None = None,
    ) -> AclRule:
        """Allow (or with `allow=False` deny) a principal some operations. A rule that denies wins.

        principal: `user:NAME`, or `*` for every one. stream: of names, `*` standing for any
        characters; subject: a NATS pattern that must cover the stream's, `>` for every one; a rule
        that allows `read` or `create` says it. Without both the rule is about the cluster. Adding
        what is there returns it.
        """
        return self._thread.run(
            self._client.add_acl(principal, operations, allow=allow, stream=stream, subject=subject)
        )

    def list_acls(self, principal: str | None = None) -> list[AclRule]:
        """The ACL rules; with a principal only those that hold for it, `*` included."""
        return self._thread.run(self._client.list_acls(principal))

    def remove_acl(self, rule_id: int) -> None:
        """Remove an ACL rule by its id."""
        self._thread.run(self._client.remove_acl(rule_id))

    def test_acl(
        self,
        operation: Operation,
        *,
        stream: str | None = None,
        subject: str | None = None,
        principal: str | None = None,
    ) -> AclDecision:
        """Whether a principal may do it, and the rule that decides. Nothing is done.

        stream: without it the operation is on the cluster. subject: without it that of the stream
        of this name. principal: by default the caller.
        """
        return self._thread.run(
            self._client.test_acl(operation, stream=stream, subject=subject, principal=principal)
        )
