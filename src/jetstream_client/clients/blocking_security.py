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
        """Create a token for a principal, `user:NAME`. Only the returned value has its text.

        lifetime: seconds or a timedelta, after which the token is refused; None: it does not
        expire.
        """
        return self._thread.run(self._client.create_token(principal, lifetime=lifetime))

    def list_tokens(self) -> list[Token]:
        """List all tokens, expired ones too, without their texts."""
        return self._thread.run(self._client.list_tokens())

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id: from now on it is refused, also on open connections."""
        self._thread.run(self._client.revoke_token(token_id))

    def add_acl(
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
        return self._thread.run(
            self._client.add_acl(
                principal, operations, allow=allow, stream=stream, subject=subject, cursor=cursor
            )
        )

    def list_acls(self, principal: str | None = None) -> list[AclRule]:
        """List the ACL rules; with a principal only those that hold for it, `*` included."""
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
        cursor: str | None = None,
    ) -> AclDecision:
        """Say whether a principal may do an operation, and which rule decides. Does nothing else.

        stream: without it the operation is on the cluster. subject: without it, the subject of the
        stream of this name. principal: by default the caller. cursor: the cursor or consumer group
        that `commit` is about.
        """
        return self._thread.run(
            self._client.test_acl(
                operation, stream=stream, subject=subject, principal=principal, cursor=cursor
            )
        )
