"""gRPC's own event loop, on a thread of its own, and the way from there to the node's loop.

    gRPC's loop                                    the node's loop
    takes a call, reads and checks its request ──> the service's method
    writes the answer  <─────────────────────────  its answer, or one after another

gRPC takes one new call in a turn of the loop it lives on. On a busy node a turn takes a tenth of a
second: with callers that come by the hundred, whoever asked last would wait for a minute. Turns are
short here, and however many calls there are, the node's loop gets them in one turn of its own.

gRPC is used on this loop only, by the other nodes' channels too: it cannot serve two well.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop
from grpc import aio

T = TypeVar("T")

_END: Final = object()

_Context = aio.ServicerContext[Any, Any]


class Call:
    """One call, for the method that answers it on the node's loop.

    peer: whose it is, as gRPC names connections ("ipv4:127.0.0.1:40000"). metadata: its headers.
    """

    def __init__(self, context: _Context, loop: asyncio.AbstractEventLoop) -> None:
        self.peer: str = context.peer()
        self.metadata = context.invocation_metadata() or ()
        self._ended = False
        self._then: list[Callable[[], object]] = []

        def ended(_: object) -> None:
            loop.call_soon_threadsafe(self._end)

        context.add_done_callback(ended)  # type: ignore[arg-type]

    def when_ended(self, then: Callable[[], object]) -> None:
        """Have it called once the answer has been taken, or nobody waits for it any more; at once
        if that is so by now."""
        if self._ended:
            then()
        else:
            self._then.append(then)

    def _end(self) -> None:
        self._ended = True
        for then in self._then:
            then()


class GrpcLoop:
    """`start` and `stop` are called on the node's loop, once each."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="grpc", daemon=True)

    def start(self) -> None:
        self._node_loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._tell)
        self._thread.start()

    def _tell(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What goes wrong here is the node's to judge."""
        self._node_loop.call_soon_threadsafe(self._node_loop.call_exception_handler, context)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def stop(self) -> None:
        """What still runs there is given up."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """From the node's loop: have it done here. Cancelling it cancels that."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def relayed(self, service: object) -> Any:
        """`service` for gRPC: its methods are run on the node's loop, with a `Call`."""
        return _Relayed(service, self._node_loop)


class _Relayed:
    """Has the methods of a service, as gRPC calls them on its own loop."""

    def __init__(self, service: object, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[[Any, _Context], Any]:
        method = getattr(self._service, name)
        return self._many(method) if inspect.isasyncgenfunction(method) else self._one(method)

    def _one(self, method: Any) -> Callable[[Any, _Context], Coroutine[Any, Any, Any]]:
        async def answer(request: Any, context: _Context) -> Any:
            return await self._on_node(method(request, Call(context, self._loop)))

        return answer

    def _many(self, method: Any) -> Callable[[Any, _Context], AsyncIterator[Any]]:
        async def answers(request: Any, context: _Context) -> AsyncIterator[Any]:
            found = _Answers(method(request, Call(context, self._loop)))
            try:
                while (answer := await self._on_node(found.next())) is not _END:
                    yield answer
            finally:
                asyncio.run_coroutine_threadsafe(found.close(), self._loop)

        return answers

    def _on_node(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


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
