"""The coordinator of consumer groups: runs on the leader of `__cursors` while it leads.

    heartbeat ─> next state (groups.py) ─> written ─> the affected members get an answer

A member stays in its group as long as its heartbeats come (leases.py). Each is a long poll, shorter
than the session.

**safety** While a change is being written, a commit is accepted only if both the state before and
the state after allow it. A write that failed may still become valid: it is repeated, and nothing
else is decided before it.

**safety** A heartbeat releases streams only if its member knows the present generation. One that is
to join takes an instance name only from whoever a coordinator has named to it: so its process lived
when that one had the name already. Heartbeats may be late, lost and repeated on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from jetstream_protocol.errors import (
    FencedInstanceError,
    InvalidRequestError,
    JetstreamError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionFailedError,
    QuotaExceededError,
    UnavailableError,
)
from jetstream_server.clocks import MonotonicClock
from jetstream_server.cursors.groups import (
    MEMBERS_MAX,
    Group,
    Member,
    is_fenced,
    join,
    last_of,
    leave,
    release,
    with_streams,
)
from jetstream_server.cursors.leases import Leases

LOOK_SECONDS = 0.25
STREAMS_EVERY = 8
"""Checks between two listings of a group's streams: a listing walks over all streams."""
SESSION_MS = (1_000, 300_000)
NO_AGES: Mapping[str, float] = MappingProxyType({})
LEADER_CHANGES = "the leader of the cursors changes; try again"

Save = Callable[[Group], Awaitable[None]]
"""Writes the state of a group; of a deleted one it removes the record."""
StreamsOf = Callable[[str], Iterable[int]]
"""Returns the ids of the streams of a source."""

