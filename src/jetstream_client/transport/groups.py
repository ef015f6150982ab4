"""Calls of the control plane about consumer groups."""

from __future__ import annotations

from jetstream_client.transport.control import ControlPlane
from jetstream_client.values.text import check_text
from jetstream_client.values.types import ConsumerGroup, GroupMember
from jetstream_protocol.errors import NotFoundError
from jetstream_protocol.generated import groups_pb2 as pb

_GRACE_SECONDS = 2.0
"""So much longer than it waits may a coordinator take to answer."""


class Groups:
    """One call each."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        """Send a heartbeat. One server may take half of the timeout, so that a coordinator that
        hangs is not waited for long. Without a wait the client's timeout holds as well."""
        timeout = 2 * (request.wait_ms / 1000 + _GRACE_SECONDS)
        return await self._control.call(
            lambda stubs: stubs.groups.GroupHeartbeat,
            request,
            pb.GroupHeartbeatResponse,
            what=f"heartbeat of a member of consumer group {request.group!r}",
            timeout=timeout if request.wait_ms else min(timeout, self._control.timeout),
        )

    async def leave(self, group: str, source: str, member_id: str) -> None:
        await self._control.call(
            lambda stubs: stubs.groups.LeaveGroup,
            pb.LeaveGroupRequest(group=group, source=source, member_id=member_id),
            pb.LeaveGroupResponse,
            what=f"leaving consumer group {group!r}",
            done_already=NotFoundError,
            changes=True,
            timeout=min(2 * _GRACE_SECONDS, self._control.timeout),
        )

    async def list(self, name: str = "") -> list[ConsumerGroup]:
        check_text("the group's name", name)
        found = await self._control.call(
            lambda stubs: stubs.groups.ListGroups,
            pb.ListGroupsRequest(name=name),
            pb.ListGroupsResponse,
            what="listing consumer groups",
        )
        return [_group(group) for group in found.groups]


def _group(group: pb.ConsumerGroup) -> ConsumerGroup:
    members = tuple(
        GroupMember(
            member.id,
            member.instance,
            tuple(share.stream_id for share in group.shares if share.owner == member.id),
        )
        for member in group.members
    )
    return ConsumerGroup(
        name=group.name,
        source=group.source,
        generation=group.generation,
        members=members,
        streams=tuple(share.stream_id for share in group.shares),
        is_settled=all(share.owner == share.target for share in group.shares),
    )
