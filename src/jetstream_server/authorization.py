"""One place that says who may do what (design 12). Every RPC and every fetch asks it first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. Until security lands everyone is `anonymous`."""

    name: str


ANONYMOUS = Principal("anonymous")


class Operation(Enum):
    CREATE = "create"
    DESCRIBE = "describe"
    ALTER = "alter"
    DELETE = "delete"
    READ = "read"
    CLUSTER_DESCRIBE = "cluster_describe"
    CLUSTER_ALTER = "cluster_alter"


Authorize = Callable[[Principal, Operation, str], None]
"""(principal, operation, resource): returns, or raises PermissionDeniedError.

resource: `name@subject` of a stream where it is known, else as the request names it; "" for the
cluster.
"""


def authorize(principal: Principal, operation: Operation, resource: str) -> None:
    """Allow everything: listeners beyond loopback need `insecure: true` until ACLs exist."""
