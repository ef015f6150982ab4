"""Consumer groups: the calls of their members, and what a program may do with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.cursors import AsyncCursors
from jetstream_client.values.checks import check_text
from jetstream_client.values.types import ConsumerGroup, GroupMember
from jetstream_protocol.errors import NotFoundError
from jetstream_protocol.generated import groups_pb2 as pb

_GRACE_SECONDS = 2.0
"""So much longer than it waits may a coordinator take to answer."""

_GRACE_SHARE = 0.5
"""Of the time that it waits: what it may take longer, if that is less. Else a member that asks a
frozen server would be given up before another one has its heartbeat."""


class Groups:
    """What members call."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        """Send a heartbeat. One that waits goes to one server or two: each may take as long as it
        is to wait, and a little more. One without a wait, by which a member joins, goes to one
        after the other until the client's timeout has passed."""
        what = f"heartbeat of a member of consumer group {request.group!r}"
        ask = partial(self._control.call, request, what=what)
        wait = request.wait_ms / 1000
        answer: pb.GroupHeartbeatResponse
        if wait:
            timeout = 2 * (wait + min(_GRACE_SECONDS, max(_GRACE_SHARE * wait, 0.5)))
            answer = await ask(timeout=timeout, share_min=timeout / 2)
        else:
            answer = await ask(share_first=_GRACE_SECONDS)
        return answer

    async def leave(self, group: str, source: str, member_id: str) -> None:
        await self._control.call(
            pb.LeaveGroupRequest(group=group, source=source, member_id=member_id),
            what=f"leaving consumer group {group!r}",
            done_already=NotFoundError,
            changes=True,
            timeout=min(2 * _GRACE_SECONDS, self._control.timeout),
        )


class AsyncGroups(AsyncCursors):
    """A part of `AsyncClient`."""

    async def list_groups(self) -> list[ConsumerGroup]:
        """List the consumer groups, also those without members."""
        return list(map(_group, await self._listed_groups()))

    async def delete_group(self, group: str) -> None:
        """Delete a consumer group that has no members, and its positions, as Kafka does: the next
        member of that name begins anew. If a call fails, repeat it.

        Raises PreconditionFailedError while it has members, NotFoundError.
        """
        found = await self._listed_groups(group)
        streams = {share.stream_id for each in found for share in each.shares}
        for cursor in await self.list_cursors(group):
            if cursor.stream_id in streams:  # Others of the name are no members' positions.
                try:
                    await self._cursors.delete(cursor)
                except NotFoundError:
                    continue  # It was deleted meanwhile.
        await self._calls.call(
            pb.DeleteGroupRequest(group=group, revision=found[0].revision if found else 0),
            what=f"deleting consumer group {group!r}",
            done_already=NotFoundError,
            changes=True,
        )

    async def describe_group(self, group: str) -> ConsumerGroup:
        """Describe one consumer group: its members, and which streams each reads. Raises
        NotFoundError."""
        found = await self._listed_groups(group)
        if not found:
            raise NotFoundError(f"there is no consumer group {group!r}")
        return _group(found[0])

    async def _listed_groups(self, name: str = "") -> Sequence[pb.ConsumerGroup]:
        check_text("the group's name", name)
        found: pb.ListGroupsResponse = await self._calls.call(
            pb.ListGroupsRequest(name=name), what="listing consumer groups"
        )
        return found.groups


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
        creator=group.creator,
    )
