"""The identity of a caller: a principal, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_server.security.state import Token


@dataclass(frozen=True, slots=True)
class Identity:
    """principal: `user:NAME`, `node:ID`, or `anonymous`. peer: the caller's address, for the audit
    log. token: the evidence, valid as long as the metadata holds it; None: the evidence is not a
    token. is_bootstrap: an operator on the machine of a node, with the cluster's credential. key:
    the token's id, else the principal.
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
"""Every caller while security is off. With security on: callers that are not identified."""
