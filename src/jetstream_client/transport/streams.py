"""Calls of the control plane about streams."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from jetstream_client.transport import wire
from jetstream_client.transport.cluster import Cluster
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.recent import STREAMS_MAX, Recent
from jetstream_client.values.settings import AlterableSettings, StreamSettings
from jetstream_client.values.text import check_text
from jetstream_client.values.types import Stream, StreamDescription, StreamLike, partitions_of
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    JetstreamError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.subjects import no_stream

_LEADER_SHARE = 2
"""The leader may take half of the timeout to describe its stream; then any node is asked."""

_WILDCARDS = ("*", ">")
_AS_LED_SECONDS = 2.0
"""How long a leader is asked what it knows of its stream. One that is alive answers at once."""


class Streams:
    """Every call repeats itself where that is safe; see `_control`."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._cluster = Cluster(control)
        self._names: Recent[int, str] = Recent(STREAMS_MAX)
        self.ack_cluster = ""
        """The mark of the cluster's acks, as `find` was told last; "": some may have none."""

    async def create(
        self, name: str, subject: str, settings: StreamSettings, *, allow_same_name: bool
    ) -> Stream:
        check_text("the stream's name", name)
        check_text("the subject", subject)
        config = wire.to_config(settings)
        try:
            answer: pb.CreateStreamResponse = await self._control.call(
                pb.CreateStreamRequest(
                    name=name, subject=subject, config=config, allow_same_name=allow_same_name
                ),
                what=f"creating stream {name!r}",
                changes=True,
            )
        except InvalidRequestError as error:
            if subject[:1] in _WILDCARDS and "acks: off" in error.message:
                error.add_note(
                    f"{subject!r} begins with a wildcard, which stands for _INBOX and $JS, too: "
                    f"begin it with a word, as in 'tenants.{subject}', or create a stream for each "
                    "first word"
                )
            raise
        return wire.stream_of(answer.stream)

    async def alter(
        self, stream: StreamLike, settings: AlterableSettings, stream_epoch: int | None
    ) -> Stream:
        """By id: a retry must not alter a stream created meanwhile under the same name."""
        config = wire.to_config(settings)
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        answer: pb.AlterStreamResponse = await self._control.call(
            pb.AlterStreamRequest(
                stream=wire.to_ref(found), config=config, stream_epoch=stream_epoch
            ),
            what=f"altering stream {found.full_name!r}",
            changes=True,
        )
        return wire.stream_of(answer.stream)

    async def describe(self, stream: StreamLike) -> StreamDescription:
        ref = wire.to_ref(stream)
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
            return wire.undescribed(known, f"unknown: {who} as its leader")
        return wire.description_of(answer.description)

    async def leader_of(self, ref: common_pb2.StreamRef, timeout: float) -> int:
        """The node that leads the stream, -1 while none does."""
        try:
            answer = await self._described(ref, timeout, "looking for the leader")
        except JetstreamError as error:
            if error.retriable:
                return -1
            raise
        return int(answer.description.stream.leader)

    async def as_led(self, stream: Stream) -> Stream:
        """The stream as its leader knows it; as it is given if no leader answers in time."""
        try:
            leader = (await self._cluster.describe()).node(stream.leader)
            answer = await self._described(
                wire.to_ref(stream),
                min(_AS_LED_SECONDS, self._control.timeout),
                "asking the stream's leader",
                address=None if leader is None else leader.grpc,
            )
        except JetstreamError:
            return stream  # What is known of it stands.
        return wire.stream_of(answer.description.stream)

    async def registered(self, ref: common_pb2.StreamRef, timeout: float) -> Stream:
        """The stream as any node knows it: no leader is needed."""
        return wire.stream_of((await self._known(ref, timeout)).description.stream)

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
        address: str | None = None,
    ) -> pb.DescribeStreamResponse:
        answer: pb.DescribeStreamResponse = await self._control.call(
            pb.DescribeStreamRequest(stream=ref, registry_only=registry_only),
            what=what,
            address=address,
            timeout=timeout,
        )
        return answer

    async def find(self, feeding_subject: str = "", *, internal: bool = False) -> list[Stream]:
        """The streams that a message on `feeding_subject` goes to; without a subject, all streams.
        internal: the server's own streams as well."""
        check_text("the subject", feeding_subject)
        answer: pb.ListStreamsResponse = await self._control.call(
            pb.ListStreamsRequest(feeding_subject=feeding_subject, include_internal=internal),
            what="listing streams",
            # Publishers wait for this answer, and any node can give it.
            share_first=1.0 if feeding_subject else math.inf,
        )
        self.ack_cluster = answer.ack_cluster
        return [wire.stream_of(stream) for stream in answer.streams]

    async def describe_all(
        self, feeding_subject: str, *, internal: bool = False
    ) -> list[StreamDescription]:
        """Makes one call to each node that leads any of these streams. For a stream whose leader
        does not answer, returns what the registry knows."""
        check_text("the subject", feeding_subject)
        listed = await self._led(feeding_subject, internal, None, self._control.timeout)
        found = {each.stream.id: each for each in listed.led}
        leaders = {stream.leader for stream in listed.streams if stream.id not in found} - {-1}
        if leaders:
            nodes = [node for node in (await self._cluster.describe()).nodes if node.id in leaders]
            patience = self._control.timeout / _LEADER_SHARE
            asked = (self._led(feeding_subject, internal, node.grpc, patience) for node in nodes)
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, pb.ListStreamsResponse):
                    found |= {each.stream.id: each for each in answer.led}
                elif not isinstance(answer, JetstreamError):
                    raise answer
        return [
            wire.description_of(found[stream.id])
            if stream.id in found
            else wire.undescribed(stream, wire.state_without_answer(stream))
            for stream in listed.streams
        ]

    async def _led(
        self, feeding_subject: str, internal: bool, address: str | None, timeout: float
    ) -> pb.ListStreamsResponse:
        answer: pb.ListStreamsResponse = await self._control.call(
            pb.ListStreamsRequest(
                feeding_subject=feeding_subject, describe_led=True, include_internal=internal
            ),
            what="describing the streams",
            address=address,
            timeout=timeout,
        )
        return answer

    async def delete(self, stream: StreamLike) -> None:
        """By id: a retry must not delete a stream created meanwhile under the same name."""
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        await self._control.call(
            pb.DeleteStreamRequest(stream=wire.to_ref(found)),
            what=f"deleting stream {found.full_name!r}",
            changes=True,
            done_already=StreamNotFoundError,
        )

    async def purge(self, stream: StreamLike, offset: int | None) -> int:
        """By id, as `delete`. Repeated, it finds nothing left to remove."""
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        answer: pb.PurgeStreamResponse = await self._control.call(
            pb.PurgeStreamRequest(stream=wire.to_ref(found), offset=offset),
            what=f"purging stream {found.full_name!r}",
            changes=True,
        )
        return int(answer.log_start_offset)

    async def set_readonly(self, stream: StreamLike, readonly: bool) -> Stream:
        """By id, as `delete`; so are pausing and resuming. Repeated, each finds it done."""
        return await self._change_access(
            stream,
            pb.SetStreamReadonlyRequest(readonly=readonly),
            "making stream {!r} " + ("read-only" if readonly else "writable"),
        )

    async def pause(self, stream: StreamLike) -> Stream:
        return await self._change_access(stream, pb.PauseStreamRequest(), "pausing stream {!r}")

    async def resume(self, stream: StreamLike) -> Stream:
        return await self._change_access(stream, pb.ResumeStreamRequest(), "resuming stream {!r}")

    async def _change_access(self, stream: StreamLike, request: Any, what: str) -> Stream:
        """request: without its stream. what: with a place for the stream's name."""
        found = stream if isinstance(stream, Stream) else await self._registered(stream)
        request.stream.CopyFrom(wire.to_ref(found))
        answer = await self._control.call(request, what=what.format(found.full_name), changes=True)
        return wire.stream_of(answer.stream)

    async def restore_batches(self, stream: StreamLike, batches: bytes) -> int:
        """Not repeated once it may have been done: the caller looks where the log ends, and goes on
        there."""
        answer: pb.RestoreBatchesResponse = await self._control.call(
            pb.RestoreBatchesRequest(stream=wire.to_ref(stream), batches=batches),
            what="restoring batches",
            changes=True,
        )
        return int(answer.next_offset)

    async def _registered(self, stream: StreamLike) -> Stream:
        """As the registry has it. Unlike `describe` this needs no leader that is alive. All streams
        are looked at only to say what is wrong with a name."""
        ref = wire.to_ref(stream)
        try:
            return await self.registered(ref, self._control.timeout)
        except JetstreamError as error:
            if error.retriable:
                raise
        streams = await self.find(internal=True)
        found = [
            each
            for each in streams
            if each.id == ref.id
            or (each.name == ref.name and (not ref.subject or each.subject == ref.subject))
        ]
        if not found:
            if isinstance(stream, str):
                raise StreamNotFoundError(no_stream(stream, partitions_of(stream, streams)))
            raise StreamNotFoundError(f"there is no stream {stream!r}")
        if len(found) > 1:
            candidates = tuple(sorted(each.full_name for each in found))
            raise AmbiguousStreamError(
                f"several streams are named {ref.name!r}: say {' or '.join(candidates)}", candidates
            )
        return found[0]

    async def name_of(self, stream: StreamLike) -> str:
        """The bare name. Only an id has to be asked for, once."""
        if isinstance(stream, Stream):
            return stream.name
        if not isinstance(stream, int):
            check_text("the stream's name", stream)
            return stream.partition("@")[0]
        name = self._names.get(stream)
        if name is None:
            known = await self._known(wire.to_ref(stream))
            name = known.description.stream.name
            self._names.put(stream, name)
        return name
