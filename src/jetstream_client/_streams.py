"""Streams and the cluster, as the control plane tells of them."""

from __future__ import annotations

from jetstream_client import _wire
from jetstream_client._control import ControlPlane
from jetstream_client._settings import AlterableSettings, StreamSettings, to_config
from jetstream_client._text import check_text
from jetstream_client._types import (
    ClusterInfo,
    Stream,
    StreamDescription,
    StreamLike,
    UncleanElection,
)
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    JetstreamError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2

_LEADER_SHARE = 2
"""The leader may take half of the timeout to describe its stream; then any node is asked."""


class Streams:
    """Every call repeats itself where that is safe; see `_control`."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._names: dict[int, str] = {}

    async def create(
        self,
        name: str,
        subject: str,
        settings: StreamSettings,
        *,
        allow_same_name: bool,
    ) -> Stream:
        check_text("the stream's name", name)
        check_text("the subject", subject)
        config = to_config(settings)
        answer = await self._control.call(
            lambda stubs: stubs.streams.CreateStream,
            pb.CreateStreamRequest(
                name=name, subject=subject, config=config, allow_same_name=allow_same_name
            ),
            pb.CreateStreamResponse,
            what=f"creating stream {name!r}",
            changes=True,
        )
        return _wire.stream_of(answer.stream)

    async def alter(
        self, stream: StreamLike, settings: AlterableSettings, stream_epoch: int | None
    ) -> Stream:
        """By id: repeated, it must not alter a stream made meanwhile under the same name."""
        config = to_config(settings)
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        answer = await self._control.call(
            lambda stubs: stubs.streams.AlterStream,
            pb.AlterStreamRequest(
                stream=_wire.to_ref(found), config=config, stream_epoch=stream_epoch
            ),
            pb.AlterStreamResponse,
            what=f"altering stream {found.full_name!r}",
            changes=True,
        )
        return _wire.stream_of(answer.stream)

    async def describe(self, stream: StreamLike) -> StreamDescription:
        ref = _wire.to_ref(stream)
        patience = self._control.timeout / _LEADER_SHARE
        try:
            answer = await self._described(ref, patience, "describing the stream")
        except JetstreamError as error:
            if not error.retriable:
                raise
            try:
                answer = await self._known(ref, patience)
            except JetstreamError:
                raise error from None
            known = answer.description.stream
            who = f"node {known.leader} does not answer" if known.leader >= 0 else "nobody answers"
            return _wire.undescribed(known, f"unknown: {who} as its leader")
        return _wire.description_of(answer.description)

    async def leader_of(self, ref: common_pb2.StreamRef, timeout: float) -> int:
        """The node that leads the stream, -1 while none does."""
        try:
            answer = await self._described(ref, timeout, "looking for the leader")
        except JetstreamError as error:
            if error.retriable:
                return -1
            raise
        return int(answer.description.stream.leader)

    async def registered(self, ref: common_pb2.StreamRef, timeout: float) -> Stream:
        """The stream as any node knows it: no leader is needed."""
        return _wire.stream_of((await self._known(ref, timeout)).description.stream)

    async def _known(
        self, ref: common_pb2.StreamRef, timeout: float | None = None
    ) -> pb.DescribeStreamResponse:
        return await self._described(ref, timeout, "looking for the replicas", registry_only=True)

    async def _described(
        self,
        ref: common_pb2.StreamRef,
        timeout: float | None,
        what: str,
        *,
        registry_only: bool = False,
    ) -> pb.DescribeStreamResponse:
        return await self._control.call(
            lambda stubs: stubs.streams.DescribeStream,
            pb.DescribeStreamRequest(stream=ref, registry_only=registry_only),
            pb.DescribeStreamResponse,
            what=what,
            timeout=timeout,
        )

    async def find(self, feeding_subject: str = "") -> list[Stream]:
        """Those that a message on `feeding_subject` goes to; without, all."""
        check_text("the subject", feeding_subject)
        answer = await self._control.call(
            lambda stubs: stubs.streams.ListStreams,
            pb.ListStreamsRequest(feeding_subject=feeding_subject),
            pb.ListStreamsResponse,
            what="listing streams",
        )
        return [_wire.stream_of(stream) for stream in answer.streams]

    async def delete(self, stream: StreamLike) -> None:
        """By id: repeated, it must not delete a stream made meanwhile under the same name."""
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        await self._control.call(
            lambda stubs: stubs.streams.DeleteStream,
            pb.DeleteStreamRequest(stream=_wire.to_ref(found)),
            pb.DeleteStreamResponse,
            what=f"deleting stream {found.full_name!r}",
            changes=True,
            done_already=StreamNotFoundError,
        )

    async def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """Repeated, it finds the leadership where it was to go."""
        answer = await self._control.call(
            lambda stubs: stubs.cluster.TransferLeader,
            pb.TransferLeaderRequest(stream=_wire.to_ref(stream), node_id=node),
            pb.TransferLeaderResponse,
            what=f"handing the leadership to node {node}",
            changes=True,
        )
        return _wire.stream_of(answer.stream)

    async def elect_uncleanly(
        self, stream: StreamLike, node: int, *, dry_run: bool, stream_epoch: int | None
    ) -> UncleanElection:
        """Repeated after it was done, it finds a leader and is refused."""
        answer = await self._control.call(
            lambda stubs: stubs.cluster.ElectLeader,
            pb.ElectLeaderRequest(
                stream=_wire.to_ref(stream),
                node_id=node,
                dry_run=dry_run,
                stream_epoch=stream_epoch,
            ),
            pb.ElectLeaderResponse,
            what=f"electing node {node}",
            changes=not dry_run,
        )
        return _wire.election_of(answer)

    async def drain_node(self, node: int, draining: bool) -> None:
        """Repeated, it finds the mark as it was to be."""
        await self._control.call(
            lambda stubs: stubs.cluster.DrainNode,
            pb.DrainNodeRequest(node_id=node, draining=draining),
            pb.DrainNodeResponse,
            what=f"draining node {node}",
            changes=True,
        )

    async def _registered(self, stream: StreamLike) -> Stream:
        """As the registry has it. Unlike `describe` this needs no leader that is alive."""
        ref = _wire.to_ref(stream)
        found = [
            each
            for each in await self.find()
            if each.id == ref.id
            or (each.name == ref.name and (not ref.subject or each.subject == ref.subject))
        ]
        if not found:
            raise StreamNotFoundError(f"there is no stream {stream!r}")
        if len(found) > 1:
            candidates = tuple(sorted(each.full_name for each in found))
            raise AmbiguousStreamError(
                f"several streams are named {ref.name!r}: say {' or '.join(candidates)}", candidates
            )
        return found[0]

    async def cluster(self) -> ClusterInfo:
        answer = await self._control.call(
            lambda stubs: stubs.cluster.DescribeCluster,
            pb.DescribeClusterRequest(),
            pb.DescribeClusterResponse,
            what="describing the cluster",
        )
        return _wire.cluster_of(answer)

    async def name_of(self, stream: StreamLike) -> str:
        """The bare name. Only an id has to be asked for, once."""
        if isinstance(stream, Stream):
            return stream.name
        if isinstance(stream, str):
            return stream.partition("@")[0]
        if stream not in self._names:
            known = await self._known(_wire.to_ref(stream))
            self._names[stream] = known.description.stream.name
        return self._names[stream]
