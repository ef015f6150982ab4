"""The one place that identifies callers and decides on their rights, before any effect. All ports
use it.

    caller:   `identify`, from a token, a client's certificate, or a node's proof
    rights:   `allows` and `check`, at every request, against the current metadata
    changes:  `changed` ends what waits and is not allowed any more, and then the connections of
              tokens that were revoked or have expired

While security is off, every caller is `anonymous` and may do everything. Decisions are cached until
tokens or rules change. A node's proof or certificate permits calls between nodes, and nothing else.
A client's token or certificate never permits those.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from jetstream_server.clocks import MonotonicClock, WallClock, monotonic_clock
from jetstream_server.origins import origin_of_peer
from jetstream_server.security import node_proof, origin_proof
from jetstream_server.security.acl import (
    CLUSTER_OPERATIONS,
    Operation,
    decide,
    may_exist,
)
from jetstream_server.security.audit import Audit, Refusals
from jetstream_server.security.authenticator import Authenticator
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.security.limits import Limits, OpenRequests, Quotas
from jetstream_server.security.state import SecurityState
from jetstream_server.security.waits import Waits, Watch

DECISIONS_MAX = 100_000
EXPIRY_CHECK_SECONDS = 0.25
CLOSE_SECONDS, CLOSE_STEPS = 0.25, 10
"""From the end of a token to that of its connections: errors of waiting requests arrive first."""
BYTES_USUAL = 1024 * 1024
"""Length of an answer, in bytes, if the request sets no limit."""
_BEARER = "bearer "


class NamedStream(Protocol):
    """The part of a stream that a decision needs."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> str: ...


