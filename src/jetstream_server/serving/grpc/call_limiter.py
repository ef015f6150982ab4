"""Counts running calls, and closes a connection when there are too many.

A call counts from its headers on, before gRPC has read its request. A client may leave its request
half sent for any time, and a server with CALLS_MAX calls serves nobody else. So when most calls are
in use, the connection with the most calls is closed. When many requests stay half sent (each may
hold megabytes), the connection with the most of those is closed.

channelz, gRPC's statistics, gives the numbers of each connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # As in grpcio-channelz.

CALLS_MAX = 4096
"""Calls served at once. Further ones get RESOURCE_EXHAUSTED. A long poll is a call."""
CALLS_HIGH = CALLS_MAX * 3 // 4
HALF_SENT_MAX = 32
"""Requests half sent for HALF_SENT_SECONDS. Each may hold 4 MiB."""
HALF_SENT_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_CONNECTIONS_PER_LOOK = 200
"""Connections checked per turn: about 50 ms of the loop."""

logger = structlog.get_logger("jetstream.api")


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection in channelz: its peer, running calls, and requests not yet received."""

    peer: str
    calls: int
    half_sent: int


def connections(start_id: int) -> tuple[list[Connection], int]:
    """Some connections of this process's gRPC servers, and where to continue (0: from the
    start)."""
    found = []
    next_id = 0
    for server in _channelz(cygrpc.channelz_get_servers, 0).get("server", ()):
        page = _channelz(
            cygrpc.channelz_get_server_sockets,
            int(server["ref"]["serverId"]),
            start_id,
            _CONNECTIONS_PER_LOOK,
        )
        for ref in page.get("socketRef", ()):
            socket_id = int(ref["socketId"])
            data = _channelz(cygrpc.channelz_get_socket, socket_id).get("socket", {}).get("data")
            if data is not None:
                found.append(_connection(ref["name"], data))
            next_id = max(next_id, socket_id + 1)
    return found, next_id if len(found) >= _CONNECTIONS_PER_LOOK else 0


def _channelz(query: Callable[..., str], *arguments: int) -> Any:
    try:
        return json.loads(query(*arguments))
    except ValueError:
        return {}  # The connection was closed meanwhile.


def _connection(name: str, data: dict[str, str]) -> Connection:
    started, received = int(data["streamsStarted"]), int(data["messagesReceived"])
    calls = started - int(data["streamsSucceeded"]) - int(data["streamsFailed"])
    peer = name.rpartition(" ")[2]  # "chttp2 ipv4:127.0.0.1:40000"
    return Connection(peer, calls, min(calls, started - received))


class CallLimiter:
    """`began` and `received` are called in the task of each call. `watch` runs beside them."""

    def __init__(self, close_connection: Callable[[str], object]) -> None:
        self._close_connection = close_connection
        self._calls: set[asyncio.Task[Any]] = set()
        self._half_sent: dict[asyncio.Task[Any], float] = {}  # since when; oldest first
        self._next_id = 0

    @property
    def count(self) -> int:
        return len(self._calls)

    def began(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        self._half_sent[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._ended)

    def received(self) -> None:
        """Note that the call's first request has arrived."""
        task = asyncio.current_task()
        if task is not None:
            self._half_sent.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        self._half_sent.pop(task, None)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if len(self._calls) > CALLS_HIGH:
                self._end_one(lambda connection: connection.calls)
            elif self._are_too_many_half_sent():
                self._end_one(lambda connection: connection.half_sent)

    def _are_too_many_half_sent(self) -> bool:
        if len(self._half_sent) <= HALF_SENT_MAX:
            return False
        limit = asyncio.get_running_loop().time() - HALF_SENT_SECONDS
        return sum(since < limit for since in self._half_sent.values()) > HALF_SENT_MAX

    def _end_one(self, burden: Callable[[Connection], int]) -> None:
        found, self._next_id = connections(self._next_id)
        heaviest = max(found, key=burden, default=None)
        if heaviest is not None and burden(heaviest) > 1:
            logger.warning(
                "caller_hung_up_on",
                peer=heaviest.peer,
                calls=heaviest.calls,
                half_sent=heaviest.half_sent,
            )
            self._close_connection(heaviest.peer)
