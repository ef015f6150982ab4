"""Keys and values of the records in `__cursors`."""

from __future__ import annotations

from jetstream_protocol.generated import groups_pb2 as pb
from jetstream_protocol.generated.cursors_pb2 import Cursor
from jetstream_server.cursors.groups import Group, Member, Share

CURSOR_PREFIX = b"cursor/"
GROUP_PREFIX = b"group/"
CONSUMER_PREFIX = b"consumer/"
"""Of the states of durable consumers (consumers/kept.py)."""


def cursor_key(name: str, stream: str) -> bytes:
    """stream: `name@subject`."""
    return CURSOR_PREFIX + f"{name}/{stream}".encode()


def creator_of(key: bytes, value: bytes) -> str:
    """The principal that created the cursor; "": none, or not a cursor."""
    return Cursor.FromString(value).creator if key.startswith(CURSOR_PREFIX) else ""


def with_creator(value: bytes, creator: str) -> bytes:
    """The value of a cursor's record with its creator: fields that follow a message belong to
    it."""
    return value + Cursor(creator=creator).SerializeToString() if creator else value


def group_key(name: str) -> bytes:
    return GROUP_PREFIX + name.encode()


def group_name(key: bytes) -> str:
    """Of the key of a group's record."""
    return key.removeprefix(GROUP_PREFIX).decode()


def group_to_proto(group: Group) -> pb.ConsumerGroup:
    return pb.ConsumerGroup(
        name=group.name,
        source=group.source,
        generation=group.generation,
        members=[
            pb.ConsumerGroup.Member(
                id=member.id, instance=member.instance, session_timeout_ms=member.session_ms
            )
            for member in group.members
        ],
        shares=[
            pb.ConsumerGroup.Share(
                stream_id=number, owner=share.owner, target=share.target, since=share.since
            )
            for number, share in sorted(group.shares.items())
        ],
        creator=group.creator,
        gone=group.gone,
        newest_at_first=group.newest_at_first,
    )


def group_from_proto(group: pb.ConsumerGroup) -> Group:
    return Group(
        name=group.name,
        source=group.source,
        generation=group.generation,
        members=tuple(
            Member(each.id, each.instance, each.session_timeout_ms) for each in group.members
        ),
        shares={
            each.stream_id: Share(each.owner, each.target, each.since) for each in group.shares
        },
        creator=group.creator,
        gone=tuple(group.gone),
        newest_at_first=group.newest_at_first,
    )
