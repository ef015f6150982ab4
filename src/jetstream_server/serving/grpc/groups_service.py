"""The `Groups` service: heartbeats of members, leaving, listing. The coordinator, which is the
leader of `__cursors`, answers; other nodes forward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from jetstream_protocol.cursor_names import check_cursor_name
from jetstream_protocol.errors import (
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import groups_pb2 as pb
from jetstream_server.cursors.coordinator import SESSION_MS, Heartbeat
from jetstream_server.cursors.groups import Group, Member, last_of
from jetstream_server.cursors.records import group_key, group_to_proto
from jetstream_server.cursors.store import CursorStore
from jetstream_server.cursors.table import CursorTable
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.cursor_leader import CursorLeader
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import quota_holder
from jetstream_server.serving.stream_access import StreamAccess

ID_LENGTH_MAX = 64


class GroupsService:
    """Checks the requests. The coordinator decides."""

    def __init__(
        self, store: CursorStore, registry: Registry, leader: CursorLeader, access: StreamAccess
    ) -> None:
        self._store = store
        self._registry = registry
        self._leader = leader
        self._access = access

    async def GroupHeartbeat(
        self, request: pb.GroupHeartbeatRequest, call: Call
    ) -> pb.GroupHeartbeatResponse:
        principal = quota_holder(self._access.control, call)
        heartbeat = replace(
            _heartbeat_of(request),
            principal=principal,
            groups_max=self._access.control.quotas.groups,
            may_take=partial(self._may_take, principal, request.group),
        )
        check = partial(self._check_member, request.source, request.group, call.identity)
        check()
        await self._leader.create()
        with self._access.control.while_allowed(call.identity, check):
            try:
                answer = await self._leader.forward(
                    call, request, pb.GroupHeartbeatResponse, principal
                )
                if answer is not None:
                    return answer
                group = await (await self._store.coordinator()).heartbeat(heartbeat)
            except PermissionDeniedError as error:
                self._note_refusal(call.identity, request.group, error)
                raise
        return _answer(heartbeat.member, group)

    async def LeaveGroup(self, request: pb.LeaveGroupRequest, call: Call) -> pb.LeaveGroupResponse:
        check_cursor_name(request.group)
        self._check_member(request.source, request.group, call.identity)
        await self._leader.create()
        answer = await self._leader.forward(call, request, pb.LeaveGroupResponse)
        if answer is not None:
            return answer
        await (await self._store.coordinator()).leave(
            request.group, request.source, request.member_id
        )
        return pb.LeaveGroupResponse()

    async def ListGroups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:
        # **safety** By the group of a name its members know for which streams `start` was meant.
        if not (await self._leader.surely_exists() if request.name else self._leader.exists):
            return pb.ListGroupsResponse()
        answer = await self._leader.forward(call, request, pb.ListGroupsResponse)
        if answer is not None:
            known = [each for each in answer.groups if self._may_see(each.source, call.identity)]
            return pb.ListGroupsResponse(groups=known)
        coordinator, table = await self._store.coordinator(), await self._store.table()
        answer = pb.ListGroupsResponse()
        for group in coordinator.groups():
            if request.name in ("", group.name) and self._may_see(group.source, call.identity):
                listed = answer.groups.add()
                listed.CopyFrom(group_to_proto(replace(group, gone=())))
                listed.revision = table.revision(group_key(group.name))
        return answer

    async def DeleteGroup(
        self, request: pb.DeleteGroupRequest, call: Call
    ) -> pb.DeleteGroupResponse:
        check_cursor_name(request.group)
        try:
            await self._delete(request, call)
        except PermissionDeniedError as error:
            self._note_refusal(call.identity, request.group, error)
            raise
        return pb.DeleteGroupResponse()

    async def _delete(self, request: pb.DeleteGroupRequest, call: Call) -> None:
        """Delete here or on the node that leads. The error names no stream: the caller may not know
        of those that the group reads."""
        principal = quota_holder(self._access.control, call)
        if principal and not self._access.control.may_use(principal, request.group):
            raise _denied_error(request.group)  # Also where there is none of the name.
        if not await self._leader.surely_exists():
            raise NotFoundError(f"there is no consumer group {request.group!r}")
        answer = await self._leader.forward(call, request, pb.DeleteGroupResponse, principal)
        if answer is not None:
            return
        coordinator = await self._store.coordinator()
        groups = coordinator.groups()
        source = next((each.source for each in groups if each.name == request.group), "")
        if not self._may_take(principal, request.group, source):
            raise _denied_error(request.group)
        table = await self._store.table()
        await coordinator.delete(request.group, partial(_check_revision, table, request))

    def _note_refusal(self, identity: Identity, group: str, error: PermissionDeniedError) -> None:
        """Note in the audit log that the name is another's, on the node that the client has asked:
        it knows the client's address."""
        if not identity.is_node:
            self._access.control.audit.refused(identity, Operation.COMMIT, group, error.message)

    def _check_member(self, source: str, group: str, identity: Identity) -> None:
        """Raise StreamNotFoundError; or PermissionDeniedError unless the caller may read all of the
        source, and use the consumer group there."""
        streams: list[StreamMetadata] = self._registry.read_as_one(source)
        name, _, subject = source.partition("@")
        ref = common_pb2.StreamRef(name=name, subject=subject)
        if not streams:
            self._access.resolve(identity, Operation.READ, ref)
            raise StreamNotFoundError(f"there is no group of streams and no stream {source!r}")
        access = self._access.control
        if not access.applies_to(identity):
            return
        for stream in streams:
            if not access.allows(identity, Operation.READ, stream):
                raise self._access.denied_error(identity, Operation.READ, stream, ref)
            if not access.allows(identity, Operation.COMMIT, stream, group):
                raise access.denied_error(identity, Operation.COMMIT, source, cursor=group)
            access.check(identity, Operation.READ, stream)

    def _may_take(self, principal: str, group: str, source: str) -> bool:
        """Whether the principal, "" for none, may use the consumer group where it reads now, so
        that it may take the name away from there. What is gone belongs to no principal."""
        if not principal:
            return True
        access, caller = self._access.control, Identity(principal)
        return all(
            access.allows(caller, Operation.READ, stream)
            and access.allows(caller, Operation.COMMIT, stream, group)
            for stream in self._registry.read_as_one(source)
        )

    def _may_see(self, source: str, identity: Identity) -> bool:
        access = self._access.control
        if not access.applies_to(identity):
            return True
        streams = self._registry.read_as_one(source)
        return bool(streams) and all(
            access.allows(identity, Operation.READ, stream) for stream in streams
        )