class AccessControl:
    """Belongs to the node's event loop.

    state: returns the metadata's current security state. secret: the cluster's credential.
    incarnation: returns that of this node, None before it has registered. generation: grows with
    every change; a permission of an earlier generation must be decided again.
    """

    def __init__(
        self,
        state: Callable[[], SecurityState],
        wall_clock: WallClock,
        *,
        enabled: bool,
        node_id: int,
        secret: bytes,
        incarnation: Callable[[], int | None],
        quotas: Quotas | None = None,
        monotonic_clock: MonotonicClock = monotonic_clock,
    ) -> None:
        self.quotas = quotas or Quotas()
        self._limits = Limits(self.quotas)
        self._monotonic_clock = monotonic_clock
        self.enabled = enabled
        self.audit = Audit()
        self._state = state
        self._wall_clock = wall_clock
        self._authenticator = Authenticator(state, wall_clock)
        self._node_id = node_id
        self._secret = secret
        self._incarnation = incarnation
        self._used_proofs = node_proof.UsedProofs()
        self._decided_for = state()
        self._decisions: dict[tuple[str, Operation, int, str], bool] = {}
        self._permitted: set[tuple[str, Operation, int]] = set()
        self._next_expiry: int | None = None
        self.generation = 0
        self._waits = Waits()
        self._closers: list[Callable[[], None]] = []
        self._valid: set[str] = set()  # ids of tokens, at the last change
        self._ending: set[str] = set()  # ids of those that ended since CLOSE_SECONDS

    # Identity.

    async def identify(self, authorization: str, *, method: str, shown: Identity) -> Identity:
        """The caller that `authorization` identifies; "": the one that the connection identifies.

        shown: the caller that the connection identifies. Raises UnauthenticatedError for a wrong
        `authorization`.
        """
        if not self.enabled:
            return ANONYMOUS
        if authorization.startswith(node_proof.SCHEME):
            return self._node(authorization, method, shown.peer)
        scheme, text = authorization[: len(_BEARER)], authorization[len(_BEARER) :]
        if authorization and scheme.lower() != _BEARER:
            raise self.unauthenticated_error(
                shown.peer, method, "`authorization` must be: Bearer TOKEN"
            )
        return await self.identify_token(text.strip(), method=method, shown=shown)

    async def identify_token(self, text: str, *, method: str, shown: Identity) -> Identity:
        """The owner of the token; without a token, the caller that the connection identifies.
        Raises UnauthenticatedError."""
        if not self.enabled:
            return ANONYMOUS
        if not text:
            return shown
        try:
            token = await self._authenticator.verify(text, origin_of_peer(shown.peer))
        except UnauthenticatedError as error:
            self.audit.unknown(shown.peer, method, error.message)
            raise
        return Identity(token.principal, shown.peer, token)

    def _node(self, value: str, method: str, peer: str) -> Identity:
        claim, incarnation = node_proof.claim_of(value), self._incarnation()
        if claim is None or incarnation is None:
            raise self.unauthenticated_error(peer, method, node_proof.NOT_VALID)
        is_bootstrap = claim.run == node_proof.BOOTSTRAP
        if not node_proof.check(
            self._secret,
            value,
            method,
            target=self._node_id,
            incarnation=node_proof.BOOTSTRAP if is_bootstrap else incarnation,
        ):
            raise self.unauthenticated_error(peer, method, node_proof.NOT_VALID)
        if not self._used_proofs.take(claim, self._wall_clock()):
            raise self.unauthenticated_error(
                peer, method, "the node's proof was used before, or is too old"
            )
        return Identity(
            f"node:{claim.sender}", peer, is_node=not is_bootstrap, is_bootstrap=is_bootstrap
        )

    def origin(self, value: str, authorization: str) -> str:
        """Whence a call comes that a node makes in its sender's name (origin_proof.py). "": it is
        not such a call."""
        return origin_proof.checked(self._secret, value, authorization) if value else ""

    def unauthenticated_error(self, peer: str, what: str, reason: str) -> UnauthenticatedError:
        """Note a refusal in the audit log, and return the error to raise."""
        self.audit.unknown(peer, what, reason)
        return UnauthenticatedError(reason)

    def check_current(self, identity: Identity, what: str) -> None:
        """Raise UnauthenticatedError for a caller that is not identified, or whose token was
        revoked or has expired since."""
        if not self.applies_to(identity) or self._is_current(identity):
            return
        if identity.token is not None:
            reason = f"token {identity.token.id} has expired or was revoked"
        else:
            reason = "say who you are: give a token (token=, or JETSTREAM_TOKEN)"
        raise self.unauthenticated_error(identity.peer, what, reason)

    def is_stranger(self, identity: Identity) -> bool:
        """Whether the caller would have to identify itself and has not."""
        return self.applies_to(identity) and identity.principal == ANONYMOUS.principal

    def has_ended(self, identity: Identity) -> bool:
        """Whether the caller's token was revoked or has expired, at least CLOSE_SECONDS ago."""
        token = identity.token
        if token is None or self._authenticator.is_valid(token):
            return False
        return token.id not in self._valid and token.id not in self._ending

    def _is_current(self, identity: Identity) -> bool:
        if identity.token is not None:
            return self._authenticator.is_valid(identity.token)
        return identity.principal != ANONYMOUS.principal

    # Quotas.

    def quota_holder(self, identity: Identity) -> str:
        """The principal whose quota the caller's new streams, groups and cursors count against; "":
        none."""
        return identity.principal if self._is_limited(identity) else ""

    def connected(self, identity: Identity) -> None:
        """Count a connection. If its principal has too many, raises TooManyRequestsError without
        counting it."""
        if self._is_limited(identity):
            try:
                self._limits.connected(identity.principal)
            except TooManyRequestsError as error:
                raise self.quota_error(identity, "Hello", error) from None

    def disconnected(self, identity: Identity) -> None:
        if self._is_limited(identity):
            self._limits.disconnected(identity.principal)

    def requests_of(self, identity: Identity, port: str) -> OpenRequests:
        """The open requests that the caller's quota counts on that port. Those of nodes and of
        `anonymous` have no limit."""
        if self._is_limited(identity):
            return self._limits.requests_of(identity.principal, port)
        return OpenRequests(identity.principal, sys.maxsize)

    def too_many_requests_error(
        self, identity: Identity, port: str, error: TooManyRequestsError
    ) -> JetstreamError:
        """`quota_error` for a request that `requests_of` has refused to count."""
        return self.quota_error(identity, f"request on the port {port}", error)

    def quota_error(self, identity: Identity, what: str, error: JetstreamError) -> JetstreamError:
        """Note the error in the audit log, and return it. A node's calls are not noted: the node
        does that."""
        if not identity.is_node:
            self.audit.over_quota(identity, what, error.message)
        return error

    def bytes_max(self, identity: Identity, wanted: int) -> int:
        """Upper bound on one answer, in bytes: what the principal may read in a second. wanted: 0:
        the default length."""
        rate = self.quotas.bytes_per_second
        if not rate or not self._is_limited(identity):
            return wanted
        return min(wanted or BYTES_USUAL, rate)

    def is_paced(self, identity: Identity) -> bool:
        """Whether `pace` may have to wait."""
        return bool(self.quotas.bytes_per_second) and self._is_limited(identity)

    async def pace(self, identity: Identity, stream: NamedStream, length: int) -> None:
        """Wait until the principal may be sent that many bytes more of a stream. Raises the errors
        of `check` once it may not read it any more."""
        if self.is_paced(identity):
            now = self._monotonic_clock()
            delay = self._limits.read_delay_us(identity.principal, length, now)
            if delay:
                with self.while_allowed_to_read(identity, stream):
                    await asyncio.sleep(delay / 1e6)

    def write_delay_us(self, identity: Identity, length: int) -> int:
        """Charge a batch of `length` bytes that the principal has written. Returns how long its
        next one must wait, in µs."""
        if not self._is_limited(identity):
            return 0
        now = self._monotonic_clock()
        return self._limits.write_delay_us(identity.principal, length, now)

    def _is_limited(self, identity: Identity) -> bool:
        return self.enabled and not identity.is_node and identity.principal != ANONYMOUS.principal

    # Rights.

    def applies_to(self, identity: Identity) -> bool:
        """Whether the caller needs rights: security is on, and the caller is not a node."""
        return self.enabled and not identity.is_node

    def allows(
        self,
        identity: Identity,
        operation: Operation,
        stream: NamedStream | None = None,
        cursor: str = "",
    ) -> bool:
        """Whether the principal may do it to the stream, or to the cluster if `stream` is None.
        cursor: the one, or the consumer group, that `commit` is about."""
        if not self.enabled:
            return True
        state = self._state()
        if state is not self._decided_for or len(self._decisions) > DECISIONS_MAX:
            self._decisions.clear()
            self._decided_for = state
        key = identity.principal, operation, -1 if stream is None else stream.id, cursor
        decision = self._decisions.get(key)
        if decision is None:
            rules, decided = state.rules_of(identity.principal), state.effective(operation)
            name, subject = ("", "") if stream is None else (stream.name, stream.subject)
            decision = self._decisions[key] = decide(rules, decided, name, subject, cursor)
        return decision

    def permits(self, identity: Identity, operation: Operation, stream: NamedStream) -> bool:
        """Whether `check` has allowed it since the last change: a cheap test for every fetch.
        False: call `check`, which decides or raises the error."""
        return (identity.key, operation, stream.id) in self._permitted

    # Changes.

    def while_allowed(
        self, identity: Identity, check: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Around a wait. check: raises an error if the caller may not do it, now or after a change
        of tokens or rules; the error ends the wait at once."""
        return self._waits.begin(check) if self.applies_to(identity) else nullcontext()

    def while_allowed_to_read(
        self, identity: Identity, stream: NamedStream
    ) -> AbstractContextManager[None]:
        return self.while_allowed(identity, partial(self.check, identity, Operation.READ, stream))

    def watch_reading(
        self, identity: Identity, stream: NamedStream, refuse: Callable[[JetstreamError], None]
    ) -> Watch | None:
        """Like `while_allowed_to_read`, for what waits without a task: begins the wait, which gets
        its error by `refuse`. None: the caller needs no rights. Raises the errors of `check`."""
        if not self.applies_to(identity):
            return None
        return self._waits.watch(partial(self.check, identity, Operation.READ, stream), refuse)

    def closes(self, close_ended: Callable[[], None]) -> None:
        """Have `close_ended` called after every change: it closes the connections whose token was
        revoked or has expired."""
        self._closers.append(close_ended)

    def changed(self) -> None:
        """Decide again, because tokens or rules have changed or a token has expired."""
        self.generation += 1
        self._permitted.clear()
        self._authenticator.changed()
        now_us, tokens = self._wall_clock(), self._state().tokens.values()
        self._next_expiry = min(
            (token.expires_at_us for token in tokens if token.expires_at_us > now_us), default=None
        )
        valid = {token.id for token in tokens if not token.is_expired(now_us)}
        ended, self._valid = self._valid - valid, valid
        if self.enabled:
            self._ending |= ended
            self._waits.check_again()
            self._close(ended, CLOSE_STEPS)

    def _close(self, ended: set[str], steps: int) -> None:
        """Close the connections of tokens that ended now, after so many parts of CLOSE_SECONDS. A
        stall of the loop counts as one part: what waited has its turns before."""
        if steps:
            pause = CLOSE_SECONDS / CLOSE_STEPS
            asyncio.get_running_loop().call_later(pause, self._close, ended, steps - 1)
            return
        self._ending -= ended
        for close_ended in self._closers:
            close_ended()

    async def watch_expiry(self) -> None:
        """Call `changed` whenever a token expires."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            if self._next_expiry is not None and self._wall_clock() >= self._next_expiry:
                self.changed()

    def allows_named(
        self, identity: Identity, operation: Operation, name: str, subject: str, cursor: str = ""
    ) -> bool:
        """`allows` for a stream of that name on that subject. The stream need not exist."""
        if not self.enabled:
            return True
        state = self._state()
        rules, decided = state.rules_of(identity.principal), state.effective(operation)
        return decide(rules, decided, name, subject, cursor)

    def may_exist(self, identity: Identity, operation: Operation, name: str) -> bool:
        """Whether a stream of that name could exist to which the principal may do it."""
        return not self.enabled or may_exist(
            self._state().rules_of(identity.principal), operation, name
        )

    def concerns(self, identity: Identity, operation: Operation, stream: NamedStream) -> bool:
        """Whether a rule allows the principal to do it on subjects that the stream has, perhaps not
        on all of them."""
        return any(
            each.allow and each.names(operation) and each.is_about(stream.name, stream.subject)
            for each in self._state().rules_of(identity.principal)
        )

    def may_use(self, principal: str, cursor: str) -> bool:
        """Whether there could be a stream where the principal may use a cursor or consumer group of
        that name."""
        rules = self._state().rules_of(principal)
        return any(each.allow and each.names(Operation.COMMIT, cursor) for each in rules)

    def check(
        self, identity: Identity, operation: Operation, stream: NamedStream | None = None
    ) -> None:
        """Raise UnauthenticatedError or PermissionDeniedError unless it is allowed."""
        if not self.applies_to(identity):
            return
        self.check_current(identity, operation)
        if not self.allows(identity, operation, stream):
            name = "the cluster" if stream is None else f"{stream.name}@{stream.subject}"
            raise self.denied_error(identity, operation, name)
        if stream is not None:
            self._remember(identity, operation, stream)

    def _remember(self, identity: Identity, operation: Operation, stream: NamedStream) -> None:
        if len(self._permitted) > DECISIONS_MAX:
            self._permitted.clear()
        self._permitted.add((identity.key, operation, stream.id))

    def refusals(self, identity: Identity, operation: Operation) -> Refusals:
        """For a request that names many resources: notes its refusals together."""
        return Refusals(self.audit, identity, operation)

    def denied_error(
        self,
        identity: Identity,
        operation: Operation,
        resource: str,
        refusals: Refusals | None = None,
        cursor: str = "",
    ) -> PermissionDeniedError:
        """Note a refusal in the audit log, and return the error to raise. resource: as the caller
        knows it. refusals: those of its request; None: the request names nothing else. cursor: as
        in `allows`."""
        what = f"{cursor} in {resource}" if cursor else resource
        if refusals is None:
            self.audit.refused(identity, operation, what, "no right")
        else:
            refusals.add(what)
        return PermissionDeniedError(
            f"{identity.principal} may not {_words(operation)} {what}: it lacks the right "
            f"`{operation}`, which a principal with `{Operation.SECURITY_ALTER}` can grant "
            f"({_grant(identity, operation, resource, cursor)})"
        )

    def client_denied_error(self, identity: Identity, what: str) -> PermissionDeniedError:
        """The error for a client that makes a call between nodes."""
        self.audit.refused(identity, what, "the cluster", "not a node")
        return PermissionDeniedError(f"{what} is for the nodes of a cluster: no right allows it")

    def node_denied_error(self, identity: Identity, what: str) -> PermissionDeniedError:
        """The error for a node that makes a call of clients."""
        self.audit.refused(identity, what, "the cluster", "a node's credential")
        return PermissionDeniedError(f"{what} is for clients: a node's credential is not enough")


def _words(operation: Operation) -> str:
    if operation is Operation.SECURITY_ALTER:
        return "see or change the tokens and rules of"
    if operation is Operation.COMMIT:
        return "use the cursor or consumer group"
    if operation is Operation.WRITE:
        return "write to"
    return operation.partition("_")[2] if operation in CLUSTER_OPERATIONS else operation


def _grant(identity: Identity, operation: Operation, resource: str, cursor: str) -> str:
    command = f"jetstream acl add {identity.principal} --allow {operation}"
    if operation in CLUSTER_OPERATIONS:
        return f"{command} --cluster"
    name, _, subject = resource.partition("@")
    limit = f" --cursor {cursor}" if cursor else ""
    return f"{command} --stream {name} --subject '{subject or 'SUBJECT'}'{limit}"
