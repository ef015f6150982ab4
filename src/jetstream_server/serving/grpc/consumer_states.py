"""The states of durable consumers in `__cursors`: from the node that leads it, or to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError, UnavailableError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.consumers.keeper import State, StateWrite
from jetstream_server.consumers.kept import stream_prefix
from jetstream_server.cursors.records import CONSUMER_PREFIX
from jetstream_server.cursors.store import CURSORS, SETTINGS, CursorStore
from jetstream_server.cursors.table import NO_REVISION, Outcome, Write
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.commands import CONSUMERS_LEVEL
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.serving.grpc.peers import Peers

STREAMS_AT_ONCE = 100
WRITES_AT_ONCE = 100
BYTES_AT_ONCE = 4 * 1024 * 1024
"""Of the values that are written. A state with 10,000 open messages has 60 KB."""


class ConsumerStates:
    """For the loop's thread only."""

    def __init__(
        self, store: CursorStore, registry: Registry, streams: Streams, peers: Peers, node_id: int
    ) -> None:
        self._store = store
        self._registry = registry
        self._streams = streams
        self._peers = peers
        self._node_id = node_id

    @property
    def _is_known(self) -> bool:
        """Whether every node knows the requests, and can lead what they write."""
        return self._registry.settings.feature_level >= CONSUMERS_LEVEL

    async def load(self, stream_ids: Sequence[int]) -> list[State]:
        """The states of the consumers of these streams. Raises JetstreamError."""
        log = self._registry.find(CURSORS, "")
        if log is None or not self._is_known:
            return []
        found: list[State] = []
        for at in range(0, len(stream_ids), STREAMS_AT_ONCE):
            request = pb.LoadConsumersRequest(stream_ids=stream_ids[at : at + STREAMS_AT_ONCE])
            leader = _leader_of(log)
            if leader == self._node_id:
                answer = await self.load_here(request)
            else:
                answer = await self._peers.ask(leader, request)
            found += [State(each.key, each.value, each.revision) for each in answer.states]
        return found

    async def write(self, writes: Sequence[StateWrite]) -> list[State]:
        """Write them, and return once they are committed. Raises JetstreamError: UnavailableError
        while a node may not know what they are."""
        if not self._is_known:
            raise UnavailableError(
                "durable consumers need every node of the cluster on this version; update the "
                "others, or try again"
            )
        log = self._registry.find(CURSORS, "")
        if log is None:
            await self._streams.create_internal(CURSORS, SETTINGS)
            log = self._registry.find(CURSORS, "")
            assert log is not None, "it was created"
        found: list[State] = []
        for some in _portions(writes):
            request = pb.StoreConsumersRequest(
                writes=[
                    pb.StoreConsumersRequest.Write(key=key, value=value, expected_revision=expected)
                    for key, value, expected in some
                ]
            )
            leader = _leader_of(log)
            if leader == self._node_id:
                answer = await self.store_here(request)
            else:
                answer = await self._peers.ask(leader, request)
            found += [
                State(each.key, each.value, each.revision, each.refused) for each in answer.states
            ]
        return found

    # On the node that leads `__cursors`.

    async def load_here(self, request: pb.LoadConsumersRequest) -> pb.LoadConsumersResponse:
        table = await self._store.table()
        states: list[pb.ConsumerState] = []
        for stream_id in request.stream_ids:
            prefix = stream_prefix(stream_id)
            for key in table.keys(prefix):
                entry = table.committed_entries[key]
                states.append(pb.ConsumerState(key=key, value=entry.value, revision=entry.revision))
        return pb.LoadConsumersResponse(states=states)

    async def store_here(self, request: pb.StoreConsumersRequest) -> pb.StoreConsumersResponse:
        writes = []
        for each in request.writes:
            if not each.key.startswith(CONSUMER_PREFIX):
                raise InvalidRequestError("not the key of a consumer")
            writes.append(
                Write(
                    each.key,
                    each.value if each.HasField("value") else None,
                    each.expected_revision if each.HasField("expected_revision") else None,
                )
            )
        outcomes = await self._store.write(writes)
        states = [_state(write, outcome) for write, outcome in zip(writes, outcomes, strict=True)]
        return pb.StoreConsumersResponse(states=states)


def _portions(writes: Sequence[StateWrite]) -> Iterator[list[StateWrite]]:
    some, length = list[StateWrite](), 0
    for each in writes:
        size = len(each.value or b"")
        if some and (len(some) == WRITES_AT_ONCE or length + size > BYTES_AT_ONCE):
            yield some
            some, length = [], 0
        some.append(each)
        length += size
    if some:
        yield some


def _leader_of(log: StreamMetadata) -> NodeId:
    """Raises UnavailableError without one."""
    if log.leader == NO_NODE:
        raise UnavailableError("nobody leads the cursors now; try again")
    return log.leader


def _state(write: Write, outcome: Outcome) -> pb.ConsumerState:
    """Raises the error of a write that was refused for another reason than its revision."""
    error, entry = outcome.error, outcome.entry
    if error is not None and not isinstance(error, PreconditionFailedError):
        raise error
    return pb.ConsumerState(
        key=write.key,
        # Who has written it knows it.
        value=b"" if entry is None or error is None else entry.value,
        revision=NO_REVISION if entry is None else entry.revision,
        refused=error is not None,
    )