def _denied_error(group: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"deleting consumer group {group!r} needs the rights `{Operation.READ}` and "
        f"`{Operation.COMMIT}` on all that it reads"
    )


def _check_revision(table: CursorTable, request: pb.DeleteGroupRequest) -> None:
    """Raise NotFoundError unless the group is as it was listed: a call that arrives late must not
    delete another one of its name."""
    if request.revision and request.revision != table.revision(group_key(request.group)):
        raise NotFoundError(f"there is no such consumer group {request.group!r} any more")


def _heartbeat_of(request: pb.GroupHeartbeatRequest) -> Heartbeat:
    """Convert a request. Raises InvalidRequestError."""
    check_cursor_name(request.group)
    session_ms, wait_ms = request.member.session_timeout_ms, request.wait_ms
    if not SESSION_MS[0] <= session_ms <= SESSION_MS[1]:
        raise InvalidRequestError(
            f"session_timeout_ms is {session_ms}; it must be from {SESSION_MS[0]} to "
            f"{SESSION_MS[1]}"
        )
    if wait_ms > session_ms // 3:
        raise InvalidRequestError("wait_ms is at most a third of session_timeout_ms")
    member = request.member
    if not 0 < len(member.id) <= ID_LENGTH_MAX:
        raise InvalidRequestError(f"a member's id has 1 to {ID_LENGTH_MAX} characters")
    if member.instance:
        check_cursor_name(member.instance)
    return Heartbeat(
        group=request.group,
        source=request.source,
        member=Member(member.id, member.instance, session_ms),
        generation=request.generation,
        held=frozenset(request.held),
        wait_seconds=wait_ms / 1000,
        replaces=request.replaces if request.HasField("replaces") else None,
    )


def _answer(member: Member, group: Group) -> pb.GroupHeartbeatResponse:
    """The answer to a member, or to a process that has to join again."""
    if not group.has(member.id):
        return pb.GroupHeartbeatResponse(replaces=last_of(group, member.instance))
    return pb.GroupHeartbeatResponse(
        generation=group.generation, assigned=sorted(group.assigned(member.id))
    )
