"""Access control as tests need it."""

from __future__ import annotations

from jetstream_protocol.types import WallUs
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.limits import Quotas
from jetstream_server.security.state import SecurityState

STATE = SecurityState()


def open_to_all() -> AccessControl:
    """Security is off."""
    return AccessControl(
        lambda: STATE,
        lambda: WallUs(0),
        enabled=False,
        node_id=0,
        secret=b"",
        incarnation=lambda: None,
    )


def for_the_known(quotas: Quotas | None = None) -> AccessControl:
    """Security is on, and nobody has a token or a right."""
    return AccessControl(
        lambda: STATE,
        lambda: WallUs(0),
        enabled=True,
        node_id=0,
        secret=b"secret",
        incarnation=lambda: 1,
        quotas=quotas,
    )
