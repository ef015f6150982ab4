"""Connections that come and go: logs them, and calls the program's callbacks.

A client has a connection to the gRPC port of each node that it calls, to the data port of each node
that it reads from, and one to NATS for publishing. The client makes each one again by itself; the
callbacks are for programs that want to know.

Callbacks are called one after the other, in the order of what happened, and hold up nothing. An
AsyncClient calls them on its event loop, and awaits coroutine functions. A Client calls them in a
thread of their own, where they may use it. If one raises, the exception is logged.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, cast

from jetstream_client._log import logger
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


def in_thread(callbacks: Callbacks) -> Callbacks:
    """For a client whose event loop is not the program's."""
    elsewhere = {name: partial(asyncio.to_thread, each) for name, each in callbacks.items()}  # type: ignore[arg-type]
    return cast(Callbacks, elsewhere)


class ConnectionEvents:
    """The transports report to it. Belongs to the client's event loop."""

    def __init__(self, callbacks: Callbacks | None = None) -> None:
        self._callbacks = Callbacks() if callbacks is None else callbacks
        self._lost: set[tuple[Kind, str]] = set()
        self._queue: asyncio.Queue[tuple[Callable[..., Any], tuple[object, ...]]] | None = None
        self._calling: asyncio.Task[None] | None = None

    def connected(self, kind: Kind, address: str) -> None:
        again = (kind, address) in self._lost
        self._lost.discard((kind, address))
        logger.info("connected to %s at %s%s", _NAMES[kind], address, " again" if again else "")
        if again:
            self._tell(self._callbacks.get("reconnected_cb"), ConnectionEvent(kind, address))

    def lost(self, kind: Kind, address: str, reason: object) -> None:
        self._lost.add((kind, address))
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
        if callback is None:
            return
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._calling = asyncio.get_running_loop().create_task(self._call_all(self._queue))
        self._queue.put_nowait((callback, arguments))

    async def _call_all(
        self, queue: asyncio.Queue[tuple[Callable[..., Any], tuple[object, ...]]]
    ) -> None:
        while True:
            callback, arguments = await queue.get()
            try:
                answer = callback(*arguments)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # noqa: BLE001  It is the program's.
                logger.exception("the callback %r failed", callback)
            finally:
                queue.task_done()

    async def close(self) -> None:
        """Returns when the last callback has returned, or takes too long: a callback may be closing
        the client."""
        self._tell(self._callbacks.get("closed_cb"))
        if self._queue is not None and self._calling is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self._queue.join()
            if self._calling is not asyncio.current_task():
                self._calling.cancel()
                await asyncio.gather(self._calling, return_exceptions=True)


_NAMES = {"grpc": "the node", "data": "the data plane", "nats": "NATS"}
