"""A member of a consumer group: its heartbeats, and the streams that they tell it to read.

`told` is what the coordinator has assigned, `held` is what the consumer reads or is beginning to
read. Between two records the consumer changes what it reads accordingly, and says so (`adjusted`);
the next heartbeat tells the coordinator.

**safety** One session after the last heartbeat that was answered, by the member's own clock, it
holds nothing any more: its streams may belong to other members. That clock goes on while the
machine is suspended. It joins again under another id,
after a pause that grows. A member whose instance another process has taken ends: before it joins
again it asks for that under its last id, because the answer that named it may be lost. If the name
is taken only then, the coordinator sees by the id that this process joins again, and refuses it.

**safety** With an instance it asks twice to join: the second heartbeat says whom it replaces, as
the answer to the first one named. So what arrives after its process has died takes the name from
no member that has got it since.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Set
from functools import partial

from jetstream_client._closing import end_tasks
from jetstream_client._log import logger
from jetstream_client.transport.groups import Groups
from jetstream_client.transport.recovery import Caller, Recovery, recovery, repeats
from jetstream_client.transport.retries import backoff
from jetstream_protocol.cursor_names import check_cursor_name
from jetstream_protocol.errors import (
    FencedInstanceError,
    InternalError,
    InvalidRequestError,
    JetstreamError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.generated import groups_pb2 as pb

LEAVE_SECONDS = 0.25
"""How long a member waits until it has left, if its joining or its last commits were not answered:
its caller has waited for that already. Its session ends anyway."""
SESSION_SECONDS = (1.0, 300.0)
_RETRY_SECONDS = 0.2
_REJOIN_SECONDS_MAX = 10.0


_boot_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):  # Where there is none, a suspension is not noticed.
    _boot_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


def lease_clock(loop_clock: Callable[[], float]) -> Callable[[], float]:
    """The clock of an event loop, which stands still while the machine is suspended, and so long
    as it was since now."""
    # Both are read in such an order that no pause between them looks like a suspension.
    before = -time.monotonic() + _boot_clock()

    def now() -> float:
        suspended = _boot_clock() - time.monotonic() - before
        return loop_clock() + max(0.0, suspended)

    return now


class Membership:
    """Joins with `begin`, and stays a member until `end`. id, generation: its commits carry both.
    is_lost: it holds nothing any more, and must drop its streams without a commit. failure: it
    cannot go on."""

    def __init__(
        self, groups: Groups, group: str, source: str, instance: str, session_seconds: float
    ) -> None:
        if not SESSION_SECONDS[0] <= session_seconds <= SESSION_SECONDS[1]:
            raise InvalidRequestError(
                f"session_timeout is {session_seconds:g} s; it must be from {SESSION_SECONDS[0]:g} "
                f"to {SESSION_SECONDS[1]:g}"
            )
        self.group = check_cursor_name(group)
        self._process = self.id = secrets.token_hex(8)
        self.generation = 0
        self._may_be_member = False  # It has asked to join, and was not refused.
        self._last: tuple[str, int] | None = None
        """Its id and generation before it was lost, until it is known whether its name was taken.
        """
        self.assigned_since: dict[int, int] = {}
        """The streams that it is to read, each with the generation since which every answer has
        assigned it: since then it was no other member's, as this one never heard that it is to
        release it."""
        self.is_lost = False
        self._differs = False  # It must begin or release streams.
        self._coming: Set[int] = frozenset()
        """What is assigned to it and it cannot begin yet: the reader goes on with the others."""
        self.failure: JetstreamError | None = None
        self.news = asyncio.Event()
        self._groups = groups
        self._source = source
        self._instance = check_cursor_name(instance) if instance else ""
        self._session = session_seconds
        self._held: Callable[[], Set[int]] = frozenset
        self._adjusted = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._lapsing: asyncio.Task[None] | None = None
        self._now: Callable[[], float] = lambda: 0.0  # Once it has begun: `lease_clock`.
        self._heard = 0.0
        self._joined = 0.0
        self._losses = 0

    async def begin(self, held: Callable[[], Set[int]]) -> None:
        """Join. held: says what the consumer reads, or begins to read. Raises JetstreamError."""
        self._held = held
        loop = asyncio.get_running_loop()
        self._now = lease_clock(loop.time)
        self._heard = self._joined = self._now()
        try:
            await self._beat(0.0)
        except FencedInstanceError:
            raise
        except PreconditionFailedError:
            self.lost()  # It joined, was not answered in time, and was removed.
            self.is_lost = False
            await self._beat(0.0)
        self._beating = loop.create_task(self._beat_until_it_fails())
        self._lapsing = loop.create_task(self._lapse_in_time())

    @property
    def told(self) -> Set[int]:
        """The streams that it is to read."""
        return self.assigned_since.keys()

    @property
    def must_adjust(self) -> bool:
        """Whether what it reads must change before the next record."""
        return self.is_lost or self._differs or self._has_lapsed

    @property
    def _has_lapsed(self) -> bool:
        """Asked for each record: a process that was frozen must not go on."""
        return bool(self.told) and self._now() >= self._heard + self._session

    def check_lease(self) -> None:
        """Lose what it holds if its session is over."""
        if self._has_lapsed and not self.is_lost:
            logger.warning(
                "consumer group %r: no coordinator has answered for a whole session; its streams "
                "may be others' now",
                self.group,
            )
            self.lost()

    def adjusted(self, coming: Set[int] = frozenset()) -> None:
        """What it reads has changed: the coordinator is asked at once. coming: what is assigned and
        it is to read, and begins as soon as it can."""
        self._coming = coming
        self._compare()
        self._adjusted.set()

    def _compare(self) -> None:
        self._differs = self.told != self._held() | self._coming

    def lost(self) -> None:
        """It is no member any more: it joins under another id."""
        if self._now() - self._joined > _REJOIN_SECONDS_MAX + self._session:
            self._losses = 0  # It was one for long.
        self._losses += 1
        self.is_lost = True
        self.assigned_since = {}
        if self._instance and self.generation:
            self._last = self.id, self.generation
        self.id, self.generation = f"{self._process}.{secrets.token_hex(8)}", 0
        self._may_be_member = False
        self.news.set()

    async def _beat_until_it_fails(self) -> None:
        """A bug of ours must not leave a reader waiting for ever."""
        try:
            await self._beat_on_and_on()
        except Exception as error:  # noqa: BLE001  reported to the reader, who would wait for ever
            self.failure = InternalError(f"the heartbeats of the member failed: {error!r}")
            self.news.set()

    async def _beat_on_and_on(self) -> None:
        while True:
            self._adjusted.clear()
            if self.must_adjust or self.told != self._held():
                # The coordinator would answer at once, over and over.
                try:
                    async with asyncio.timeout(self._session / 3):
                        await self._adjusted.wait()
                except TimeoutError:
                    pass
            if self.is_lost:
                continue
            if not self.generation:
                await asyncio.sleep(self._pause())
            try:
                await self._check_name()
                await self._beat(self._session / 3)
            except FencedInstanceError as error:
                self.lost()
                self.failure = error
                return
            except JetstreamError as error:
                what = recovery(error, Caller.HEARTBEAT)
                if what is Recovery.REJOIN:
                    logger.warning("consumer group %r: %s", self.group, error.message)
                    self.lost()
                    continue
                if what is not Recovery.REPEAT:
                    self.failure = error
                    self.news.set()
                    return
                await asyncio.sleep(_RETRY_SECONDS * (1 + random.random()))

    def _pause(self) -> float:
        """Before it joins again: none after the first loss, then ever more."""
        if self._losses < 2:
            return 0.0
        return backoff(_RETRY_SECONDS, _REJOIN_SECONDS_MAX, self._losses, random.random())

    async def _lapse_in_time(self) -> None:
        """Give up what it holds one session after the last answered heartbeat, whatever the
        heartbeats wait for."""
        while True:
            self.check_lease()
            left = self._heard + self._session - self._now()
            await asyncio.sleep(left if left > 0 else _RETRY_SECONDS)

    async def _check_name(self) -> None:
        """Raise FencedInstanceError if another process took the name while this one was no member:
        joining would take it back from there. Under the last id it is no member, or holds nothing.
        """
        if self._last is None:
            return
        try:
            await self._groups.heartbeat(self._request(*self._last, frozenset(), 0.0))
        except FencedInstanceError:
            raise
        except PreconditionFailedError:
            pass  # It was removed, and its name is free.
        self._last = None

    def _request(
        self,
        member_id: str,
        generation: int,
        held: Set[int],
        wait: float,
        replaces: str | None = None,
    ) -> pb.GroupHeartbeatRequest:
        return pb.GroupHeartbeatRequest(
            group=self.group,
            source=self._source,
            member=pb.ConsumerGroup.Member(
                id=member_id,
                instance=self._instance,
                session_timeout_ms=int(self._session * 1000),
            ),
            generation=generation,
            held=sorted(held),
            wait_ms=int(wait * 1000),
            replaces=replaces,
        )

    async def _beat(self, wait: float) -> None:
        asked, member_id = self._now(), self.id
        self._may_be_member = True
        try:
            answer = await self._answer(wait)
        except PreconditionFailedError:
            if self.id == member_id:
                raise
            return
        except JetstreamError as error:
            if not self.generation and not repeats(error, Caller.HEARTBEAT):
                self._may_be_member = False
            raise
        if self.id != member_id:
            return  # It was lost meanwhile: this was answered to a member that it is no more.
        self._heard = asked
        if not self.generation:
            self._joined = asked
        self.generation = answer.generation
        since = self.assigned_since
        self.assigned_since = {each: since.get(each, self.generation) for each in answer.assigned}
        self._compare()
        if self.must_adjust:
            self.news.set()

    async def _answer(self, wait: float) -> pb.GroupHeartbeatResponse:
        """To one heartbeat, or to those by which it joins: again if the answer named whom it
        replaces, and after a pause if that has changed meanwhile."""
        member_id, generation = self.id, self.generation
        replaces = "" if self._instance and not generation else None
        asked = 0
        while True:
            request = self._request(member_id, generation, self._held(), wait, replaces)
            answer = await self._groups.heartbeat(request)
            if not answer.HasField("replaces"):
                return answer
            replaces = answer.replaces
            asked += 1
            if asked > 1:
                await asyncio.sleep(_RETRY_SECONDS * (1 + random.random()))

    def check_heard(self, timeout: float) -> None:
        """Raise UnavailableError if a coordinator should have answered `timeout` seconds ago."""
        silent = self._now() - self._heard
        if silent > self._session + timeout:
            raise UnavailableError(
                f"no coordinator of consumer group {self.group!r} has answered for {silent:.0f} s"
            )

    async def end(self, *, is_answered: bool = True) -> None:
        """A member with its own name keeps its place until its session ends. One whose joining
        was not answered, or was cancelled, may be a member all the same. Not while `begin` is under
        way. is_answered: False: its last commits were not."""
        await end_tasks(self._beating, self._lapsing)
        if self._instance or not self._may_be_member:
            return
        try:
            is_awaited = self.generation and is_answered
            async with asyncio.timeout(None if is_awaited else LEAVE_SECONDS):
                await self._groups.leave(self.group, self._source, self.id)
        except NotFoundError:
            return  # It was never a member.
        except TimeoutError:
            logger.warning("consumer group %r: not left: no answer in time", self.group)
        except JetstreamError as error:
            logger.warning("consumer group %r: not left: %s", self.group, error.message)
