"""Consumer groups: which member of a group reads which of its streams.

Pure: takes a state, and returns the next state. A state is written to `__cursors` before anybody
learns of it. So the next leader continues from it.

    join, leave, streams changed ──> a new generation: new targets
    owner != target ──> the owner has to release it ──(release)──> the target becomes the owner

Invariants. A stream has at most one owner, and only its owner commits. **safety** A stream gets
another owner only when its owner has released it or has left the group. Targets are even: the
numbers of two members differ by at most one. They are sticky: no stream moves without need. So a
change interrupts only the streams that move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

NO_MEMBER = ""
MEMBERS_MAX = 1000
GONE_MIN = 100
"""So many members that have gone are known at least, and two for each member that there is: as many
as restart at a time, and again."""


@dataclass(frozen=True, slots=True)
class Member:
    """id: of one run of a consumer, never used again. Who was removed and joins again has the id of
    its first run, a dot, and more. instance: a name that outlives runs, "" for none: the next
    member of that name replaces the last one. session_ms: a member that is silent for that long is
    removed."""

    id: str
    instance: str = ""
    session_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Share:
    """One stream of a group. since: the generation in which its owner became the owner."""

    owner: str = NO_MEMBER
    target: str = NO_MEMBER
    since: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """source: what the group reads: a group of streams, or a stream. shares: by stream id. creator:
    the principal whose quota the group counts against while it has members; "": none. gone: ids
    of the members that have gone last, the latest at the end. is_deleted: it has no members, and
    its record goes. newest_at_first: the newest stream that it had when it began to read its
    source: later ones are read from their beginning. 0: not known.

    **safety** Who has gone never joins again under its id. A late copy of the heartbeat by which it
    joined would take its instance name from the process that has it now.
    """

    name: str
    source: str
    generation: int = 0
    members: tuple[Member, ...] = ()
    shares: Mapping[int, Share] = field(default_factory=dict)
    creator: str = ""
    gone: tuple[str, ...] = ()
    is_deleted: bool = False
    newest_at_first: int = 0

    def has(self, member_id: str) -> bool:
        return any(member.id == member_id for member in self.members)

    def assigned(self, member_id: str) -> frozenset[int]:
        """The streams that the member has to read. It must release others that it owns."""
        return frozenset(
            number
            for number, share in self.shares.items()
            if share.owner == share.target == member_id
        )

    def owned(self, member_id: str) -> frozenset[int]:
        return frozenset(n for n, share in self.shares.items() if share.owner == member_id)

    @property
    def is_settled(self) -> bool:
        """Whether no stream is left to move."""
        return all(share.owner == share.target for share in self.shares.values())

    def may_commit(self, member_id: str, generation: int, stream_id: int) -> bool:
        """Whether a commit is allowed. **safety** Only the owner may commit, and only its own
        positions since it became the owner."""
        share = self.shares.get(stream_id)
        if share is None or not self.has(member_id):
            return False
        return share.owner == member_id and generation >= share.since


def is_fenced(group: Group, member: Member) -> bool:
    """Whether another process has the instance of one that wants to join again. **safety** Only a
    first run takes a name: two processes would take it from each other for ever."""
    process, dot, _ = member.id.partition(".")
    return bool(dot and member.instance) and any(
        each.instance == member.instance and each.id.partition(".")[0] != process
        for each in group.members
    )


def last_of(group: Group, instance: str) -> str:
    """The member that has the instance; if none has, the last member that has gone; "": none has
    gone. It changes whenever somebody else gets the name: who wants it says what it knows."""
    holders = (member.id for member in group.members if member.instance == instance)
    return next(holders, group.gone[-1] if group.gone else "")


def join(group: Group, member: Member) -> Group:
    """The group with the member. A member of the same instance is replaced, and no stream moves."""
    if group.has(member.id):
        return group
    for before in group.members:
        if member.instance and before.instance == member.instance:
            return _replace_member(group, before, member)
    return _rebalance(replace(group, members=(*group.members, member)))


def leave(group: Group, member_ids: Collection[str]) -> Group:
    """The group without those members. Their streams have no owner."""
    staying = tuple(member for member in group.members if member.id not in member_ids)
    if staying == group.members:
        return group
    gone = [member.id for member in group.members if member.id in member_ids]
    return _rebalance(_without(replace(group, members=staying), gone))


def with_streams(group: Group, stream_ids: Iterable[int]) -> Group:
    """The group with exactly these streams."""
    wanted = sorted(stream_ids)
    if wanted == sorted(group.shares):
        return group
    shares = {number: group.shares.get(number, Share()) for number in wanted}
    if not (group.shares or group.newest_at_first):  # Else all that it had are deleted.
        group = replace(group, newest_at_first=wanted[-1])
    return _rebalance(replace(group, shares=shares))


def release(group: Group, member_id: str, held: Collection[int]) -> Group:
    """Release all streams of the member but `held`. A stream that the member had to release gets
    its next owner. **safety** Only for a member that knows this generation: one that does not may
    be about to read what it does not hold yet."""
    shares = dict(group.shares)
    for number, share in group.shares.items():
        if share.owner == member_id != share.target and number not in held:
            shares[number] = replace(share, owner=NO_MEMBER)
    if shares == group.shares:
        return group
    return _give_free(replace(group, shares=shares))


def _replace_member(group: Group, before: Member, after: Member) -> Group:
    generation = group.generation + 1
    members = tuple(after if member is before else member for member in group.members)
    shares = {
        number: Share(
            after.id if share.owner == before.id else share.owner,
            after.id if share.target == before.id else share.target,
            generation if share.owner == before.id else share.since,
        )
        for number, share in group.shares.items()
    }
    replaced = replace(group, generation=generation, members=members, shares=shares)
    return _without(replaced, [before.id])


def _without(group: Group, member_ids: Collection[str]) -> Group:
    """The group, which knows that these have gone."""
    gone = (*group.gone, *member_ids)
    return replace(group, gone=gone[-max(GONE_MIN, 2 * len(group.members)) :])


def _rebalance(group: Group) -> Group:
    ids = [member.id for member in group.members]
    before = {
        number: next((id_ for id_ in (share.owner, share.target) if id_ in ids), NO_MEMBER)
        for number, share in group.shares.items()
    }
    targets = spread(before, ids)
    shares = {
        number: replace(
            share,
            owner=share.owner if share.owner in ids else NO_MEMBER,
            target=targets.get(number, NO_MEMBER),
        )
        for number, share in group.shares.items()
    }
    return _give_free(replace(group, generation=group.generation + 1, shares=shares))


def _give_free(group: Group) -> Group:
    """Give each stream without an owner to its target."""
    shares = {
        number: Share(share.target, share.target, group.generation)
        if share.owner == NO_MEMBER != share.target
        else share
        for number, share in group.shares.items()
    }
    return replace(group, shares=shares)


def spread(before: Mapping[int, str], members: Collection[str]) -> dict[int, str]:
    """A member for every stream: evenly, and with as few moves as possible.

    before: the member that has each stream. NO_MEMBER, or an id that is not a member's, means no
    member. Returns {} without members.
    """
    if not members:
        return {}
    least, extra = divmod(len(before), len(members))
    held: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for number in sorted(before):
        if before[number] in held:
            held[before[number]].append(number)
    # The members that hold most keep one more, as long as there are such places.
    places: dict[str, int] = {}
    for member in sorted(held, key=lambda member: (-len(held[member]), member)):
        has_one_more = extra > 0
        extra -= has_one_more
        places[member] = least + has_one_more
    found = {
        number: member for member, numbers in held.items() for number in numbers[: places[member]]
    }
    free = iter([number for number in sorted(before) if number not in found])
    for member, numbers in held.items():
        for _ in range(places[member] - min(places[member], len(numbers))):
            found[next(free)] = member
    return found
