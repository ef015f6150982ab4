"""Checks the sender's rights before every HTTP request by the table of rules
(security/requirements.py)."""

from __future__ import annotations

from aiohttp import web

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.net.tls import of_certificate
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.security.requirements import PATHS, Scope
from jetstream_server.serving.certificates import shown_by


async def admit(access: AccessControl, request: web.Request, path: str) -> None:
    """Raise UnauthenticatedError or PermissionDeniedError if the sender may not request the path.

    path: as in the table. Below /api/v1/ the RPCs decide, which are called in the sender's name.
    They also note changes in the audit log.
    """
    if not access.enabled:
        return
    rule = PATHS.get(path)
    if rule is None:
        raise PermissionDeniedError(f"no rule says who may request {path}: nobody may")
    if rule.scope in (Scope.PUBLIC, Scope.RPCS):
        return
    assert rule.operation is not None
    identity = await access.identify(
        request.headers.get("Authorization", ""), method=path, shown=_shown(request)
    )
    if identity.is_node or identity.is_bootstrap:
        raise access.denied_to_nodes(identity, path)
    access.check(identity, rule.operation)


def _shown(request: web.Request) -> Identity:
    transport = request.transport
    if transport is None:
        return ANONYMOUS
    peer = transport.get_extra_info("peername")
    certificate = of_certificate(transport.get_extra_info("peercert"))
    return shown_by(certificate, f"{peer[0]}:{peer[1]}" if peer else "")
