"""asyncio's event loop on simulated time: one for each thread of a process that has a loop.

Callbacks run as asyncio promises, first come, first served, those that are ready together in one
turn; how long it takes until a turn begins is drawn from the seed, and mostly nothing. What a real
loop asks of other threads (`run_in_executor`) happens at one instant of simulated time, a while
later. There are no context variables: nothing of what runs here has any.

The owner may freeze, also between two callbacks of a turn (`sleep_after`), and die: from then on
nothing of it runs, not even what its tasks would do when they are closed. And the loop's thread may
be held up in a turn while other threads of the process go on (`hold_up`). What those call soon
comes before what the callbacks of that turn call soon; what arrives on sockets comes after it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from contextvars import Context
from math import ceil
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakSet

from tests.simulation.clocks import MonotonicClock
from tests.simulation.disk import Killed
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.nats import NatsSocket

_set_running_loop = asyncio._set_running_loop

Callback = Callable[..., object]
CLOSED_AT_MOST = 99
"""A task may wait again each time it is closed: for what it has to stop."""


class Handle:
    """Of a callback, as asyncio's; `_when` in seconds."""

    __slots__ = ("_when", "arguments", "callback")

    def __init__(self, callback: Callback, arguments: tuple[Any, ...], when: float) -> None:
        self.callback: Callback | None = callback
        self.arguments = arguments
        self._when = when

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when

    def wakes(self, task: asyncio.Task[Any]) -> bool:
        """Whether it ends what that task waits for."""
        return task._fut_waiter in self.arguments  # type: ignore[attr-defined]


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. A Runner: events may be the loop's."""

    def __init__(
        self,
        world: World,
        name: str,
        died: Callable[[str], None],
        clock: MonotonicClock | None = None,
    ) -> None:
        """died: called when the disk kills the process in one of its callbacks."""
        self.world = world
        self.clock = clock or MonotonicClock()
        self.name = name
        self.alive = True
        self.paused_until = 0
        self.sleep_after: tuple[int, int] | None = None
        """After so many more callbacks it freezes, until then."""
        self._died = died
        self.hold_up: Callable[[Sequence[Handle]], int] | None = None
        """For how long the thread is held up in a turn, before it runs these callbacks."""
        self._ready: deque[Handle] = deque()
        self._held_up: int | None = None
        """How many callbacks the turn has in which the thread is held up."""
        self._unseen: list[Handle] = []
        """What has happened outside since then."""
        self._is_turn_due = False
        self._called_at = 0
        self._thread_free_at: dict[object, int] = {}
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __repr__(self) -> str:
        return f"<loop of {self.name}>"

    def die(self, reason: str) -> None:
        self._died(reason)

    def end(self) -> list[asyncio.Task[Any]]:
        """Run nothing any more. Returns the tasks that have not ended: whoever has them decides
        when they are closed (`bury`)."""
        self.alive = False
        tasks = [task for task in self._tasks if not task.done()]
        self._ready.clear()
        self._unseen.clear()
        return tasks

    def wake(self) -> None:
        """The owner freezes no more, and if it is frozen, it goes on now."""
        self.sleep_after = None
        self.paused_until = min(self.paused_until, self.world.now)
        self.world.wakes(self)

    # From outside.

    def enter(self, callback: Callback, *arguments: Any) -> None:
        """An event of the world happens to the owner: call that, in a turn that begins now."""
        if self.alive:
            self._happens(Handle(callback, arguments, 0.0))

    def _happens(self, handle: Handle) -> None:
        if self._held_up is not None:
            self._unseen.append(handle)
            return
        self._ready.append(handle)
        if not self._is_turn_due:
            self._turn()

    def _called(self, callback: Callback, *arguments: Any) -> None:
        """By another thread of the owner, which does not wait for this one."""
        if self._held_up is not None:
            self._ready.append(Handle(callback, arguments, 0.0))
        else:
            self.enter(callback, *arguments)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callback, *arguments: Any, context: Context | None = None
    ) -> None:
        world = self.world
        self._called_at = max(self._called_at + 1, world.now + world.between(3, 40))
        world.at(self._called_at, self, self._called, callback, *arguments)

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.clock.read(self.world.now) / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *arguments: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, arguments, 0.0)
        self._ready.append(handle)
        if not self._is_turn_due:
            self._plan_turn()
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *arguments: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *arguments: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, arguments, when)
        self._fire_at(when, handle)
        return handle

    def _fire_at(self, when: float, handle: Handle) -> None:
        world, clock, due_us = self.world, self.clock, when * 1e6
        shown_at = due_us if clock.is_right else clock.when(due_us)
        at = max(ceil(shown_at - 1e-3), world.now)
        while not self._is_due(due_us, at):
            at += 1  # Its clock shows whole microseconds.
        world.at(at, self, self._fire, handle)

    def _is_due(self, due_us: float, at: int) -> bool:
        """Whether its clock shows that then. Never too early: who waits for a time looks again."""
        return self.clock.is_right or self.clock.read(at) >= due_us - 1e-3

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        # A name of its own costs, and is not wanted.
        task = asyncio.Task(coroutine, loop=self, name=name or "task", context=context)
        self._tasks.add(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        world = self.world
        delay = world.between(20, 400)
        if world.chance(0.02):
            delay += world.between(0, 300_000)
        at = max(self._thread_free_at.get(executor, 0) + 1, world.now + delay)
        self._thread_free_at[executor] = at
        world.at(at, self, self._work, function, arguments, future)
        return future

    async def create_connection(  # type: ignore[override]
        self, make_protocol: Callable[[], asyncio.BaseProtocol], *, sock: NatsSocket, **_: object
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        protocol = make_protocol()
        return sock.connect(protocol), protocol

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A mistake in a driver: nothing may raise as far as here."""
        if self.alive:
            self.world.broken(f"{self.name}: {context['message']}", context.get("exception"))

    # Inside.

    def _plan_turn(self) -> None:
        self._is_turn_due = True
        self.world.later(1 + int(self.world.random.random() * 12), self, self._turn)

    def _fire(self, handle: Handle) -> None:
        if handle.callback is not None:
            if not self._is_due(handle.when() * 1e6, self.world.now):
                self._fire_at(handle.when(), handle)  # It was suspended meanwhile.
                return
            self._happens(handle)

    def _turn(self) -> None:
        """One turn, and mostly those that follow from it."""
        self._is_turn_due = True
        count = len(self._ready)
        held_up_us = 0 if self.hold_up is None else self.hold_up(tuple(self._ready))
        if held_up_us:
            self._held_up = count
            self.world.later(held_up_us, self, self._go_on)
        else:
            self._run_turn(count)

    def _go_on(self) -> None:
        count, self._held_up = self._held_up, None
        assert count is not None
        self._run_turn(count)

    def _run_turn(self, count: int) -> None:
        ready = self._ready
        world = self.world
        draw = world.random.random
        outer = asyncio._get_running_loop()
        _set_running_loop(self)
        try:
            while True:
                self._call_each(count)
                ready.extend(self._unseen)
                self._unseen.clear()
                if not ready or self.paused_until > world.now or self.hold_up or draw() < 0.3:
                    break
                count = len(ready)
        except Killed:
            self.die("in the middle of a disk operation")
        finally:
            _set_running_loop(outer)
            self._is_turn_due = False
            if ready:
                self._plan_turn()

    def _call_each(self, count: int) -> None:
        ready = self._ready
        for _ in range(count):
            if not ready:
                break  # It has died.
            handle = ready.popleft()
            callback = handle.callback
            if callback is not None:
                try:
                    callback(*handle.arguments)
                except Exception as error:  # noqa: BLE001  as asyncio does
                    self.call_exception_handler(
                        {"message": "a callback raised", "exception": error}
                    )
            if self.sleep_after is not None and self._falls_asleep():
                break

    def _falls_asleep(self) -> bool:
        assert self.sleep_after is not None
        left, until = self.sleep_after
        if left:
            self.sleep_after = left - 1, until
            return False
        self.sleep_after = None
        self.paused_until = max(self.paused_until, until)
        return True

    def _work(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        """In another thread of the process: no loop runs there."""
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001  whoever waits for it raises it
            self.call_soon_threadsafe(_end, future, None, error)
        else:
            self.call_soon_threadsafe(_end, future, result, None)


def _end(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def bury(tasks: list[asyncio.Task[Any]]) -> None:
    """Close the tasks of processes that are dead: nobody hears of what they do then. So are those
    that they make in their end, which never run."""
    with (
        warnings.catch_warnings(),
        patch.object(sys, "unraisablehook", lambda _: None),
        closing(asyncio.new_event_loop()) as loop,
    ):
        # What they gather in their end belongs to a loop, if it is nothing: asyncio would make one.
        asyncio.set_event_loop(loop)
        warnings.simplefilter("ignore", RuntimeWarning)  # Of what was to be awaited yet.
        loops = dict.fromkeys([loop, *(task.get_loop() for task in tasks)])
        buried: dict[asyncio.Task[Any], None] = {}
        has_waited = False
        while tasks:
            while tasks:
                task = tasks.pop()
                buried[task] = None
                has_waited |= _close(task)
            if has_waited:
                gc.collect()  # What waited once more is closed when nobody holds it: here, unheard.
            tasks.extend(t for each in loops for t in asyncio.all_tasks(each) if t not in buried)
        if has_waited:
            gc.collect()  # And what that made.
        asyncio.set_event_loop(None)


def _close(task: asyncio.Task[Any]) -> bool:
    """Whether it waited once more in its end."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for attempt in range(CLOSED_AT_MOST):
        try:
            coroutine.close()  # type: ignore[union-attr]
            return attempt > 0
        except (Exception, Killed):  # noqa: BLE001  its end is of no interest
            continue
    return True
