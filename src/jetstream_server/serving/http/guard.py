"""Checks the sender's rights before every HTTP request by the table of rules
(security/requirements.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.net.tls import of_certificate
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.security.requirements import PATHS, Scope
from jetstream_server.serving.caller_certificate import shown_by

SAY_WHO = "say who you are: Authorization: Bearer TOKEN"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request, for a call in its name. authorization: the header; "": there is none.
    peer: the address, for the audit log."""

    authorization: str = field(repr=False)
    peer: str

    @property
    def token(self) -> str:
        """The token of the header; "": it has none, but for example a node's proof."""
        scheme, _, token = self.authorization.partition(" ")
        token = token.strip()
        is_token = scheme.lower() == "bearer" and token.isascii() and token.isprintable()
        return token if is_token else ""


def sender_of(request: web.Request) -> Sender:
    return Sender(request.headers.get("Authorization", ""), _identity_of(request).peer)


async def admit(access: AccessControl, request: web.Request, path: str) -> None:
    """Raise UnauthenticatedError or PermissionDeniedError if the sender may not request the path.

    path: as in the table. Below /v1/ and /api/v1/ a token is needed, and the RPCs decide, which are
    called in the sender's name. They also note changes in the audit log. **safety** Who sends a
    body must be known before it is waited for: there is room for few at a time.
    """
    if not access.enabled:
        return
    rule = PATHS.get(path)
    if rule is None:
        raise PermissionDeniedError(f"no rule says who may request {path}: nobody may")
    if rule.scope is Scope.PUBLIC:
        return
    if rule.scope is Scope.RPCS:
        sender = sender_of(request)
        if not sender.token:
            raise access.unauthenticated_error(sender.peer, path, SAY_WHO)
        if request.body_exists:
            stranger = Identity(ANONYMOUS.principal, sender.peer)
            await access.identify_token(sender.token, method=path, shown=stranger)
        return
    assert rule.operation is not None
    identity = await access.identify(
        request.headers.get("Authorization", ""), method=path, shown=_identity_of(request)
    )
    if identity.is_node or identity.is_bootstrap:
        raise access.node_denied_error(identity, path)
    access.check(identity, rule.operation)


def _identity_of(request: web.Request) -> Identity:
    transport = request.transport
    if transport is None:
        return ANONYMOUS
    peer = transport.get_extra_info("peername")
    certificate = of_certificate(transport.get_extra_info("peercert"))
    return shown_by(certificate, f"{peer[0]}:{peer[1]}" if peer else "")
