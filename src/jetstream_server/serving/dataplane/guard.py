"""Checks the sender of every frame by the table of rules (security/requirements.py)."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import Kind
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.security.requirements import FRAMES, Requirement, Scope


def rule_of(kind: int) -> Requirement:
    """The rule of a frame. Raises InvalidRequestError, which ends the connection, without one."""
    rule = FRAMES.get(kind)
    if rule is None:
        raise InvalidRequestError(f"no rule says who may send {Kind(kind).name}: nobody may")
    return rule


def admit(access: AccessControl, identity: Identity, kind: Kind) -> Requirement:
    """The rule of a frame that the sender may send. The right to the frame's stream must still be
    checked. identity: of a node, once it has proved that it is one.

    Raises PermissionDeniedError for a client that sends a frame of nodes, and for a node that sends
    a frame of clients.
    """
    rule = rule_of(kind)
    if not access.enabled or rule.scope is Scope.PUBLIC:
        return rule
    if identity.is_node:
        if not rule.nodes and rule.scope is not Scope.NODE:
            raise access.node_denied_error(identity, kind.name)
    elif rule.scope is Scope.NODE:
        raise access.client_denied_error(identity, kind.name)
    return rule
