"""How far cursors are behind their streams, for the metrics of the node that leads `__cursors`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.cursors.records import CURSOR_PREFIX
from jetstream_server.cursors.store import CursorStore
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.peers import Peers

CURSORS_MAX = 1000
"""Of one answer, the first by cursor and stream."""
_KEYS_PER_TURN = 2_000
"""About 2 ms of the event loop."""

logger = structlog.get_logger("jetstream.cursors")


@dataclass(frozen=True, slots=True)
class CursorLag:
    """lag: committed records that are not read yet (of a compacted stream at most so many); None:
    the stream's leader does not say."""

    cursor: str
    stream: str
    subject: str
    offset: int
    committed_at_us: int
    lag: int | None


class CursorLags:
    """Reads the table of the cursors, and asks the leaders of their streams."""

    def __init__(
        self,
        store: CursorStore,
        registry: Registry,
        replicas: ReplicaManager,
        peers: Peers,
        node_id: int,
    ) -> None:
        self._store = store
        self._registry = registry
        self._replicas = replicas
        self._peers = peers
        self._node_id = NodeId(node_id)

    async def find(self, matches: Callable[[str, str], bool]) -> tuple[list[CursorLag], int]:
        """The cursors in streams whose name and `name@subject` match, and how many more there are.
        [] on a node that does not lead the cursors. A cursor whose stream is gone, or was created
        again, is left out."""
        keys = await self._keys(matches)
        committed = self._store.committed_now()
        cursors = [
            pb.Cursor.FromString(committed[key].value)
            for key in keys[:CURSORS_MAX]
            if key in committed
        ]
        current = [each for each in cursors if self._is_current(each)]
        ranges = await self._ranges({StreamId(each.stream_id) for each in current})
        left_out = max(0, len(keys) - CURSORS_MAX)
        return [_lag(each, ranges.get(StreamId(each.stream_id))) for each in current], left_out

    async def _keys(self, matches: Callable[[str, str], bool]) -> list[bytes]:
        """In their order. The event loop has a turn now and then."""
        found = []
        for count, key in enumerate(list(self._store.committed_now()), 1):
            if key.startswith(CURSOR_PREFIX):
                full_name = key.decode().split("/", 2)[2]
                if matches(full_name.partition("@")[0], full_name):
                    found.append(key)
            if count % _KEYS_PER_TURN == 0:
                await asyncio.sleep(0)
        return sorted(found)

    def _is_current(self, cursor: pb.Cursor) -> bool:
        stream = self._registry.find(cursor.stream_name, cursor.stream_subject)
        return stream is not None and stream.id == cursor.stream_id

    async def _ranges(self, ids: Iterable[StreamId]) -> dict[StreamId, tuple[int, int]]:
        """Log start and high watermark of each, as its leader says."""
        by_leader: dict[NodeId, list[StreamId]] = {}
        for stream_id in sorted(ids):
            stream = self._registry.streams.get(stream_id)
            if stream is not None and stream.leader != NO_NODE:
                by_leader.setdefault(stream.leader, []).append(stream_id)
        asked = (self._ranges_at(node_id, each) for node_id, each in by_leader.items())
        found: dict[StreamId, tuple[int, int]] = {}
        for ranges in await asyncio.gather(*asked):
            found |= ranges
        return found

    async def _ranges_at(
        self, node_id: NodeId, ids: list[StreamId]
    ) -> dict[StreamId, tuple[int, int]]:
        if node_id == self._node_id:
            replicas = [each for each in map(self._replicas.get, ids) if each is not None]
            return {
                each.stream.id: (each.log.log_start_offset, each.high_watermark)
                for each in replicas
            }
        try:
            return await self._peers.ranges(node_id, ids)
        except JetstreamError as error:
            logger.info("cursors_lag_unknown", node=node_id, reason=error.message)
            return {}


def _lag(cursor: pb.Cursor, known: tuple[int, int] | None) -> CursorLag:
    return CursorLag(
        cursor=cursor.name,
        stream=cursor.stream_name,
        subject=cursor.stream_subject,
        offset=cursor.offset,
        committed_at_us=cursor.committed_at_us,
        lag=None if known is None else max(0, known[1] - max(known[0], cursor.offset)),
    )
