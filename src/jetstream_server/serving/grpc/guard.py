"""Checks the caller's rights before every RPC, in one place (security/requirements.py).

A guarded service is called like the one that it guards, on the node's loop. The guard looks up the
stream that a request names and replaces it by its id, so that the service acts on the stream that
was checked. For answers that may come long after their request, the rights are checked again before
they are sent.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from google.protobuf.text_format import MessageToString

from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    QuotaExceededError,
    StreamExistsError,
    TooManyRequestsError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_server.origins import origin_of_peer
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.security.limits import OpenRequests
from jetstream_server.security.origin_proof import HEADER as ORIGIN
from jetstream_server.security.requirements import RPCS, Requirement, Scope
from jetstream_server.serving.caller_certificate import contradicts, shown_by
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.response_memory import ANSWER_BYTES_MAX, ResponseMemoryLimiter
from jetstream_server.serving.grpc.token_connections import TokenConnections
from jetstream_server.serving.stream_access import StreamAccess

AUTHORIZATION = "authorization"
CLUSTER = "jetstream.v1.Cluster"
PORT = "grpc"
"""The port for which requests are counted."""
LARGE: Final = frozenset(
    f"/jetstream.v1.{name}"
    for name in (
        "Cluster/DebugNode", "Cluster/DescribeHistory", "Cluster/PlanReassignment",
        "Consumers/ListConsumers", "Cursors/ListCursors", "Groups/ListGroups",
        "Reads/ListSubjects", "Security/ListAcls", "Security/ListTokens", "Streams/DescribeLake",
        "Streams/ListStreams",
    )
)  # fmt: skip
"""Their answers may have megabytes, for a request of some bytes. So they wait for room, as those
with records do."""


class Guarded:
    """The methods of `service`, guarded. name: the service's full name. connections: notes whose
    calls come over which connection. unread: room for answers. reach: waits for a revision of the
    metadata, shortly."""

    def __init__(
        self,
        service: object,
        name: str,
        streams: StreamAccess,
        connections: TokenConnections,
        unread: ResponseMemoryLimiter,
        reach: Callable[[int], Awaitable[None]],
    ) -> None:
        self._service = service
        self._name = name
        self._streams = streams
        self._access = streams.control
        self._connections = connections
        self._unread = unread
        self._reach = reach

    def __getattr__(self, name: str) -> Callable[[Any, Call], Any]:
        method = getattr(self._service, name)
        full_name = f"/{self._name}/{name}"
        wrap = self._many if inspect.isasyncgenfunction(method) else self._one
        return wrap(method, full_name)

    def _one(self, method: Any, name: str) -> Callable[[Any, Call], Any]:
        async def answer(request: Any, call: Call) -> Any:
            requirement = await self._admit(request, call, name)
            requests = self._begin(call.identity)
            try:
                if name in LARGE and not call.identity.is_node:
                    found = await self._run_in_room(method, request, call, name)
                else:
                    found = await self._run(method, request, call, name)
            finally:
                requests.end()
            self._check_again(request, call, requirement)
            return found

        return answer

    async def _run_in_room(self, method: Any, request: Any, call: Call, name: str) -> Any:
        """The same, once there is room for the answer. Raises UnavailableError."""
        holder = self._access.quota_holder(call.identity) or origin_of_peer(call.peer)
        held = await self._unread.reserve(
            call.peer, ANSWER_BYTES_MAX, principal=holder, is_made=False
        )
        is_made = False
        try:
            found = await self._run(method, request, call, name)
            is_made = True
        finally:
            if not is_made:
                self._unread.release(held)
        self._unread.renew(held, found.ByteSize())
        call.when_ended(partial(self._unread.release, held))
        return found

    async def _run(self, method: Any, request: Any, call: Call, name: str) -> Any:
        """Call the method. Note a change, also one that may have been made, or a used-up quota in
        the audit log."""
        resource = self._changed_resource(request, call, name)
        is_decided = False
        try:
            found = await self._call(method, request, call, name)
            is_decided = True
        except JetstreamError as error:
            is_decided = not isinstance(error, UnavailableError | UnknownOutcomeError)
            raise
        finally:
            if resource is not None and not is_decided:
                self._access.audit.in_doubt(call.identity, name, resource)
        if resource is not None:
            self._access.audit.done(call.identity, name, resource)
        return found

    async def _call(self, method: Any, request: Any, call: Call, name: str) -> Any:
        try:
            return await method(request, call)
        except StreamExistsError:
            rule = RPCS.get(name)
            if rule is not None and rule.scope is Scope.NEW_STREAM:
                self._streams.check_taken(call.identity, request.name, request.subject)
            raise
        except QuotaExceededError as error:
            raise self._access.quota_error(call.identity, name, error) from None

    def _many(self, method: Any, name: str) -> Callable[[Any, Call], AsyncIterator[Any]]:
        async def answers(request: Any, call: Call) -> AsyncIterator[Any]:
            requirement = await self._admit(request, call, name)
            requests = self._begin(call.identity)
            try:
                async for found in method(request, call):
                    self._check_again(request, call, requirement)
                    yield found
            finally:
                requests.end()

        return answers

    def _begin(self, identity: Identity) -> OpenRequests:
        """The caller's requests, of which another one begins. Raises TooManyRequestsError."""
        requests = self._access.requests_of(identity, PORT)
        try:
            requests.begin()
        except TooManyRequestsError as error:
            raise self._access.too_many_requests_error(identity, PORT, error) from None
        return requests

    async def _admit(self, request: Any, call: Call, name: str) -> Requirement | None:
        """Identify the caller. Raises UnauthenticatedError, PermissionDeniedError, or the errors of
        finding the stream. Returns None if security is off."""
        authorization = call.header(AUTHORIZATION)
        peer = self._access.origin(call.header(ORIGIN), authorization) or call.peer
        if not self._access.enabled:
            call.identity = Identity(ANONYMOUS.principal, peer)
            self._connections.called(call.peer, call.identity)
            await self._reach_known(call)
            return None
        identity = await self._access.identify(
            authorization, method=name, shown=shown_by(call.peer_identity, peer)
        )
        if contradicts(call.peer_identity, identity):
            reason = f"the certificate is not that of {identity.principal}"
            raise self._access.unauthenticated_error(call.peer, name, reason)
        call.identity = identity
        self._connections.called(call.peer, identity)
        await self._reach_known(call)
        requirement = RPCS.get(name)
        if requirement is None:
            raise PermissionDeniedError(f"no rule says who may call {name}: nobody may")
        if identity.is_node or identity.is_bootstrap:
            self._check_node(identity, requirement, name)
        elif requirement.scope is Scope.NODE:
            self._access.check_current(identity, name)
            raise self._access.client_denied_error(identity, name)
        else:
            self._check_client(identity, requirement, request, name)
        return requirement

    async def _reach_known(self, call: Call) -> None:
        """Wait until this node knows what another one has told the caller: a stream that the caller
        has just created is not "not found" here. Calls about the cluster are answered at once: they
        tell how this node sees it."""
        if self._name != CLUSTER:
            await self._reach(call.known_revision)

    def _check_node(self, identity: Identity, requirement: Requirement, name: str) -> None:
        is_for_machine = requirement.scope is Scope.NODE and name.endswith("/Bootstrap")
        if identity.is_bootstrap:
            may = is_for_machine
        else:
            may = requirement.nodes or (requirement.scope is Scope.NODE and not is_for_machine)
        if not may:
            raise self._access.node_denied_error(identity, name)

    def _check_client(
        self, identity: Identity, requirement: Requirement, request: Any, name: str
    ) -> None:
        operation, access = requirement.operation, self._access
        if requirement.scope is not Scope.PUBLIC:
            access.check_current(identity, name)
        if operation is None:
            return
        if requirement.scope is Scope.CLUSTER:
            access.check(identity, operation)
        elif requirement.scope is Scope.STREAM:
            stream = self._streams.resolve(identity, operation, request.stream)
            request.stream.CopyFrom(common_pb2.StreamRef(id=stream.id))
        elif requirement.scope is Scope.NEW_STREAM:
            self._streams.check_new(identity, request)

    def _changed_resource(self, request: Any, call: Call, name: str) -> str | None:
        """What the request changes, for the audit log; None: nothing, or another node has sent it,
        which has noted it."""
        requirement = RPCS.get(name)
        if requirement is None or not requirement.changes or call.identity.is_node:
            return None
        if requirement.scope is Scope.NEW_STREAM:
            return f"{request.name}@{request.subject}"
        if requirement.scope is Scope.STREAM:
            return self._streams.name_of(request.stream)
        return description_of(request)

    def _check_again(self, request: Any, call: Call, requirement: Requirement | None) -> None:
        if requirement is not None and requirement.again:
            assert requirement.operation is not None
            self._streams.resolve(call.identity, requirement.operation, request.stream)


def description_of(request: Any) -> str:
    """The fields of a request about the cluster, on one line. None of them is a secret."""
    return MessageToString(request, as_one_line=True)[:300]
