"""Connections that come and go: logs them, and calls the program's callbacks.

A client has a connection to the gRPC port of each node that it calls, to the data port of each node
that it reads from, and one to NATS for publishing. The client makes each one again by itself; the
callbacks are for programs that want to know.

Callbacks are called one after the other, in the order of what happened, and hold up nothing. An
AsyncClient calls them on its event loop, and awaits coroutine functions. A Client calls them in a
thread of their own, where they may use it, and close it. If one raises, the exception is logged.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from jetstream_client._log import logger
from jetstream_client.transport.recent import ADDRESSES_MAX, Recent
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import JetstreamError, from_proto

CLOSING_SECONDS = 1.0

Kind: TypeAlias = Literal["grpc", "data", "nats"]


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A connection that was lost, or found again.

    kind: the "grpc" or "data" port of a node, or "nats". address: host:port; for NATS, the URLs.
    reason: why it was lost; "" if it was found again.
    """

    kind: Kind
    address: str
    reason: str = ""


ConnectionCallback: TypeAlias = Callable[[ConnectionEvent], Awaitable[None] | None]
ErrorCallback: TypeAlias = Callable[[JetstreamError], Awaitable[None] | None]
ClosedCallback: TypeAlias = Callable[[], Awaitable[None] | None]


class Callbacks(TypedDict, total=False):
    """The callbacks of a client, named as in nats-py.

    disconnected_cb, reconnected_cb: a connection was lost, or found again. error_cb: something
    failed and is tried again, so that no caller gets the error. closed_cb: the client is closed.
    """

    disconnected_cb: ConnectionCallback
    reconnected_cb: ConnectionCallback
    error_cb: ErrorCallback
    closed_cb: ClosedCallback


_Call: TypeAlias = tuple[Callable[..., Any], tuple[object, ...]]


class ConnectionEvents:
    """The transports report to it. Belongs to the client's event loop."""

    def __init__(self, callbacks: Callbacks | None = None) -> None:
        """Raises TypeError for a name that is none of Callbacks: a client takes them as its further
        keyword arguments."""
        for name in callbacks or ():
            if name not in Callbacks.__annotations__:
                text = f"a client has no argument {name!r}"
                if name in ClientConfig.__dataclass_fields__:
                    text += f": say from_config(ClientConfig(…, {name}=…))"
                raise TypeError(text)
        self._callbacks = Callbacks() if callbacks is None else callbacks
        self._lost: Recent[tuple[Kind, str], bool] = Recent(ADDRESSES_MAX)
        self._queue: asyncio.Queue[_Call | None] | None = None
        self._calling: asyncio.Task[None] | None = None
        self._is_closed = False

    def connected(self, kind: Kind, address: str) -> None:
        again = self._lost.pop((kind, address)) is not None
        logger.info("connected to %s at %s%s", _NAMES[kind], address, " again" if again else "")
        if again:
            self._tell(self._callbacks.get("reconnected_cb"), ConnectionEvent(kind, address))

    def lost(self, kind: Kind, address: str, reason: object) -> None:
        self._lost.put((kind, address), True)
        logger.warning("lost %s at %s: %s", _NAMES[kind], address, reason)
        self._tell(
            self._callbacks.get("disconnected_cb"), ConnectionEvent(kind, address, str(reason))
        )

    def failed(self, error: JetstreamError) -> None:
        """Something failed and is tried again. The caller of this method has logged it."""
        if "error_cb" in self._callbacks:
            # Of a class that is everybody's.
            self._tell(self._callbacks.get("error_cb"), from_proto(error.to_proto()))

    def _tell(self, callback: Callable[..., Any] | None, *arguments: object) -> None:
        if callback is None or self._is_closed:
            return
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._calling = asyncio.get_running_loop().create_task(self._call_all(self._queue))
        self._queue.put_nowait((callback, arguments))

    async def _call_all(self, queue: asyncio.Queue[_Call | None]) -> None:
        while (call := await queue.get()) is not None:
            await self._call(*call)

    @staticmethod
    async def _call(callback: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        try:
            answer = callback(*arguments)
            if inspect.isawaitable(answer):
                await answer
        except Exception:  # noqa: BLE001  It is the program's.
            logger.exception("the callback %r failed", callback)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.exception("the callback %r waited for what was cancelled", callback)

    async def close(self) -> None:
        """Returns when the last callback has returned, or takes too long: a callback may be closing
        the client. `closed_cb` is then called beside it, and what waits to be reported is not
        reported. Idempotent."""
        if self._is_closed:
            return
        closed_cb = self._callbacks.get("closed_cb")
        self._tell(closed_cb)
        self._is_closed = True
        queue, calling = self._queue, self._calling
        if queue is None or calling is None:
            return
        queue.put_nowait(None)
        if calling is asyncio.current_task() or await _has_ended(calling):
            return  # The former goes on after this callback.
        if closed_cb is not None and queue.qsize() > 1:
            while queue.qsize() > 1:
                queue.get_nowait()
            self._calling = asyncio.ensure_future(self._call(closed_cb, ()))
            await _has_ended(self._calling)


async def _has_ended(calling: asyncio.Task[None]) -> bool:
    """Whether it ends soon. It is not cancelled: that would cancel a task for which it waits, which
    may be the one that closes the client."""
    done, _ = await asyncio.wait([calling], timeout=CLOSING_SECONDS)
    return bool(done)


_NAMES = {"grpc": "the node", "data": "the data plane", "nats": "NATS"}
