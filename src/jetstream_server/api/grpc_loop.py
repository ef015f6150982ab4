"""gRPC's own event loop, on a thread of its own, and the way from there to the node's loop.

    gRPC's loop                                    the node's loop
    takes a call, reads and checks its request ──> the service's method
    writes the answer  <─────────────────────────  its answer, or one after another

gRPC takes one new call in a turn of the loop it lives on. On a busy node a turn takes a tenth of a
second: with callers that come by the hundred, whoever asked last would wait for a minute. Turns are
short here. The node's loop begins up to AT_ONCE methods in a turn of its own, in the order of the
calls, and none for a caller that has left; what takes long in a method, the method does in turns.

gRPC is used on this loop only, by the other nodes' channels too: it cannot serve two well.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop
from grpc import aio

from jetstream_protocol.errors import UnavailableError
from jetstream_server.background import FAILED_TASK

T = TypeVar("T")

AT_ONCE = 16
"""Methods begun in one turn of the node's loop; most take less than half a millisecond."""
_END: Final = object()

_Context = aio.ServicerContext[Any, Any]
_Work = Coroutine[Any, Any, Any]


class Call:
    """One call, for the method that answers it on the node's loop.

    peer: whose it is, as gRPC names connections ("ipv4:127.0.0.1:40000"). metadata: its headers.
    """

    def __init__(self, context: _Context) -> None:
        self.peer: str = context.peer()
        self.metadata = context.invocation_metadata() or ()
        self._ended = False
        self._then: list[Callable[[], object]] = []

    def when_ended(self, then: Callable[[], object]) -> None:
        """Have it called once the answer has been taken, or nobody waits for it any more; at once
        if that is so by now."""
        if self._ended:
            then()
        else:
            self._then.append(then)

    def end(self) -> None:
        self._ended = True
        for then in self._then:
            then()


class GrpcLoop:
    """`start` and `stop` are called on the node's loop, once each."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="grpc", daemon=True)
        self._is_stopping = False

    def start(self) -> None:
        self._node_loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._tell)
        self._thread.start()

    def _tell(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What goes wrong here is the node's to judge."""
        self._node_loop.call_soon_threadsafe(self._node_loop.call_exception_handler, context)

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        except BaseException as error:  # noqa: BLE001  without it the node is deaf
            context = {"message": "gRPC's loop failed", "exception": error, FAILED_TASK: "gRPC"}
            self._tell(self._loop, context)

    async def stop(self) -> None:
        """What still runs there is given up."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """From the node's loop: have it done here. Cancelling it cancels that.

        Raises UnavailableError when this loop is not there any more.
        """
        if self._is_stopping or not self._thread.is_alive():
            work.close()
            raise UnavailableError("this node is stopping")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def relayed(self, service: object) -> Any:
        """`service` for gRPC: its methods are run on the node's loop, with a `Call`."""
        return _Relayed(service, _Intake(self._node_loop))


class _Intake:
    """Work on its way to the node's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[_Asked] = deque()
        self._is_due = False

    async def do(self, work: _Work) -> Any:
        """On gRPC's loop: have it done on the node's. Cancelling it cancels that."""
        asked = _Asked(work)
        self._waiting.append(asked)
        self.loop.call_soon_threadsafe(self._told)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(asked.give_up)
            raise

    # On the node's loop.

    def _told(self) -> None:
        if not self._is_due:
            self._begin()

    def _begin(self) -> None:
        begun = 0
        while self._waiting and begun < AT_ONCE:
            begun += self._waiting.popleft().begin()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self.loop.call_soon(self._begin)


class _Asked:
    """One piece of work. answer: on the loop of whoever asked; cancelled where nobody waits."""

    def __init__(self, work: _Work) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self._loop.create_future()
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    # On the node's loop.

    def begin(self) -> bool:
        """False: nobody waits for it any more."""
        if self.answer.cancelled():
            self._work.close()
            return False
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._done)
        return True

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not self.answer.cancelled():
            self._loop.call_soon_threadsafe(self._deliver, task)
        elif not task.cancelled():
            task.exception()  # It is nobody's business any more.

    # Where it was asked.

    def _deliver(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


class _Relayed:
    """Has the methods of a service, as gRPC calls them on its own loop."""

    def __init__(self, service: object, intake: _Intake) -> None:
        self._service = service
        self._intake = intake

    def __getattr__(self, name: str) -> Callable[[Any, _Context], Any]:
        method = getattr(self._service, name)
        return self._many(method) if inspect.isasyncgenfunction(method) else self._one(method)

    def _one(self, method: Any) -> Callable[[Any, _Context], _Work]:
        async def answer(request: Any, context: _Context) -> Any:
            return await self._intake.do(method(request, self._call(context)))

        return answer

    def _many(self, method: Any) -> Callable[[Any, _Context], AsyncIterator[Any]]:
        async def answers(request: Any, context: _Context) -> AsyncIterator[Any]:
            found = _Answers(method(request, self._call(context)))
            try:
                while (answer := await self._intake.do(found.next())) is not _END:
                    yield answer
            finally:
                asyncio.run_coroutine_threadsafe(found.close(), self._intake.loop)

        return answers

    def _call(self, context: _Context) -> Call:
        """Its end is that of its task. gRPC's own callback would tie it into a circle with what it
        refers to, which only the collector of garbage would find."""
        call, task = Call(context), asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._intake.loop.call_soon_threadsafe(call.end))
        return call


class _Answers:
    """A method's answers, on the node's loop: closed only when the last one asked for has come, or
    the asking has been cancelled."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._turn = asyncio.Lock()

    async def next(self) -> Any:
        async with self._turn:
            return await anext(self._answers, _END)

    async def close(self) -> None:
        async with self._turn:
            await self._answers.aclose()
