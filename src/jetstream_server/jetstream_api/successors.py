"""Prepares the nodes that have a copy of a stream for the case that its leader crashes.

    leader ─(HEAR: hear the stream's pulls; these consumers have begun, these have ended)─> copies

Their pulls are ended by who leads next (heard_pulls.py), and the readers of consumers that were the
leader's alone begin anew (reported_consumers.py). Nothing is sent when a message is delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.manager import Consumers
from jetstream_server.jetstream_api.reported_consumers import is_reported, reports
from jetstream_server.jetstream_api.stream_reads import until_settled
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.serving.grpc.peers import Peers

HEAR: Final = "HEAR"
"""Between nodes only: the leader of a stream with consumers has the node hear its pulls, and tells
of its consumers. Older nodes take no notice of the latter."""
_SECONDS: Final = 1.0
_ATTEMPTS: Final = 20
"""To a node that is back in the ISR it may take some seconds until there is a connection again."""

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


@dataclass(slots=True)
class _News:
    """Consumers that have begun, by name, and the names of those that have ended. is_reported: set
    once the nodes in the ISR know them, or cannot be reached."""

    begun: dict[str, Consumer] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    is_reported: asyncio.Event = field(default_factory=asyncio.Event)


class Successors:
    """For the loop's thread only."""

    def __init__(self, node_id: NodeId, consumers: Consumers, peers: Peers, spawn: Spawn) -> None:
        """spawn: runs something until the node stops."""
        self._node_id = node_id
        self._consumers = consumers
        self._peers = peers
        self._spawn = spawn
        self._preparing: dict[StreamId, set[asyncio.Task[None]]] = {}
        self._news: dict[StreamId, _News] = {}
        self._is_closed = False

    def close(self) -> None:
        """Tell nothing more: what ends now ends with this node."""
        self._is_closed = True

    def prepare(self, stream: StreamMetadata) -> None:
        """Tell the nodes with a copy of a stream everything."""
        found = [each for each in self._consumers.of(stream.id) if is_reported(each)]
        messages = list(reports(found, ())) or [b""]
        self._preparing[stream.id] = {
            self._spawn(
                self._tell(node, stream.id, messages, _ATTEMPTS if node in stream.isr else 1),
                "preparing successors",
            )
            for node in stream.copies
            if node != self._node_id
        }

    def forget(self, stream_id: StreamId) -> None:
        """Another node leads the stream, or it is gone."""
        self._preparing.pop(stream_id, None)

    async def prepared(self, stream_id: StreamId) -> None:
        """Wait a moment for the nodes that are being told."""
        preparing, news = self._preparing.pop(stream_id, set()), self._news.get(stream_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                if news is not None:
                    await news.is_reported.wait()
                if preparing:
                    await asyncio.wait(preparing)

    async def _tell(
        self, node: NodeId, stream_id: StreamId, messages: Sequence[bytes], attempts: int = 1
    ) -> None:
        with contextlib.suppress(JetstreamError):  # It is told again when it is back in the ISR.
            for each in messages:
                ask = partial(self._peers.ask_consumers, node, stream_id, HEAR, "", each)
                await until_settled(ask, attempts)

    def began(self, consumer: Consumer) -> None:
        """Tell of a consumer, soon."""
        if is_reported(consumer):
            news = self._news_of(consumer)
            news.begun[consumer.config.name] = consumer

    def ended(self, consumer: Consumer) -> None:
        """Tell that a consumer of a stream which this node leads is no more, soon."""
        leads = consumer.replica.leadership is not None and not self._is_closed
        if leads and is_reported(consumer):
            news = self._news_of(consumer)
            news.begun.pop(consumer.config.name, None)
            news.ended.add(consumer.config.name)

    def _news_of(self, consumer: Consumer) -> _News:
        stream_id = consumer.replica.stream.id
        found = self._news.get(stream_id)
        if found is None:
            found = self._news[stream_id] = _News()
            self._spawn(self._tell_news(stream_id, consumer), "telling successors")
        return found

    async def _tell_news(self, stream_id: StreamId, of: Consumer) -> None:
        """One message to each node at a time: what has happened later must not be told before. A
        node that is not in the ISR is told everything when it comes back."""
        try:
            while (news := self._news[stream_id]).begun or news.ended:
                self._news[stream_id] = _News()
                stream = of.replica.stream
                if of.replica.leadership is not None:
                    messages = list(reports(news.begun.values(), news.ended))
                    nodes = [node for node in stream.isr if node != self._node_id]
                    await asyncio.gather(*(self._tell(node, stream_id, messages) for node in nodes))
                news.is_reported.set()
        finally:
            self._news.pop(stream_id).is_reported.set()
