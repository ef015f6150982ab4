"""How long the members of a consumer group may keep what they have.

Pure: takes what was observed, and the time. Every deadline follows from an observation and is not
kept beside it:

* a member is removed one session after its last heartbeat has arrived;
* the owner of a stream that is to move is removed `RELEASE_SECONDS` after the move was first seen,
  for each stream by itself;
* a group without members ends `IDLE_SECONDS` after its last one has gone.

A leader has seen only what happened in its own leadership: so a new one gives every member a whole
session, and every move a whole time. `observe` is called after each change and when the group is
loaded; `late` and `is_over` are asked at every look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_server.cursors.groups import NO_MEMBER, Group

RELEASE_SECONDS = 60.0
"""Seconds after which a member that does not release a stream is removed from its group."""
IDLE_SECONDS = 7 * 86_400.0
"""Seconds after which a group without members is forgotten. As Kafka's offsets.retention."""


@dataclass(slots=True)
class Leases:
    """What this leader has seen of one group. heard: when the last heartbeat of each member
    arrived. moving: since when each (stream, owner) has another target. idle_since: since when the
    group has no members; None: it has some. In seconds of the monotonic clock."""

    members: frozenset[str] = frozenset()
    heard: dict[str, float] = field(default_factory=dict)
    moving: dict[tuple[int, str], float] = field(default_factory=dict)
    idle_since: float | None = None

    def observe(self, group: Group, now: float, *, idle_seconds: float = 0.0) -> None:
        """The group has changed, or was loaded. idle_seconds: for how long it was as it is before
        this leader saw it."""
        self.members = frozenset(member.id for member in group.members)
        self.heard = {member.id: self.heard.get(member.id, now) for member in group.members}
        keys = [
            (number, share.owner)
            for number, share in group.shares.items()
            if share.owner not in (NO_MEMBER, share.target)
        ]
        self.moving = {key: self.moving.get(key, now) for key in keys}
        if group.members:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now - max(0.0, idle_seconds)

    def arrived(self, member_id: str, now: float) -> None:
        """A heartbeat is there. It counts from now on, however long its answer takes. That of
        somebody who is no member is not kept: `observe` counts from when it has become one."""
        if member_id in self.members:
            self.heard[member_id] = now

    def late(self, group: Group, now: float) -> set[str]:
        """The members to be removed."""
        silent = {
            member.id
            for member in group.members
            if self.heard.get(member.id, now) + member.session_ms / 1000 <= now
        }
        holding = {
            owner for (_, owner), since in self.moving.items() if since + RELEASE_SECONDS <= now
        }
        return silent | {owner for owner in holding if group.has(owner)}

    def is_over(self, now: float) -> bool:
        """Whether the group has had no members for so long that it ends."""
        return self.idle_since is not None and self.idle_since + IDLE_SECONDS <= now
