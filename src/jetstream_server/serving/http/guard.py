"""Checks the sender's rights before every HTTP request, in one place."""

from __future__ import annotations

from aiohttp import web

from jetstream_server.net.tls import of_certificate
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.serving.certificates import shown_by


async def admitted(
    access: AccessControl, request: web.Request, path: str, operation: Operation | None
) -> Identity:
    """Who sends it. operation: on the cluster; None: everybody may. Raises UnauthenticatedError or
    PermissionDeniedError."""
    shown = _shown(request)
    if not access.enabled or operation is None:
        return shown
    identity = await access.identify(
        request.headers.get("Authorization", ""), method=path, shown=shown
    )
    if identity.is_node or identity.is_bootstrap:
        raise access.denied_to_nodes(identity, path)
    access.check(identity, operation)
    return identity


def _shown(request: web.Request) -> Identity:
    transport = request.transport
    if transport is None:
        return ANONYMOUS
    peer = transport.get_extra_info("peername")
    certificate = of_certificate(transport.get_extra_info("peercert"))
    return shown_by(certificate, f"{peer[0]}:{peer[1]}" if peer else "")