logger = structlog.get_logger("jetstream.groups")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat of a member. generation: the last one that the member has received, 0: none.
    principal: of the caller, "" for none. groups_max: how many groups with members a principal may
    have begun, 0: any number. replaces: what `last_of` was in the answer to the member's last
    heartbeat, "": it was not answered yet, None: an older client, which takes a name at once.
    may_take: whether the caller has the right to the group's name on
    that source, from which the name would be taken."""

    group: str
    source: str
    member: Member
    generation: int
    held: frozenset[int]
    wait_seconds: float
    principal: str = ""
    groups_max: int = 0
    may_take: Callable[[str], bool] = lambda source: True
    replaces: str | None = None

    def must_ask_again(self, group: Group) -> bool:
        """Whether its member may not join yet, because it does not know who had its instance."""
        member = self.member
        if self.replaces is None or not member.instance or group.has(member.id):
            return False
        is_first = not self.generation and member.id not in group.gone
        return is_first and self.replaces != last_of(group, member.instance)


class _Live:
    """A group in this leadership. coming: the state that is being written, or may have been. calls:
    how many are at work on it."""

    def __init__(self, state: Group) -> None:
        self.state = state
        self.coming: Group | None = None
        self.calls = 0
        self.turn = asyncio.Lock()
        self.changed = asyncio.Event()  # replaced after each change
        self.leases = Leases()

    @property
    def listed(self) -> Group:
        """The state; with what it begins with, if it is about to read another source. **safety**
        Who does not know that would take a stream that came meanwhile for one of those."""
        coming, state = self.coming, self.state
        if coming is None:
            return state
        begins = (coming.source, coming.newest_at_first)
        if begins == (state.source, state.newest_at_first):
            return state
        source, newest = begins
        return Group(state.name, source, state.generation, gone=state.gone, newest_at_first=newest)

    @property
    def is_unused(self) -> bool:
        """Whether nothing of it was written, nor is about to be."""
        return not (self.state.generation or self.calls or self.coming)


class Coordinator:
    """All consumer groups. Call `load` first."""

    def __init__(self, save: Save, streams_of: StreamsOf, monotonic_clock: MonotonicClock) -> None:
        self._save = save
        self._streams_of = streams_of
        self._clock = monotonic_clock
        self._groups: dict[str, _Live] = {}
        self._ended = False

    def end(self) -> None:
        """Answer the members that wait: another node leads."""
        self._ended = True
        for live in self._groups.values():
            live.changed.set()

    def load(self, groups: Iterable[Group], idle_seconds: Mapping[str, float] = NO_AGES) -> None:
        """idle_seconds: how long ago each group was written, by name."""
        now = self._now()
        for group in groups:
            live = self._groups[group.name] = _Live(group)
            live.leases.observe(group, now, idle_seconds=idle_seconds.get(group.name, 0.0))

    def groups(self) -> list[Group]:
        return [self._groups[name].listed for name in sorted(self._groups)]

    def _now(self) -> float:
        return self._clock() / 1e6

    # Commits.

    def why_not(self, name: str, stream_id: int, member_id: str, generation: int) -> str:
        """Why a member must not commit a position of the cursor `name`; "": it may.

        member_id: "" if the committer is not a member of a group.
        """
        live = self._groups.get(name)
        if live is None or not live.state.members:
            return f"there is no consumer group {name!r} with members" if member_id else ""
        states = [live.state] if live.coming is None else [live.state, live.coming]
        if not member_id:
            if any(stream_id in state.shares for state in states):
                return f"{name!r} is a consumer group with members, and only they commit: stop them"
            return ""
        if all(state.may_commit(member_id, generation, stream_id) for state in states):
            return ""
        return f"this member of consumer group {name!r} does not own the stream any more"

    # Members.

    async def heartbeat(self, heartbeat: Heartbeat) -> Group:
        """Take a heartbeat. Returns the group once it has news for the member, or after
        `wait_seconds`; without the member if it has to ask again (`last_of`).

        Raises PreconditionFailedError for a member that was removed, FencedInstanceError for one
        whose instance another process has taken, InvalidRequestError, PermissionDeniedError for the
        name of another's group, QuotaExceededError, UnavailableError once another node leads.
        """
        live = self._groups.get(heartbeat.group)
        if live is None:
            live = self._groups[heartbeat.group] = _Live(Group(heartbeat.group, heartbeat.source))
        live.calls += 1
        try:
            if live.state.source == heartbeat.source:  # Else its caller may have no right to it.
                live.leases.arrived(heartbeat.member.id, self._now())
            await self._change(live, lambda group: self._next(group, heartbeat))
            await self._news(live, heartbeat)
        finally:
            live.calls -= 1
            self._forget_unused(live)
        if self._ended:
            raise UnavailableError(LEADER_CHANGES)
        state = live.state
        if not state.has(heartbeat.member.id) and not heartbeat.must_ask_again(state):
            raise _no_member_error(state, heartbeat)
        return state

    def _forget_unused(self, live: _Live) -> None:
        """Forget the group if it is unused, unless a newer one has its name."""
        if live.is_unused and self._groups.get(live.state.name) is live:
            del self._groups[live.state.name]

    def _next(self, group: Group, heartbeat: Heartbeat) -> Group:
        before, member = group, heartbeat.member
        if heartbeat.generation == group.generation:
            group = release(group, member.id, heartbeat.held)
        if not group.has(member.id):
            has_gone = heartbeat.generation or member.id in group.gone
            if has_gone or is_fenced(group, member):
                raise _no_member_error(group, heartbeat)
            if len(group.members) >= MEMBERS_MAX:
                raise InvalidRequestError(f"a consumer group has at most {MEMBERS_MAX} members")
        if group.source != heartbeat.source:
            if group.generation and not heartbeat.may_take(group.source):
                raise PermissionDeniedError(
                    f"the name {group.name!r} is that of another consumer group: choose another one"
                )
            if group.members:
                raise InvalidRequestError(
                    f"consumer group {group.name!r} reads {group.source!r}, not "
                    f"{heartbeat.source!r}: choose another group name, or stop its members"
                )
            group = Group(group.name, heartbeat.source, group.generation, gone=group.gone)
        if not group.members:
            self._check_quota(heartbeat)
            group = replace(group, creator=heartbeat.principal)
        if heartbeat.must_ask_again(group):
            return before
        group = with_streams(group, self._streams_of(group.source))
        return join(group, member)

    def _check_quota(self, heartbeat: Heartbeat) -> None:
        """Raise QuotaExceededError if the principal may not begin another group."""
        most = heartbeat.groups_max
        if not most or not heartbeat.principal:
            return
        states = (live.coming or live.state for live in self._groups.values())
        begun = sum(bool(each.members) and each.creator == heartbeat.principal for each in states)
        if begun >= most:
            raise QuotaExceededError(
                f"{heartbeat.principal} has begun {most} consumer groups that have members, as "
                "many as it may: stop some, or have security.groups_per_principal raised"
            )

    async def _news(self, live: _Live, heartbeat: Heartbeat) -> None:
        """Wait until the member has to read other streams than it holds, or is not a member any
        more, or another node leads."""
        deadline = self._now() + heartbeat.wait_seconds
        member_id = heartbeat.member.id
        while live.state.has(member_id) and live.state.assigned(member_id) == heartbeat.held:
            left = deadline - self._now()
            if self._ended or left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await live.changed.wait()
            except TimeoutError:
                return

    async def leave(self, name: str, source: str, member_id: str) -> None:
        """Remove a member. Raises NotFoundError."""
        live = self._groups.get(name)
        if live is None or live.state.source != source:
            raise NotFoundError(f"there is no consumer group {name!r}")
        await self._change(live, lambda group: leave(group, {member_id}))

    async def delete(self, name: str, check: Callable[[], None] = lambda: None) -> None:
        """Forget a group. check: raises where another one is meant; while it is called, the record
        of the group is that of its state. Raises NotFoundError, PreconditionFailedError while it
        has members."""
        live = self._groups.get(name)
        if live is None or not live.state.generation:
            raise NotFoundError(f"there is no consumer group {name!r}")

        def decide(group: Group) -> Group:
            check()
            if group.members:
                raise PreconditionFailedError(
                    f"consumer group {name!r} has {len(group.members)} members: stop them first"
                )
            return replace(group, is_deleted=True) if group.generation else group

        await self._change(live, decide)
        self._forget_unused(live)

    async def _change(self, live: _Live, decide: Callable[[Group], Group]) -> None:
        """Write the next state. It becomes valid once it is committed."""
        async with live.turn:
            if live.coming is not None:
                await self._write(live, live.coming)
            after = decide(live.state)
            if after != live.state:
                await self._write(live, after)

    async def _write(self, live: _Live, after: Group) -> None:
        """If it fails, the state may be valid all the same, and stays `coming`. **safety** Refused
        for a quota it is void only at the first attempt: an earlier one may still be committed."""
        is_first, live.coming = live.coming is None, after
        try:
            await self._save(after)
        except QuotaExceededError:
            if is_first:
                live.coming = None
            raise
        live.coming = None
        self._applied(live, after)

    def _applied(self, live: _Live, after: Group) -> None:
        before = live.state
        is_deleted = after.is_deleted
        live.state = Group(after.name, after.source, gone=after.gone) if is_deleted else after
        live.leases.observe(live.state, self._now())
        changed, live.changed = live.changed, asyncio.Event()
        changed.set()
        if after.generation != before.generation:
            logger.info(
                "group_generation",
                group=after.name,
                generation=after.generation,
                members=len(after.members),
                streams=len(after.shares),
            )

    # Time.

    async def watch(self) -> None:
        """Remove members that are silent or do not release streams, and notice new streams."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            with_its_streams = looks % STREAMS_EVERY == 0
            for live in list(self._groups.values()):
                if live.coming is not None or self._is_due(live, with_its_streams):
                    await self._look_at(live, with_its_streams=with_its_streams)
                self._forget_unused(live)

    def _is_due(self, live: _Live, with_its_streams: bool) -> bool:
        if not live.state.members:
            return live.state.generation > 0 and live.leases.is_over(self._now())
        return with_its_streams or bool(live.leases.late(live.state, self._now()))

    async def _look_at(self, live: _Live, *, with_its_streams: bool) -> None:
        def decide(group: Group) -> Group:
            now = self._now()
            if not group.members:
                ends = group.generation > 0 and live.leases.is_over(now)
                return replace(group, is_deleted=True) if ends else group
            late = live.leases.late(group, now)
            for member_id in sorted(late):
                logger.info("group_member_given_up", group=group.name, member=member_id)
            staying = leave(group, late)
            if not with_its_streams:
                return staying
            return with_streams(staying, self._streams_of(group.source))

        try:
            await self._change(live, decide)
        except JetstreamError as error:
            # The next look tries again. Members learn only of changes that were written.
            logger.info("group_not_changed", group=live.state.name, reason=error.message)


def _no_member_error(group: Group, heartbeat: Heartbeat) -> PreconditionFailedError:
    """To one that has been a member. Only a name that no other process has may join again: two
    processes of one name would replace each other for ever."""
    instance = heartbeat.member.instance
    if instance and any(member.instance == instance for member in group.members):
        return FencedInstanceError(
            f"another process has joined consumer group {heartbeat.group!r} as instance "
            f"{instance!r}, and this one has no streams any more: give each process an instance "
            "name of its own"
        )
    return PreconditionFailedError(
        f"this member of consumer group {heartbeat.group!r} sent no heartbeat in time: it has no "
        "streams any more, and must join again"
    )
