"""How far cursors are behind their streams, for the metrics of the node that leads `__cursors`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2
from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.clocks import WallClock
from jetstream_server.cursors.records import CURSOR_PREFIX
from jetstream_server.cursors.store import CursorStore
from jetstream_server.lake.reader import LakeReader
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication.core.lake_bounds import is_in_lake, start_offset
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.grpc.reads_service import resolve_in_lake
from jetstream_server.serving.lag import Lag, Place, appended_us, lag_of, lags_in, request_for

CURSORS_MAX = 1000
"""Upper bound on cursors in one answer: the first by cursor and stream."""
_KEYS_PER_TURN = 2_000
"""Cursors per turn: about 2 ms of the event loop."""
_PLACES_PER_TURN = 20
"""Places per turn: about 3 ms of the event loop."""
_Query = api_pb2.ListOffsetsRequest.Query

logger = structlog.get_logger("jetstream.cursors")


@dataclass(frozen=True, slots=True)
class CursorLag:
    """lag: None: the stream's leader does not answer, or does not know yet what was committed."""

    cursor: str
    stream: str
    subject: str
    offset: int
    committed_at_us: int
    lag: Lag | None
    stream_id: int = 0


class CursorLags:
    """Reads the table of the cursors, and asks the leaders of their streams."""

    def __init__(
        self,
        store: CursorStore,
        registry: Registry,
        replicas: ReplicaManager,
        peers: Peers,
        node_id: int,
        wall_clock: WallClock,
        lake: LakeReader | None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._replicas = replicas
        self._peers = peers
        self._node_id = NodeId(node_id)
        self._clock = wall_clock
        self._lake = lake

    async def find(self, matches: Callable[[str, str], bool]) -> tuple[list[CursorLag], int]:
        """The cursors in streams whose name and `name@subject` match, and how many more there are.
        Empty on a node that does not lead the cursors. Leaves out cursors whose stream is gone or
        was created again."""
        keys = await self._keys(matches)
        committed = self._store.committed_now()
        cursors = [
            pb.Cursor.FromString(committed[key].value)
            for key in keys[:CURSORS_MAX]
            if key in committed
        ]
        current = [each for each in cursors if self._is_current(each)]
        lags = await self._lags({(each.stream_id, each.offset) for each in current})
        left_out = max(0, len(keys) - CURSORS_MAX)
        found = [_with_lag(each, lags.get((each.stream_id, each.offset))) for each in current]
        return found, left_out

    async def _keys(self, matches: Callable[[str, str], bool]) -> list[bytes]:
        """The keys in order. Yields to the event loop now and then."""
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

    async def _lags(self, places: Collection[Place]) -> dict[Place, Lag]:
        """The lag of each place, with one call to each leader."""
        by_leader: dict[NodeId, list[Place]] = {}
        for place in sorted(places):
            stream = self._registry.streams.get(StreamId(place[0]))
            if stream is not None and stream.leader != NO_NODE:
                by_leader.setdefault(stream.leader, []).append(place)
        asked = (self._lags_at(node_id, each) for node_id, each in by_leader.items())
        found: dict[Place, Lag] = {}
        for lags in await asyncio.gather(*asked):
            found |= lags
        return found

    async def _lags_at(self, node_id: NodeId, places: list[Place]) -> dict[Place, Lag]:
        if node_id == self._node_id:
            return await self._lags_here(places)
        try:
            answer = await self._peers.ask(node_id, request_for(places))
        except JetstreamError as error:
            logger.info("cursors_lag_unknown", node=node_id, reason=error.message)
            return {}
        return lags_in(places, answer, self._clock())

    async def _lags_here(self, places: list[Place]) -> dict[Place, Lag]:
        found: dict[Place, Lag] = {}
        in_lake: list[tuple[Replica, int]] = []
        for count, (stream_id, offset) in enumerate(places, 1):
            replica = self._replicas.get(StreamId(stream_id))
            if replica is not None and (lag := self._lag_here(replica, offset)) is not None:
                found[stream_id, offset] = lag
                at = max(offset, lag.log_start_offset)
                if is_in_lake(replica.stream, replica.log, at):
                    in_lake.append((replica, offset))
            if count % _PLACES_PER_TURN == 0:
                await asyncio.sleep(0)
        for replica, offset in in_lake:
            place = replica.stream.id, offset
            try:
                _, appended = await resolve_in_lake(replica, _Query(offset=offset), self._lake)
            except JetstreamError as error:
                _note_unknown(replica, error)
                break  # A store that does not answer one does not answer others.
            lag = found[place]
            bounds = lag.log_start_offset, lag.high_watermark
            found[place] = lag_of(offset, *bounds, appended, self._clock())
        return found

    def _lag_here(self, replica: Replica, offset: int) -> Lag | None:
        bounds = start_offset(replica.stream, replica.log), replica.high_watermark
        try:
            replica.check_readable()  # A lost log looks empty.
            if replica.leadership is not None:
                replica.leadership.check_end()
        except JetstreamError as error:
            _note_unknown(replica, error)
            return None
        try:
            appended = appended_us(replica, offset)
        except JetstreamError as error:
            if not isinstance(error, InLakeError):
                _note_unknown(replica, error)
            return dataclasses.replace(lag_of(offset, *bounds, None, self._clock()), seconds=None)
        return lag_of(offset, *bounds, appended, self._clock())


def _note_unknown(replica: Replica, error: JetstreamError) -> None:
    logger.info("cursors_lag_unknown", stream=replica.stream.full_name, reason=error.message)


def _with_lag(cursor: pb.Cursor, lag: Lag | None) -> CursorLag:
    return CursorLag(
        cursor=cursor.name,
        stream=cursor.stream_name,
        subject=cursor.stream_subject,
        offset=cursor.offset,
        committed_at_us=cursor.committed_at_us,
        lag=lag,
        stream_id=cursor.stream_id,
    )
