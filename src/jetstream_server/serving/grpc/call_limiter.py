"""Counts running calls, and closes connections when there are too many.

A call counts from its headers on, before gRPC has read its request. A client may leave its request
half sent for any time, and a server with CALLS_MAX calls serves no other client. So when most calls
are in use, connections are closed: those of strangers, until the rest are few enough, first of the
origin that has most calls. If no stranger has any, the connection with the most calls. When many
requests stay half sent (each may hold megabytes), the same is done to those that have these.

gRPC takes one call after another, whoever they are from, and each costs a third of a millisecond.
So a stranger waits a moment for a refusal, and those who make many calls meanwhile are hung up on.

Calls that need no right (health, reflection) may last for ever, and anybody may make them. So there
is a limit for them alone.

The handler of each call says whose connection it came over, before its request is read
(error_interceptor.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import structlog

from jetstream_protocol.errors import TooManyRequestsError
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.origins import origin_of_peer

CALLS_MAX = 4096
"""Calls served at once. Further ones get RESOURCE_EXHAUSTED. A long poll is a call."""
CALLS_HIGH = CALLS_MAX * 3 // 4
PUBLIC_CALLS_MAX = CALLS_MAX // 4
"""Calls that need no right. Further ones get RESOURCE_EXHAUSTED."""
PUBLIC_CALLS_HIGH = PUBLIC_CALLS_MAX * 3 // 4
REFUSAL_SECONDS = 0.02
REFUSED_MAX = 64
"""Calls that are refused to strangers between two looks, while others run on their connections."""
HALF_SENT_MAX = 32
"""Requests half sent for HALF_SENT_SECONDS. Each may hold 4 MiB."""
HALF_SENT_SECONDS = 1.0
_LOOK_SECONDS = 0.25

logger = structlog.get_logger("jetstream.api")


@dataclass(slots=True)
class Connection:
    """One connection with running calls: its peer, these calls, and requests not yet received."""

    peer: str
    calls: int = 0
    half_sent: int = 0


class CallLimiter:
    """`began` and `received` are called in the task of each call. `watch` runs beside them.

    is_known: whether the peer of a connection has signed in. close_strangers: closes many at
    once."""

    def __init__(
        self,
        close_connection: Callable[[str], object],
        is_known: Callable[[str], bool] = lambda peer: True,
        close_strangers: Callable[[Sequence[str]], object] = lambda peers: None,
    ) -> None:
        self._close_connection = close_connection
        self._close_strangers = close_strangers
        self._is_known = is_known
        self._calls: dict[asyncio.Task[Any], Connection] = {}
        self._public: set[asyncio.Task[Any]] = set()  # of these, those that need no right
        self._half_sent: dict[asyncio.Task[Any], float] = {}  # since when; oldest first
        self._connections: dict[str, Connection] = {}
        self._refused: Counter[str] = Counter()  # calls, by peer, since the last look
        self._throttle = LogThrottle()

    @property
    def count(self) -> int:
        return len(self._calls)

    def connections(self) -> list[Connection]:
        """The connections with calls."""
        return list(self._connections.values())

    def began(self, peer: str, *, is_public: bool = False) -> None:
        """is_public: it needs no right. Raises TooManyRequestsError: the call is to be refused. It
        counts all the same until it has ended, because its peer may not read the refusal."""
        task = asyncio.current_task()
        assert task is not None
        connection = self._connections.setdefault(peer, Connection(peer))
        connection.calls += 1
        connection.half_sent += 1
        self._calls[task] = connection
        self._half_sent[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._ended)
        if len(self._calls) > CALLS_MAX:
            raise TooManyRequestsError("this node has as many calls as it takes; try again")
        if is_public:
            if len(self._public) >= PUBLIC_CALLS_MAX:
                raise TooManyRequestsError("too many calls of strangers; try again")
            self._public.add(task)

    def received(self) -> None:
        """Note that the call's first request has arrived."""
        task = asyncio.current_task()
        if task is not None and self._half_sent.pop(task, None) is not None:
            self._calls[task].half_sent -= 1

    async def refuse(self) -> None:
        """Note that the call is refused. A stranger waits."""
        task = asyncio.current_task()
        assert task is not None
        connection = self._calls[task]
        if self._is_known(connection.peer):
            return
        if connection.calls > 1:
            self._refused[connection.peer] += 1
        if self._refused.total() > REFUSED_MAX:
            peers = list(self._refused)
            self._refused.clear()
            with self._noting_errors():
                self._hang_up([self._connections.get(peer, Connection(peer)) for peer in peers])
        await asyncio.sleep(REFUSAL_SECONDS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        connection = self._calls.pop(task)
        self._public.discard(task)
        connection.half_sent -= self._half_sent.pop(task, None) is not None
        connection.calls -= 1
        if not connection.calls:
            del self._connections[connection.peer]

    async def watch(self) -> None:
        """Look again and again. Without a descriptor to look with, the next look may have one."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._refused.clear()
            with self._noting_errors():
                self._look()

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._throttle.is_due("connections_not_closed"):
                logger.warning("connections_not_closed", reason=str(error))

    def _look(self) -> None:
        half_sent = self._half_sent_for_long() - HALF_SENT_MAX
        calls = max(len(self._calls) - CALLS_HIGH, len(self._public) - PUBLIC_CALLS_HIGH)
        if calls > 0:
            self._make_room(calls, lambda connection: connection.calls)
        elif half_sent > 0:
            self._make_room(half_sent, lambda connection: connection.half_sent)

    def _half_sent_for_long(self) -> int:
        if len(self._half_sent) <= HALF_SENT_MAX:
            return 0
        limit = asyncio.get_running_loop().time() - HALF_SENT_SECONDS
        return sum(since < limit for since in self._half_sent.values())

    def _make_room(self, excess: int, burden: Callable[[Connection], int]) -> None:
        """Close connections that have so much of the burden; see the module."""
        found = [each for each in self.connections() if burden(each)]
        strangers = [each for each in found if not self._is_known(each.peer)]
        if not strangers:
            heaviest = max(found, key=burden)
            if burden(heaviest) > 1:
                self._note(heaviest)
                self._close_connection(heaviest.peer)
            return
        of_origins: Counter[str] = Counter()
        for each in strangers:
            of_origins[origin_of_peer(each.peer)] += burden(each)
        strangers.sort(key=lambda e: (of_origins[origin_of_peer(e.peer)], burden(e)), reverse=True)
        left = takewhile(
            lambda before: before < excess, accumulate(map(burden, strangers), initial=0)
        )
        closed = strangers[: sum(1 for _ in left)]
        self._hang_up(closed)

    def _hang_up(self, strangers: Sequence[Connection]) -> None:
        for each in strangers:
            self._note(each)
        self._close_strangers([each.peer for each in strangers])

    def _note(self, connection: Connection) -> None:
        if self._throttle.is_due("caller_hung_up_on", origin_of_peer(connection.peer)):
            logger.warning(
                "caller_hung_up_on",
                peer=connection.peer,
                calls=connection.calls,
                half_sent=connection.half_sent,
            )
