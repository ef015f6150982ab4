"""The identity of a caller: a principal, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_server.security.state import Token


@dataclass(frozen=True, slots=True)
class Identity:
    """principal: `user:NAME`, `node:ID`, or `anonymous`. peer: where from, for the audit log.
    token: what shows it, as long as the metadata holds it; None: something else does.
    is_bootstrap: somebody on the machine of a node, with the cluster's credential. key: the token's
    id, else the principal.
    """

    principal: str
    peer: str = ""
    token: Token | None = field(default=None, repr=False)
    is_node: bool = False
    is_bootstrap: bool = False
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.token.id if self.token else self.principal)


ANONYMOUS = Identity("anonymous")
"""Everybody while security is off; with security on, callers that have not said who they are."""
