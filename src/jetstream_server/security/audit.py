"""The audit log: one line for every refusal and for every change of the cluster's state.

    audit  outcome=refused|done|unknown  principal=…  operation=…  resource=…  peer=…

Contains no secrets: neither tokens nor payloads are passed in. Refusals are throttled, so that
no caller fills the disk: of unknown callers by network, of a principal by what it wants to do to
what, and whence. `repeated` says how many were left out. So are positions of cursors that are
committed by hand, for each principal. The parts of one request are refused in one line
(`Refusals`). What consumers commit is not noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import structlog

from jetstream_server.log_throttle import LogThrottle
from jetstream_server.origins import origin_of_peer
from jetstream_server.security.identity import Identity

COUNTED_MAX = 1024

logger = structlog.get_logger("jetstream.audit")


class Audit:
    def __init__(self, throttle: Callable[[], LogThrottle] = LogThrottle) -> None:
        self._make = throttle
        self._refusals = _Lines(throttle())
        # By principal: none hides what another one does.
        self._moved: dict[str, _Lines] = {}
        self._denied: dict[str, _Lines] = {}
        self.authentication_failures = 0
        self.authorization_failures = 0
        self.quota_refusals = 0
        """Refusals since the server started, including those left out of the log."""

    def done(self, identity: Identity, operation: str, resource: str, **details: int) -> None:
        """Log a change. details: further fields of the line."""
        _log("done", identity, operation, resource, details)

    def in_doubt(self, identity: Identity, operation: str, resource: str, **details: int) -> None:
        """Log a change that was begun and whose outcome no caller has heard: the caller has left,
        or something has failed. Hanging up does not keep a change out of the log. details: as in
        `done`."""
        _log("unknown", identity, operation, resource, details)

    def moved(self, identity: Identity, operation: str, resource: str, offset: int) -> None:
        """Log a cursor that was moved by hand, at most one line per interval for each principal and
        resource: a program may commit its positions so, each second."""
        if not (repeated := self._lines_of(self._moved, identity).due(resource)):
            return
        self.done(identity, operation, resource, offset=offset, repeated=repeated - 1)

    def refused(
        self, identity: Identity, operation: str, resource: str, reason: str, repeated: int = 0
    ) -> None:
        """Log a refusal to a principal, at most one line per interval for the same one from the
        same network. repeated: further refusals, which this one stands for."""
        self.authorization_failures += 1 + repeated
        what = f"{operation}/{resource}/{reason}/{origin_of_peer(identity.peer)}"
        count = self._lines_of(self._denied, identity).due(what, 1 + repeated)
        if not count:
            return
        logger.warning(
            "audit",
            outcome="refused",
            principal=identity.principal,
            operation=operation,
            resource=resource,
            peer=identity.peer,
            reason=reason,
            repeated=count - 1,
        )

    def _lines_of(self, by_principal: dict[str, _Lines], identity: Identity) -> _Lines:
        """Those of the principal; the ones that were not used for longest are forgotten."""
        lines = by_principal.pop(identity.principal, None) or _Lines(self._make())
        by_principal[identity.principal] = lines
        if len(by_principal) > COUNTED_MAX:
            del by_principal[next(iter(by_principal))]
        return lines

    def over_quota(self, identity: Identity, operation: str, reason: str) -> None:
        """Log a refusal to a principal that has reached its limit."""
        self.quota_refusals += 1
        self._throttled("over_quota", identity.principal, identity.peer, operation, reason)

    def unknown(self, peer: str, operation: str, reason: str) -> None:
        """Log a refusal to a caller that is not identified."""
        self.authentication_failures += 1
        self._throttled("unauthenticated", "unknown", peer, operation, reason)

    def _throttled(self, what: str, principal: str, peer: str, operation: str, reason: str) -> None:
        """Log at most one line per interval for each principal at each address. `repeated`: how
        many were left out."""
        if not (repeated := self._refusals.due(f"{what}/{principal}/{origin_of_peer(peer)}")):
            return
        logger.warning(
            "audit",
            outcome="refused",
            principal=principal,
            operation=operation,
            peer=peer,
            reason=reason,
            repeated=repeated - 1,
        )


class _Lines:
    """Lines that somebody else can cause: one for each key in an interval, and so many in all as
    the throttle remembers. Those left out are counted by the next line of their key, or where there
    was no room by the next line."""

    def __init__(self, throttle: LogThrottle) -> None:
        self._throttle = throttle
        self._left_out: dict[str, int] = {}
        self._beyond = 0

    def due(self, key: str, count: int = 1) -> int:
        """How many this line stands for: itself, or its count, and those left out before it. 0:
        leave this one out, too."""
        if not self._throttle.has_room_for(key):
            self._beyond += count
            return 0
        left_out = self._left_out.pop(key, 0)
        if self._throttle.is_due(key):
            left_out, self._beyond = left_out + self._beyond, 0
            return left_out + count
        self._left_out[key] = left_out + count
        if len(self._left_out) > COUNTED_MAX:
            self._beyond += self._left_out.pop(next(iter(self._left_out)))
        return 0


class Refusals:
    """Refusals to the sender of one request that names many resources. A context manager: at its
    end one line is logged, with the resource that was refused first."""

    def __init__(self, audit: Audit, identity: Identity, operation: str) -> None:
        self._audit = audit
        self._identity = identity
        self._operation = operation
        self._first = ""
        self._count = 0

    def add(self, resource: str) -> None:
        self._first = self._first if self._count else resource
        self._count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._count:
            self._audit.refused(
                self._identity, self._operation, self._first, "no right", repeated=self._count - 1
            )


def _log(
    outcome: str, identity: Identity, operation: str, resource: str, details: Mapping[str, int]
) -> None:
    logger.info(
        "audit",
        outcome=outcome,
        principal=identity.principal,
        operation=operation,
        resource=resource,
        peer=identity.peer,
        **details,
    )
