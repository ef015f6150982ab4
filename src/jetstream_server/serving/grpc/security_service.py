"""The `Security` service: tokens and ACL rules. guard.py decides before who may call it."""

from __future__ import annotations

import asyncio
import secrets

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import WallUs
from jetstream_server.clocks import WallClock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import (
    COMMIT_LEVEL,
    QUICK_HASH_LEVEL,
    WRITE_LEVEL,
    AddAcl,
    BootstrapSecurity,
    RemoveAcl,
    RevokeToken,
)
from jetstream_server.metadata.state.commands import CreateToken as CreateTokenCommand
from jetstream_server.metadata.state.operations import check_feature
from jetstream_server.security import token_text
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.acl import (
    CLUSTER_OPERATIONS,
    AclRule,
    Operation,
    check_principal,
    deciding_rule,
    denying_rule,
)
from jetstream_server.security.state import Token
from jetstream_server.serving.grpc.grpc_loop import Call


class SecurityService:
    """See the module."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        access: AccessControl,
        wall_clock: WallClock,
    ) -> None:
        self._metadata = metadata
        self._access = access
        self._wall_clock = wall_clock
        self._hashing = asyncio.Lock()

    async def CreateToken(
        self, request: pb.CreateTokenRequest, call: Call
    ) -> pb.CreateTokenResponse:
        return await self._make_token(CreateTokenCommand, request, call)

    async def Bootstrap(self, request: pb.BootstrapRequest, call: Call) -> pb.CreateTokenResponse:
        return await self._make_token(BootstrapSecurity, request, call)

    async def _make_token(
        self,
        command: type[CreateTokenCommand] | type[BootstrapSecurity],
        request: pb.CreateTokenRequest | pb.BootstrapRequest,
        call: Call,
    ) -> pb.CreateTokenResponse:
        principal, lifetime_us = request.principal, request.lifetime_us
        check_principal(principal)
        if not 0 <= lifetime_us <= token_text.LIFETIME_US_MAX:
            raise InvalidRequestError("a token lives for up to 100 years; 0: it does not expire")
        new = token_text.new_token(
            secrets.token_bytes(token_text.ID_BYTES + token_text.SECRET_BYTES)
        )
        hashed = await self._hash(new.text)
        now_us = self._wall_clock()
        token = Token(
            new.id, principal, hashed, now_us, WallUs(now_us + lifetime_us if lifetime_us else 0)
        )
        await self._metadata.propose(
            command(
                token_id=token.id,
                principal=token.principal,
                hash=token.hash,
                created_at_us=token.created_at_us,
                expires_at_us=token.expires_at_us,
            ),
            made_at=call.made_at,
        )
        return pb.CreateTokenResponse(token=_token(token), text=new.text)

    async def _hash(self, text: str) -> str:
        if self._metadata.registry.settings.feature_level >= QUICK_HASH_LEVEL:
            return token_text.quick_hash(text)
        salt = secrets.token_bytes(token_text.SALT_BYTES)
        async with self._hashing:  # Each hash takes 16 MiB.
            return await asyncio.to_thread(token_text.slow_hash, text, salt)

    async def ListTokens(self, request: pb.ListTokensRequest, call: Call) -> pb.ListTokensResponse:
        return pb.ListTokensResponse(
            tokens=map(_token, self._metadata.registry.security.tokens.values())
        )

    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, call: Call
    ) -> pb.RevokeTokenResponse:
        await self._metadata.propose(RevokeToken(token_id=request.id), made_at=call.made_at)
        return pb.RevokeTokenResponse()

    async def AddAcl(self, request: pb.AddAclRequest, call: Call) -> pb.AddAclResponse:
        rule = request.rule
        if rule.cursor or Operation.COMMIT in rule.operations:
            check_feature(self._metadata.registry, COMMIT_LEVEL, f"the right {Operation.COMMIT}")
        if Operation.WRITE in rule.operations:
            check_feature(self._metadata.registry, WRITE_LEVEL, f"the right {Operation.WRITE}")
        result = await self._metadata.propose(
            AddAcl(
                principal=rule.principal,
                operations=tuple(rule.operations),
                allow=rule.allow,
                stream=rule.stream,
                subject=rule.subject,
                cursor=rule.cursor,
            ),
            made_at=call.made_at,
        )
        added = pb.AclRule()
        added.CopyFrom(rule)
        known = self._metadata.registry.security.rules.get(result["id"])
        if known is not None:
            added = _rule(known)
        return pb.AddAclResponse(rule=added, created=result["created"])

    async def ListAcls(self, request: pb.ListAclsRequest, call: Call) -> pb.ListAclsResponse:
        state = self._metadata.registry.security
        if request.principal:
            return pb.ListAclsResponse(rules=map(_rule, state.rules_of(request.principal)))
        return pb.ListAclsResponse(rules=map(_rule, state.rules.values()))

    async def RemoveAcl(self, request: pb.RemoveAclRequest, call: Call) -> pb.RemoveAclResponse:
        await self._metadata.propose(RemoveAcl(rule_id=request.id), made_at=call.made_at)
        return pb.RemoveAclResponse()

    async def TestAcl(self, request: pb.TestAclRequest, call: Call) -> pb.TestAclResponse:
        """Test a right. Testing the rights of others needs the right to change rules."""
        principal = request.principal or call.identity.principal
        if principal != call.identity.principal:
            self._access.check(call.identity, Operation.SECURITY_ALTER)
        try:
            operation = Operation(request.operation)
        except ValueError:
            known = ", ".join(Operation)
            raise InvalidRequestError(f"there is no such operation: use one of {known}") from None
        if (operation in CLUSTER_OPERATIONS) is bool(request.stream):
            where = "the cluster: name no stream" if request.stream else "streams: name one"
            raise InvalidRequestError(f"{operation} is an operation on {where}")
        if request.cursor and operation is not Operation.COMMIT:
            raise InvalidRequestError(f"cursors are for the operation {Operation.COMMIT}")
        state = self._metadata.registry.security
        rules = state.rules_of(principal)
        subject = request.subject or self._subject_of(request.stream, call)
        decided = state.effective(operation), request.stream, subject, request.cursor
        allowing = deciding_rule(rules, *decided)
        rule = allowing or denying_rule(rules, *decided)
        return pb.TestAclResponse(
            allowed=allowing is not None,
            rule=None if rule is None else _rule(rule),
            security_off=not self._access.enabled,
        )

    def _subject_of(self, name: str, call: Call) -> str:
        """The subject of the stream of that name, if there is just one that the caller may know."""
        if not name:
            return ""
        known = [
            stream.subject
            for stream in self._metadata.registry.streams_named(name)
            if self._access.allows(call.identity, Operation.DESCRIBE, stream)
        ]
        if len(known) != 1:
            raise InvalidRequestError(f"say which subject: {len(known)} streams are named {name!r}")
        return known[0]


def _token(token: Token) -> pb.Token:
    """The token without its hash."""
    return pb.Token(
        id=token.id,
        principal=token.principal,
        created_at_us=token.created_at_us,
        expires_at_us=token.expires_at_us,
    )


def _rule(rule: AclRule) -> pb.AclRule:
    return pb.AclRule(
        id=rule.id,
        principal=rule.principal,
        operations=rule.operations,
        allow=rule.allow,
        stream=rule.stream,
        subject=rule.subject,
        cursor=rule.cursor,
    )
