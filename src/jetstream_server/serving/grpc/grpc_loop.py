"""gRPC's own event loop, on its own thread, and the way from there to the node's loop.

    gRPC's loop                                    the node's loop
    takes a call, reads and checks its request ──> the service's method
    writes the answer  <─────────────────────────  its answer, or one after another

gRPC takes one new call per iteration of its loop. On a busy node an iteration takes a tenth of a
second: with hundreds of callers, the last one would wait for a minute. On this loop, iterations are
short. The node's loop begins up to AT_ONCE methods per iteration, in the order of the calls, and
none for a caller that has left. Long methods divide their work themselves.

gRPC is used only on this loop, for channels to other nodes too: it cannot serve two loops well.
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

from jetstream_protocol.channels import MADE_AT_KEY, REVISION_KEY
from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_server.background import FAILED_TASK
from jetstream_server.net.tls import of_auth_context
from jetstream_server.security.identity import ANONYMOUS, Identity

T = TypeVar("T")

AT_ONCE = 16
"""Methods begun in one iteration of the node's loop; most take less than half a millisecond."""
_DIGITS_MAX = 18
_END: Final = object()

_Context = aio.ServicerContext[Any, Any]
_Work = Coroutine[Any, Any, Any]


class Call:
    """One call, for the method that answers it on the node's loop.

    peer: the caller's connection, as gRPC names it ("ipv4:127.0.0.1:40000"). metadata: its headers.
    peer_identity: the identity in the caller's certificate; None without TLS or without a
    certificate. identity: the caller, once it is known (guard.py). seconds: how long the caller was
    going to wait when the call arrived; None: for ever.
    """

    def __init__(self, context: _Context) -> None:
        self.peer: str = context.peer()
        self.peer_identity = of_auth_context(context.auth_context())
        self.metadata = context.invocation_metadata() or ()
        self.identity: Identity = ANONYMOUS
        self.seconds: float | None = context.time_remaining()
        self._ended = False
        self._then: list[Callable[[], object]] = []

    def header(self, key: str) -> str:
        """The text of a header; "": there is none."""
        given = next((value for name, value in self.metadata if name == key), "")
        return given if isinstance(given, str) else ""

    @property
    def made_at(self) -> int:
        """The revision at which a change was sent; 0: it does not say. Raises
        InvalidRequestError."""
        return self._revision(MADE_AT_KEY)

    @property
    def known_revision(self) -> int:
        """The revision that its sender knew; 0: it does not say. Raises InvalidRequestError."""
        return self._revision(REVISION_KEY)

    def _revision(self, key: str) -> int:
        given = self.header(key)
        if given and not (given.isascii() and given.isdecimal() and len(given) <= _DIGITS_MAX):
            raise InvalidRequestError(f"{key} is {given[:40]!r}, which is no revision")
        return int(given or 0)

    def when_ended(self, then: Callable[[], object]) -> None:
        """Call `then` once the answer was sent or is not awaited any more; at once if that is so
        already."""
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
        self._loop.set_exception_handler(self._report_error)
        self._thread.start()

    def _report_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Pass errors of this loop to the node's loop."""
        self._node_loop.call_soon_threadsafe(self._node_loop.call_exception_handler, context)

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        except BaseException as error:  # noqa: BLE001  without it the node is deaf
            context = {"message": "gRPC's loop failed", "exception": error, FAILED_TASK: "gRPC"}
            self._report_error(self._loop, context)

    async def stop(self) -> None:
        """Stop the loop. Running calls are cancelled."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on gRPC's loop, from the node's loop. Cancelling the caller cancels it.

        Raises UnavailableError when this loop has stopped.
        """
        if self._is_stopping or not self._thread.is_alive():
            work.close()
            raise UnavailableError("this node is stopping")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def relay(self, service: object) -> Any:
        """`service` for gRPC: its methods run on the node's loop, with a `Call`."""
        return _Relayed(service, _Intake(self._node_loop))


class _Intake:
    """Passes work to the node's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[_RelayedCall] = deque()
        self._is_due = False

    async def do(self, work: _Work) -> Any:
        """From gRPC's loop, run work on the node's loop. Cancelling the caller cancels it."""
        call = _RelayedCall(work)
        self._waiting.append(call)
        self.loop.call_soon_threadsafe(self._work_added)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(call.give_up)
            raise

    # On the node's loop.

    def _work_added(self) -> None:
        if not self._is_due:
            self._begin()

    def _begin(self) -> None:
        begun = 0
        while self._waiting and begun < AT_ONCE:
            begun += self._waiting.popleft().begin()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self.loop.call_soon(self._begin)


class _RelayedCall:
    """One piece of work. answer: on the caller's loop; cancelled when no caller waits."""

    def __init__(self, work: _Work) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self._loop.create_future()
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    # On the node's loop.

    def begin(self) -> bool:
        """Begin the work. Returns False if no caller waits for it any more."""
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
            task.exception()  # No caller waits for it any more.

    # On the caller's loop.

    def _deliver(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


class _Relayed:
    """A service whose methods gRPC calls on its own loop."""

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
        """A call that ends when its task ends. gRPC's own callback would create a reference cycle,
        which only the garbage collector would free."""
        call, task = Call(context), asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._intake.loop.call_soon_threadsafe(call.end))
        return call


class _Answers:
    """The answers of a method, on the node's loop. Closed only when the last requested answer has
    arrived or the request was cancelled."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._turn = asyncio.Lock()

    async def next(self) -> Any:
        async with self._turn:
            return await anext(self._answers, _END)

    async def close(self) -> None:
        async with self._turn:
            await self._answers.aclose()
