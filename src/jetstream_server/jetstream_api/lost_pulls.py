"""Tells the clients of pulls that were lost with a leaf link, once there is a link again.

    link lost ─> no pull waits ─> link back ─(HEARD: what was asked meanwhile?)─> copies ─> 408

While the leader of a stream has no link, the nodes with a copy of it go on to hear its pulls
(heard_pulls.py), and nobody serves them: the leader asks for those, and ends them, too. Where there
is no copy, NATS itself says that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import MonotonicUs, NodeId, StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.manager import Consumers
from jetstream_server.consumers.pulls import Pull
from jetstream_server.jetstream_api.answers import status_headers
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.owed_ends import OWED_MAX, OwedEnds
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.peers import Peers

HEARD: Final = "HEARD"
"""Between nodes only: which pulls of a stream a node has heard while its leader had no link."""
_LOOK_SECONDS: Final = 0.25
"""A client that is back is told after that, unless it has asked by itself."""
_ASK_SECONDS: Final = 1.0
_ASKED_AT_ONCE: Final = 16

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class LostPulls:
    """For the loop's thread only."""

    def __init__(
        self,
        node_id: NodeId,
        consumers: Consumers,
        registry: Registry,
        peers: Peers,
        clocks: Clocks,
        spawn: Spawn,
    ) -> None:
        """spawn: runs something until the node stops."""
        self._node_id = node_id
        self._consumers = consumers
        self._registry = registry
        self._peers = peers
        self._clocks = clocks
        self._spawn = spawn
        self._owed = OwedEnds()
        self._link: LeafConnection | None = None
        self._lost_us: MonotonicUs | None = None
        """Since when there is no link; None: there is one, or there was none yet."""
        self._asked: set[bytes] | None = None
        """The inboxes of the pulls that have come since the link is back, while other nodes are
        asked; None: they are not."""
        self._look: asyncio.TimerHandle | None = None

    def begin(self, link: LeafConnection) -> None:
        """Use this link, from now on. Call it once."""
        self._link = link

    def owe(self, pulls: Iterable[Pull]) -> None:
        """Have the clients of pulls that wait no more told, now if they hear it."""
        self._owed.owe(pulls, self._clocks.monotonic())
        self._tell()

    def unheard(self, pulls: Iterable[Pull]) -> None:
        """Have them told if they come back: most clients are gone."""
        self._owed.owe(pulls, self._clocks.monotonic())

    def asked_again(self, inbox: bytes) -> None:
        """A pull has come."""
        if len(self._owed):
            self._owed.asked_again(inbox)
        if self._asked is not None and len(self._asked) < OWED_MAX:
            self._asked.add(inbox)

    def lost(self) -> None:
        """The link is lost."""
        now_us = self._clocks.monotonic()
        if self._lost_us is None:
            self._lost_us = now_us
        for consumer in self._consumers:
            self._owed.owe(consumer.cut_off(), now_us)

    def back(self, streams: Sequence[StreamId]) -> None:
        """There is a link again. streams: whose pulls are heard here."""
        now_us = self._clocks.monotonic()
        self._owed.linked(now_us)
        lost_us, self._lost_us = self._lost_us, None
        if lost_us is None:
            self._tell()
        else:
            self._asked = set()
            self._spawn(self._tell_all(streams, lost_us, self._asked), "ending lost pulls")

    def interest_changed(self) -> None:
        """Somebody has begun or ceased to listen."""
        if len(self._owed) and self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._tell)

    async def _tell_all(
        self, streams: Sequence[StreamId], lost_us: MonotonicUs, asked: set[bytes]
    ) -> None:
        """Other nodes are asked first: a client is to be told once. Not before NATS brings pulls
        here, too. asked: see `_asked`."""
        assert self._link is not None
        with contextlib.suppress(JetstreamError, TimeoutError):
            async with asyncio.timeout(_ASK_SECONDS):
                await self._link.settled()
        at_once = asyncio.Semaphore(_ASKED_AT_ONCE)
        silent: set[NodeId] = set()

        async def ask(node: NodeId, stream_id: StreamId) -> None:
            async with at_once:
                if node not in silent:
                    try:
                        async with asyncio.timeout(_ASK_SECONDS):
                            await self._ask(node, stream_id, lost_us, asked)
                    except (JetstreamError, TimeoutError, ValueError, TypeError, AttributeError):
                        silent.add(node)  # It is down, or of another version.

        asking = [
            ask(node, stream_id)
            for stream_id in streams
            if (stream := self._registry.streams.get(stream_id)) is not None
            for node in stream.isr
            if node != self._node_id
        ]
        await asyncio.gather(*asking)
        if self._asked is asked:
            self._asked = None
        self._tell()

    async def _ask(
        self, node: NodeId, stream_id: StreamId, lost_us: MonotonicUs, asked: set[bytes]
    ) -> None:
        now_us = self._clocks.monotonic()
        body = json.dumps({"lost_us": now_us - lost_us}).encode()
        answer = await self._peers.ask_consumers(node, stream_id, HEARD, "", body)
        found = bounded_json.loads(answer).get("pulls", [])
        pulls = [Pull(inbox.encode("latin-1"), left, length) for inbox, left, length in found]
        for pull in pulls:
            pull.is_heard = True
        self._owed.owe([pull for pull in pulls if pull.reply not in asked], now_us)

    def _tell(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        link = self._link
        if link is not None and link.is_connected and len(self._owed):
            for status in self._owed.due(link.is_heard, self._clocks.monotonic()):
                link.send(status.to, b"", status_headers(status.text, status.headers))


def lost_since(body: bytes, now_us: MonotonicUs) -> MonotonicUs:
    """Since when who sends HEARD has had no link, by this node's clock."""
    return MonotonicUs(now_us - bounded_json.loads(body)["lost_us"])


def ended_pulls(pulls: Iterable[Pull]) -> dict[str, Any]:
    """The answer to HEARD."""
    return {"pulls": [[each.reply.decode("latin-1"), each.left, each.bytes_left] for each in pulls]}
