"""Compares the replicas of a stream without moving their records.

Each node digests its own replica and sends only the digests. Replicas are equal to the byte, except
for compacted parts: each replica compacts at its own time. So the part of a compacted stream that
some replica has compacted is compared by what a reader ends with there, the last record of each
key; the rest is compared by its bytes. If compaction goes on meanwhile, that part grows, and a
difference may have no meaning: then everything is compared again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

from jetstream_client.transport.cluster import describe_cluster
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.streams import Streams
from jetstream_client.transport.wire import to_ref
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.types import Stream, StreamLike
from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2

_ATTEMPTS = 10
_WAIT_SECONDS = 0.2
Progress = Callable[[int, int], None]
"""Called with the offsets that are compared, and how many of them are done."""


@dataclass(slots=True)
class ReplicaDigest:
    """What one replica holds. problem: why it was not compared to the end; "": it was.

    differs_at: the offsets [start, end) of the first piece in which it differs from most others.
    by_key: it differs in the part that is compared by key.
    """

    node: int
    digest: str = ""
    problem: str = ""
    differs_at: tuple[int, int] | None = None
    by_key: bool = False
    _hash: blake2b = field(default_factory=lambda: blake2b(digest_size=16), repr=False)

    def add(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.digest = self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Replicas compared over the offsets [start, end). bytes_from: what is before was compacted on
    some replica, and is compared by key."""

    stream: Stream
    start: int
    bytes_from: int
    end: int
    replicas: tuple[ReplicaDigest, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every replica was compared, and none differs."""
        return not any(each.problem or each.differs_at for each in self.replicas)


async def compare(config: ClientConfig, name: StreamLike, progress: Progress) -> Comparison:
    """Compare all replicas and observers of a stream. Raises StreamNotFoundError, UnavailableError
    when none answers."""
    control = ControlPlane(config)
    try:
        stream = await Streams(control).registered(to_ref(name), config.timeout)
        addresses = {node.id: node.grpc for node in (await describe_cluster(control)).nodes}
        return await _Comparing(control, stream, addresses).run(progress)
    finally:
        await control.close()


class _Comparing:
    def __init__(self, control: ControlPlane, stream: Stream, addresses: dict[int, str]) -> None:
        self._control = control
        self._stream = stream
        self._addresses = addresses
        self._replicas: dict[int, ReplicaDigest] = {}

    async def run(self, progress: Progress) -> Comparison:
        found: Comparison | None = None
        for _ in range(_ATTEMPTS):
            nodes = dict.fromkeys((*self._stream.replicas, *self._stream.observers))
            self._replicas = {node: ReplicaDigest(node) for node in nodes}
            start, bytes_from, end = await self._bounds()
            if found is not None and found.bytes_from == bytes_from:
                break  # No compaction began meanwhile: they do differ.
            await self._compare_keys(start, bytes_from, partial(progress, end - start))
            offset = bytes_from
            while offset < end and len(self._compared) > 0:
                offset = await self._piece(offset, end)
                progress(end - start, offset - start)
            replicas = tuple(self._replicas.values())
            found = Comparison(self._stream, start, bytes_from, end, replicas)
            if found.is_equal:
                break
        assert found is not None, "the first attempt makes one"
        return found

    async def _bounds(self) -> tuple[int, int, int]:
        """Where the log begins, where the compacted part ends, and the end. Raises UnavailableError
        when no replica answers. Waits for replicas that have not got through the compacted part."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._control.timeout
        while True:
            bounds = await self._ask_all(0, 0)
            if not bounds:
                problems = "; ".join(each.problem for each in self._replicas.values())
                raise UnavailableError(
                    f"no replica of {self._stream.full_name} answers: {problems}"
                )
            start = max(each.log_start_offset for each in bounds.values())
            bytes_from = max(start, *(each.cleaned_to for each in bounds.values()))
            behind = {
                node: each.high_watermark
                for node, each in bounds.items()
                if each.high_watermark < bytes_from
            }
            if not behind or loop.time() >= deadline:
                break
            await asyncio.sleep(_WAIT_SECONDS)
        for node, offset in behind.items():
            self._replicas[node].problem = (
                f"is behind: it knows that records up to offset {offset} are committed, and others "
                f"are compacted up to {bytes_from}"
            )
        ends = [each.high_watermark for node, each in bounds.items() if node not in behind]
        return start, bytes_from, max(bytes_from, min(ends, default=0))

    async def _compare_keys(self, start: int, end: int, progress: Callable[[int], None]) -> None:
        """Compare the last record of each key in [start, end) on all replicas."""
        if start == end:
            return
        done = dict.fromkeys(self._compared, 0.0)

        def advanced(node: int, now: float) -> None:
            done[node] = max(done[node], now)
            progress(int(min(done.values()) * (end - start)))

        nodes = self._compared
        answers = await asyncio.gather(
            *(self._digest_keys(node, start, end, partial(advanced, node)) for node in nodes)
        )
        found = {
            node: answer.digest
            for node, answer in zip(nodes, answers, strict=True)
            if answer is not None
        }
        self._note(found, (start, end), by_key=True)

    async def _digest_keys(
        self, node: int, start: int, end: int, advanced: Callable[[float], None]
    ) -> pb.DigestKeysResponse | None:
        request = pb.DigestKeysRequest(
            stream=common_pb2.StreamRef(id=self._stream.id), start_offset=start, end_offset=end
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._control.timeout
        while True:
            try:
                return await self._keys_of(node, request, advanced)
            except JetstreamError as error:
                if not error.retriable or loop.time() >= deadline:
                    self._replicas[node].problem = error.message
                    return None
            await asyncio.sleep(_WAIT_SECONDS)

    async def _keys_of(
        self, node: int, request: pb.DigestKeysRequest, advanced: Callable[[float], None]
    ) -> pb.DigestKeysResponse:
        """Returns the last answer. Raises JetstreamError."""
        address = self._addresses.get(node)
        answer: pb.DigestKeysResponse | None = None
        if address is not None:
            async for answer in self._control.stream(request, address=address):
                advanced(answer.done)
        if answer is None or answer.node_id != node or not answer.digest:
            raise UnavailableError(f"node {node} does not answer")
        return answer

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
        digests = {node: answer.digest for node, answer in found.items()}
        self._note(digests, (start, first.next_offset), by_key=False)
        return int(first.next_offset)

    def _note(
        self, digests: Mapping[int, bytes], offsets: tuple[int, int], *, by_key: bool
    ) -> None:
        """Which replicas differ from most others, by node."""
        if not digests:
            return
        most = Counter(digests.values()).most_common(1)[0][0]
        if len(digests) == 2:
            most = digests.get(self._stream.leader, most)  # Of two, the leader is believed.
        for node, digest in digests.items():
            replica = self._replicas[node]
            replica.add(digest)
            if digest != most and replica.differs_at is None:
                replica.differs_at, replica.by_key = offsets, by_key

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
            answer: pb.DigestReplicaResponse = await self._control.call(
                request,
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
