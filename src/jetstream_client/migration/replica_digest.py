"""Compares the replicas of a stream without moving their records.

Each node digests its own replica, piece by piece, and sends only the digests. Replicas are equal to
the byte, except for compacted parts: each replica compacts at its own time. Of a compacted stream,
only the part that no replica has compacted yet is compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.streams import Streams
from jetstream_client.transport.wire import to_ref
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.types import Stream
from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2

Progress = Callable[[int, int], None]
"""Told the offsets that are compared, and how many of them are done."""


@dataclass(slots=True)
class ReplicaDigest:
    """What one replica holds. problem: why it was not compared to the end; "": it was.

    differs_at: the offsets [start, end) of the first piece in which it differs from most others.
    """

    node: int
    digest: str = ""
    problem: str = ""
    differs_at: tuple[int, int] | None = None
    _hash: blake2b = field(default_factory=lambda: blake2b(digest_size=16), repr=False)

    def add(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.digest = self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Replicas compared over the offsets [start, end). begins_at: where the log begins; what is
    between was compacted on some replica, and not compared."""

    stream: Stream
    begins_at: int
    start: int
    end: int
    replicas: tuple[ReplicaDigest, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every replica was compared, and none differs."""
        return not any(each.problem or each.differs_at for each in self.replicas)


async def compare(config: ClientConfig, name: str, progress: Progress) -> Comparison:
    """Compare all replicas of a stream. Raises StreamNotFoundError, UnavailableError when no
    replica answers."""
    control = ControlPlane(config)
    try:
        streams = Streams(control)
        stream = await streams.registered(to_ref(name), config.timeout)
        addresses = {node.id: node.grpc for node in (await streams.cluster()).nodes}
        return await _Comparing(control, stream, addresses).run(progress)
    finally:
        await control.close()


class _Comparing:
    def __init__(self, control: ControlPlane, stream: Stream, addresses: dict[int, str]) -> None:
        self._control = control
        self._stream = stream
        self._addresses = addresses
        self._replicas = {node: ReplicaDigest(node) for node in stream.replicas}

    async def run(self, progress: Progress) -> Comparison:
        bounds = await self._ask_all(0, 0)
        if not bounds:
            problems = "; ".join(each.problem for each in self._replicas.values())
            raise UnavailableError(f"no replica of {self._stream.full_name} answers: {problems}")
        begins_at = max(each.log_start_offset for each in bounds.values())
        start = max(begins_at, *(each.cleaned_to for each in bounds.values()))
        end = max(start, min(each.high_watermark for each in bounds.values()))
        offset = start
        while offset < end and len(self._compared) > 0:
            offset = await self._piece(offset, end)
            progress(end - start, offset - start)
        return Comparison(self._stream, begins_at, start, end, tuple(self._replicas.values()))

    @property
    def _compared(self) -> list[int]:
        return [each.node for each in self._replicas.values() if not each.problem]

    async def _piece(self, start: int, end: int) -> int:
        """Compare from `start` on; returns where the piece ends that one request can have."""
        first: pb.DigestReplicaResponse | None = None
        while first is None or not first.digest:
            if not self._compared:
                return end
            node = self._compared[0]
            first = (await self._ask_all(start, end, [node])).get(node)
            if first is not None and not first.digest:
                self._replicas[node].problem = f"holds no batch that begins at offset {start}"
        others = [each for each in self._compared if each != first.node_id]
        found = await self._ask_all(start, first.next_offset, others)
        found[first.node_id] = first
        most = Counter(each.digest for each in found.values()).most_common(1)[0][0]
        if found.get(self._stream.leader) is not None and len(found) == 2:
            most = found[self._stream.leader].digest  # Of two, the leader is believed.
        for node, answer in found.items():
            replica = self._replicas[node]
            replica.add(answer.digest)
            if answer.digest != most and replica.differs_at is None:
                replica.differs_at = (start, first.next_offset)
        return int(first.next_offset)

    async def _ask_all(
        self, start: int, end: int, nodes: Sequence[int] | None = None
    ) -> dict[int, pb.DigestReplicaResponse]:
        """The answers; of a replica that gives none, what stands in the way is noted."""
        asked = self._compared if nodes is None else nodes
        answers = await asyncio.gather(*(self._ask(node, start, end) for node in asked))
        return {answer.node_id: answer for answer in answers if answer is not None}

    async def _ask(self, node: int, start: int, end: int) -> pb.DigestReplicaResponse | None:
        replica = self._replicas[node]
        request = pb.DigestReplicaRequest(
            stream=common_pb2.StreamRef(id=self._stream.id), start_offset=start, end_offset=end
        )
        try:
            answer = await self._control.call(
                lambda stubs: stubs.cluster.DigestReplica,
                request,
                pb.DigestReplicaResponse,
                what=f"digesting the replica of node {node}",
                address=self._addresses.get(node),
            )
        except JetstreamError as error:
            replica.problem = error.message
            return None
        if answer.node_id != node:
            replica.problem = f"node {node} does not answer"
            return None
        return answer
