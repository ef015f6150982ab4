"""Reading as a member of a consumer group: `async for message in client.consume_group(…)`.

Each stream that the member reads has its own consumer, with the group's cursor. A stream that
goes to another member is released between two records: `on_revoked` is called, the records that are
done are committed, and only then it is reported to the coordinator. So records come in the order of
their stream, and no two members that the coordinator still counts read the same stream.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from typing import Any, Generic, NamedTuple, Self, TypeAlias

from jetstream_client._closing import AsyncClosing, Beginning, end_tasks
from jetstream_client._log import logger
from jetstream_client.reading.beginnings import Beginnings
from jetstream_client.reading.byte_budget import BUFFER_BYTES, ByteBudget
from jetstream_client.reading.consumer import AsyncBatches, AsyncConsumer
from jetstream_client.reading.fetch_buffer import FetchBuffer
from jetstream_client.reading.membership import Membership
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.values.type_variables import K, Typed, V
from jetstream_protocol.errors import PreconditionFailedError

SESSION_SECONDS = 10.0
"""The default session timeout of a member."""

Listener: TypeAlias = Callable[[Sequence[str]], Awaitable[None] | None]
"""Called with names of streams."""
MakeConsumer: TypeAlias = Callable[[int, Membership], AsyncConsumer[V, K]]


class Part(Generic[V, K]):
    """One stream of the member. name: once it has begun. is_announced: `on_assigned` was called."""

    def __init__(self, stream_id: int, consumer: AsyncConsumer[V, K]) -> None:
        self.stream_id = stream_id
        self.consumer = consumer
        self.fetching: asyncio.Task[bool] | None = None
        self.is_held = True
        self.is_announced = False

    @property
    def name(self) -> str:
        return self.consumer.stream_name

    async def close(self, *, commit: bool) -> None:
        self.is_held = False
        await end_tasks(self.fetching)
        await (self.consumer.aclose() if commit else self.consumer.abandon())


class StreamBeginning(NamedTuple):
    """A stream that is being begun, beside the reader. since: see `Membership.assigned_since`."""

    task: asyncio.Task[Part[Any, Any]]
    since: int


class AsyncGroupConsumer(AsyncClosing, Typed[V, K]):
    """An endless async iterator over the records of the streams that this member reads."""

    def __init__(
        self,
        membership: Membership,
        make: MakeConsumer[V, K],
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        before_joining: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """before_joining: awaited once, or again if it has failed."""
        self.budget = ByteBudget(BUFFER_BYTES)
        """Shared by the consumers of its streams."""
        self._membership = membership
        self._before_joining = before_joining
        self._make = make
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._parts: dict[int, Part[V, K]] = {}
        self._turns = Beginnings()
        self._beginning: dict[int, StreamBeginning] = {}
        self._unwanted: list[asyncio.Task[Part[V, K]]] = []  # of these, that are not ended yet
        self._must_begin = False  # One of these has ended, or it is time to begin others.
        self._alarm: asyncio.TimerHandle | None = None
        self._untold: list[Part[V, K]] = []  # for which `on_assigned` has not returned yet
        self._ending: set[Part[V, K]] = set()  # which have begun to close, and are not closed
        self._current: Part[V, K] | None = None
        self._joining = Beginning()
        self._began = False
        self._closed = False
        self._has_ended = asyncio.Event()
        self._is_letting_go = False
        self._has_failed = False

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.streams)) or "no streams"
        return f"<AsyncGroupConsumer of {self._membership.group!r}: {names}>"

    @property
    def streams(self) -> list[str]:
        """The names of the streams that it reads now."""
        return [part.name for part in self._parts.values()]

    @property
    def generation(self) -> int:
        """The generation of the group that the coordinator last sent to this member."""
        return self._membership.generation

    @property
    def parts(self) -> list[Part[V, K]]:
        """The same, with their consumers."""
        return list(self._parts.values())

    @property
    def current(self) -> Part[V, K] | None:
        """Of which the next records are handed out; None: it is not known yet, or must change."""
        return None if self.must_adjust else self._current

    @property
    def is_lost(self) -> bool:
        """Whether its streams may be others' already: nothing of them can be committed."""
        return self._membership.is_lost

    @property
    def must_adjust(self) -> bool:
        """Whether its streams are to change before the next record."""
        by_itself = self._has_failed or self._must_begin or self._untold or self._ending
        return self._membership.must_adjust or bool(by_itself)

    async def begin(self) -> None:
        """Join the group. Idempotent."""
        if not (self._began or self._closed):
            await self._joining.wait(self._join)

    async def _join(self) -> None:
        if self._before_joining is not None:
            await self._before_joining()
            self._before_joining = None
        await self._membership.begin(self._held)
        self._began = True

    def _held(self) -> Set[int]:
        """A bound method keeps this consumer alive while it is a member, so that closing the client
        can close it."""
        return self._parts.keys()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[V, K]:
        while True:
            part = self.current
            if part is not None:
                front = part.consumer.buffer.front
                message: Message[Any, Any] | None = front.record()
                if message is not None:
                    message = part.consumer.deserializers.apply(message)
                    front.taken += 1  # Not earlier: see AsyncConsumer.
                    return message
            found = await self.refill()
            if found is None:
                raise StopAsyncIteration
            found.begin_rows()

    def batches(self, max_records: int | None = None) -> AsyncIterator[Messages]:
        """Iterate over the same records as `Messages`, each of one stream. max_records: at most so
        many in each."""
        return AsyncBatches(self._next_batch, max_records)

    async def _next_batch(self, max_records: int | None) -> Messages | None:
        found = await self.next_messages(max_records)
        return None if found is None else found[1]

    async def next_messages(
        self, max_records: int | None = None
    ) -> tuple[AsyncConsumer[V, K], Messages] | None:
        """Hand out the next records of any stream together, possibly none; None: it was closed."""
        while await self.refill() is not None:
            part = self.current  # **safety** It may have been frozen since the records came.
            messages = None if part is None else part.consumer.takes_batch(max_records)
            if part is not None and messages is not None:
                return part.consumer, messages
        return None

    async def refill(self) -> FetchBuffer | None:
        """Find a stream of which something is at hand, and begin and end streams before. Returns
        the buffer from which it is to be taken; None: it was closed. All that was handed out is
        done."""
        await self.begin()
        if self._current is not None and self._current.is_held:
            self._current.consumer.buffer.mark_handed_out_done()
        while not self._closed:
            if self._membership.failure is not None:
                raise self._membership.failure.with_traceback(None)
            if self.must_adjust:
                await self._adjust()
            part = self._current
            if part is None or not part.is_held or part.consumer.buffer.course.current.is_over:
                self._current = part = await self._next()
            if part is not None:
                return part.consumer.buffer
        return None

    async def _next(self) -> Part[V, K] | None:
        """Whatever comes first; None: news of the group. What the other streams have fetched stays
        with them."""
        for part in self._parts.values():
            if part.fetching is None:
                part.fetching = asyncio.ensure_future(part.consumer.is_ready())
        news = asyncio.ensure_future(self._membership.news.wait())
        fetches = {part.fetching: part for part in self._parts.values() if part.fetching}
        try:
            done, _ = await asyncio.wait([*fetches, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        self._membership.news.clear()
        if self._has_failed:
            return None  # Which `_adjust` sees to.
        for fetch, part in fetches.items():
            if fetch in done:
                # The others wait in front of it the next time.
                self._parts[part.stream_id] = self._parts.pop(part.stream_id)
                part.fetching = None
                return part if not fetch.cancelled() and fetch.result() else None
        return None

    async def adjust(self) -> None:
        """Release streams and begin others, if the coordinator asks for it: for a caller that
        delays its next call."""
        if self.must_adjust:
            await self._adjust()

    async def wait_for_news(self) -> None:
        """Return once something of the group has changed, or may have."""
        await self._membership.news.wait()
        self._membership.news.clear()

    def check_heard(self, timeout: float) -> None:
        """Raise UnavailableError if a coordinator should have answered `timeout` seconds ago."""
        self._membership.check_heard(timeout)

    async def _adjust(self) -> None:
        """Bring what is read in line with what is assigned to this member."""
        membership = self._membership
        membership.check_lease()
        self._check_parts()
        if membership.is_lost:
            await self._stop_beginning(list(self._beginning))
            self._turns = Beginnings()
            await self._let_go(list(self._parts.values()), commit=False)
            membership.is_lost = False
            membership.adjusted()
            return
        assigned = membership.told
        # A call that was cancelled may have left some half closed: they begin anew.
        going = [p for n, p in self._parts.items() if n not in assigned or p in self._ending]
        await self._let_go(going, commit=True)
        failure = await self._begin_parts()
        missing = membership.told - self._parts.keys()
        membership.adjusted(missing)
        self._set_alarm(missing)
        if failure is not None:
            raise failure
        if self._untold:
            await self._tell_assigned()

    # Beginning. A call that is cancelled leaves it under way: it would never end if each call had
    # less time than it takes.

    async def _begin_parts(self) -> BaseException | None:
        """Begin the streams that are missing, and wait for those that begin quickly. Returns what
        the first of those that failed has failed with; they are begun again by later calls."""
        failures: dict[int, BaseException] = {}
        now = asyncio.get_running_loop().time
        while True:
            self._must_begin = False
            failures |= await self._take_begun()
            if self._closed or self._membership.is_lost:
                break
            missing = self._membership.told - self._parts.keys()
            await self._stop_beginning(self._turns.only(missing))
            missing -= failures.keys()
            while (number := self._turns.next(missing, now())) is not None:
                self._start_beginning(number)
            if not self._turns.is_awaited(now()):
                break
            due = self._turns.due_at(missing, now())
            await asyncio.wait(
                [each.task for each in self._beginning.values()],
                timeout=None if due is None else max(0.0, due - now()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        self._must_begin |= bool(failures)
        return next(iter(failures.values()), None)

    def _start_beginning(self, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._begin_part(number))
        self._beginning[number] = StreamBeginning(
            task, self._membership.assigned_since.get(number, 0)
        )
        task.add_done_callback(self._has_begun)

    async def _begin_part(self, number: int) -> Part[V, K]:
        part = Part(number, self._make(number, self._membership))
        try:
            await part.consumer.begin()
        except BaseException:
            await part.close(commit=False)
            raise
        return part

    def _has_begun(self, task: asyncio.Task[Part[V, K]]) -> None:
        if not task.cancelled():
            task.exception()  # The next call raises it, if there is one.
            self._wants_to_begin()

    def _wants_to_begin(self) -> None:
        self._must_begin = True
        self._membership.news.set()

    def _set_alarm(self, missing: Set[int]) -> None:
        """Wake the reader when the next beginning may start, even if none has ended by then."""
        self._stop_alarm()
        loop = asyncio.get_running_loop()
        due = self._turns.due_at(missing, loop.time())
        if due is not None:
            self._alarm = loop.call_at(due, self._wants_to_begin)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _take_begun(self) -> dict[int, BaseException]:
        """Read on in the streams whose beginning has ended. Returns what others have failed
        with."""
        failures: dict[int, BaseException] = {}
        ended = [(n, each) for n, each in self._beginning.items() if each.task.done()]
        for number, (task, since) in ended:
            del self._beginning[number]
            error = None if task.cancelled() else task.exception()
            now = asyncio.get_running_loop().time()
            self._turns.ended(number, now, has_failed=error is not None)
            if error is not None:
                failures[number] = error
                group = self._membership.group
                logger.warning("consumer group %r: stream %d not begun: %s", group, number, error)
            elif not task.cancelled() and not self._take(task.result(), since):
                self._unwanted.append(task)
        await self._end_unwanted()
        return failures

    def _take(self, part: Part[V, K], since: int) -> bool:
        """Read a stream that has begun; False: it is unwanted. **safety** What is assigned
        meanwhile counts: a stream that was taken away was another member's, and its position has
        moved on, even if it is this one's again. One that stayed is taken, however often the others
        change."""
        membership, number = self._membership, part.stream_id
        membership.check_lease()
        if self._closed or membership.assigned_since.get(number) != since:
            return False
        self._parts[number] = part
        self._untold.append(part)
        part.consumer.failures_told_to(self._part_has_failed)
        return True

    async def _stop_beginning(self, numbers: Sequence[int]) -> None:
        tasks = [self._beginning.pop(number).task for number in numbers]
        for task in tasks:
            task.cancel()
        self._unwanted += tasks
        await self._end_unwanted()

    async def _end_unwanted(self) -> None:
        """A call that is cancelled leaves the rest to the next one."""
        while self._unwanted:
            task = self._unwanted[0]
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().close(commit=False)
            if task in self._unwanted:
                self._unwanted.remove(task)

    def _part_has_failed(self) -> None:
        self._has_failed = True
        self._membership.news.set()

    def _check_parts(self) -> None:
        """Raise what the commits of a stream failed with. A refusal says that the stream is
        another's: then this member is none any more."""
        if not self._has_failed:
            return
        for part in self._parts.values():
            try:
                part.consumer.check()
            except PreconditionFailedError as error:
                logger.warning("consumer group %r: %s", self._membership.group, error.message)
                self._membership.lost()
        self._has_failed = False

    async def _let_go(self, parts: Sequence[Part[V, K]], *, commit: bool) -> None:
        """Raises an error of the listener, before anything is committed, or of the commits, in the
        end."""
        try:
            await self._tell_revoked([part for part in parts if part.is_announced], commit=commit)
        except Exception:
            await self._close(parts, commit=False)
            raise
        await self._close(parts, commit=commit)

    async def _tell_assigned(self) -> None:
        """Until the listener has returned, it is called again before the next record."""
        for part in self._untold:
            part.is_announced = True
        await tell(self._on_assigned, [part.name for part in self._untold])
        self._untold = []

    async def _tell_revoked(self, parts: Sequence[Part[V, K]], *, commit: bool) -> None:
        if not parts:
            return
        self._is_letting_go = True
        try:
            await tell(self._on_revoked, [part.name for part in parts])
        except PreconditionFailedError as error:
            if commit:
                raise
            # The listener has tried to commit, which a member that was removed cannot.
            logger.warning("consumer group %r: %s", self._membership.group, error.message)
        finally:
            self._is_letting_go = False
        for part in parts:
            part.is_announced = False

    async def _close(self, parts: Sequence[Part[V, K]], *, commit: bool) -> None:
        """All at a time: their commits share a call, and its time limit."""
        self._ending.update(parts)
        failures = await asyncio.gather(
            *(part.close(commit=commit) for part in parts), return_exceptions=True
        )
        self._ending.difference_update(parts)
        for part in parts:
            self._parts.pop(part.stream_id, None)
            if part in self._untold:
                self._untold.remove(part)
        self._raise_first(failures, but_refusals=True)

    def _raise_first(
        self, failures: Sequence[BaseException | None], *, but_refusals: bool = False
    ) -> None:
        """but_refusals: log those: the stream is another's already, who repeats the records."""
        found = [failure for failure in failures if failure is not None]
        for failure in list(found):
            if but_refusals and isinstance(failure, PreconditionFailedError):
                logger.warning("consumer group %r: %s", self._membership.group, failure.message)
                found.remove(failure)
        if found:
            raise found[0]

    async def commit(self) -> None:
        """Commit all records returned so far as done. Returns once that is committed. In
        `on_revoked` it commits those that are done: after an error in the block, all but the one
        that was being handled.

        Raises PreconditionFailedError for a stream that belongs to another member by now.
        """
        commits = []
        for part in self._parts.values():
            position = part.consumer.position
            if position is not None and self._is_letting_go:
                position, _ = part.consumer.buffer.course.done()
            if position is not None:
                commits.append(part.consumer.commit(position))
        self._raise_first(await asyncio.gather(*commits, return_exceptions=True))

    def _ended_well(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Count all records returned so far as done: the block that handled them ended without an
        error."""
        if self._current is not None and self._current.is_held:
            self._current.consumer.finish()

    async def aclose(self) -> None:
        """Commit what is done, and leave the group. Idempotent; a call that is cancelled commits
        nothing more, and leaves.

        Raises the error of that commit if a later one would fail, too. If no server answers, or the
        streams are others' already, that is only logged: the next reader repeats the records.
        """
        if self._closed:
            if not self._is_letting_go:  # Else its listener may be who calls.
                await self._has_ended.wait()
            return
        self._closed = True
        self._stop_alarm()
        parts = self.parts
        for part in parts:
            part.consumer.buffer.end()  # No record comes after `on_revoked` for its stream.
        try:
            await self._joining.end()
            await self._stop_beginning(list(self._beginning))
            await self._let_go(parts, commit=not self._membership.is_lost)
        finally:
            try:  # What a cancelled call has left.
                await self._end_unwanted()
                await self._close(self.parts, commit=False)
            finally:
                is_answered = not any(part.consumer.is_unanswered for part in parts)
                try:
                    await self._membership.end(is_answered=is_answered)
                finally:
                    self._membership.news.set()
                    self._has_ended.set()


async def tell(listener: Listener | None, names: Sequence[str]) -> None:
    if listener is None:
        return
    answer: Any = listener(names)
    if inspect.isawaitable(answer):
        await answer
