"""Streams: what the cluster knows of them, and what a program may do with them."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Unpack

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.cluster import describe_cluster
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.recent import STREAMS_MAX, Recent
from jetstream_client.values.checks import check_epoch, check_text
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import AlterableSettings, StreamSettings
from jetstream_client.values.types import Stream, StreamDescription, StreamLike, partitions_of
from jetstream_protocol.descriptions import state_without_answer
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    JetstreamError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.stream_names import no_stream

_LEADER_SHARE = 2
"""The leader may take half of the timeout to describe its stream; then any node is asked."""

_WILDCARDS = ("*", ">")
_AS_LED_SECONDS = 2.0
"""How long a leader is asked what it knows of its stream. One that is alive answers at once."""


class Streams:
    """What the cluster knows of streams: for the client, and for what reads and publishes."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._names: Recent[int, str] = Recent(STREAMS_MAX)
        self.ack_cluster = ""
        """The mark of the cluster's acks, from the last answer to `find`; "": some may have
        none."""

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
            leader = (await describe_cluster(self._control)).node(stream.leader)
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
            nodes = (await describe_cluster(self._control)).nodes
            patience = self._control.timeout / _LEADER_SHARE
            asked = (
                self._led(feeding_subject, internal, node.grpc, patience)
                for node in nodes
                if node.id in leaders
            )
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, pb.ListStreamsResponse):
                    found |= {each.stream.id: each for each in answer.led}
                elif not isinstance(answer, JetstreamError):
                    raise answer
        return [
            wire.description_of(found[stream.id])
            if stream.id in found
            else wire.undescribed(stream, state_without_answer(stream))
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

    async def by_id(self, stream: StreamLike) -> Stream:
        """A stream whose id is known: a retry must not change one that was created meanwhile under
        the same name. Unlike `describe` this needs no leader that is alive. All streams are looked
        at only to say what is wrong with a name."""
        if isinstance(stream, Stream):
            return stream
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


class AsyncStreams(AsyncMethods):
    """A part of `AsyncClient`, which sets this."""

    _streams: Streams

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        allow_same_name: bool = False,
        **settings: Unpack[StreamSettings],
    ) -> Stream:
        """Create a stream. If the same stream exists already, return it.

        When this returns, the stream listens: messages that are published from now on are stored.
        Settings (see StreamSettings and AlterableSettings) that are left out take the server's
        defaults. allow_same_name: create it although another subject has a stream of this name.
        Raises StreamExistsError if the stream exists with another configuration, or if another
        subject has a stream of this name.

            await client.create_stream("orders", subject="orders.>", max_age=7 * 86_400)
        """
        check_text("the stream's name", name)
        check_text("the subject", subject)
        config = wire.to_config(settings)
        try:
            answer: pb.CreateStreamResponse = await self._calls.call(
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
        self._forget_routes()
        return wire.stream_of(answer.stream)

    async def alter_stream(
        self,
        stream: StreamLike,
        *,
        stream_epoch: int | None = None,
        **settings: Unpack[AlterableSettings],
    ) -> Stream:
        """Change settings (see AlterableSettings) of a running stream; returns the changed stream.
        stream_epoch: change the settings only if the stream still has this epoch; otherwise raise
        PreconditionFailedError."""
        request = pb.AlterStreamRequest(
            config=wire.to_config(settings), stream_epoch=check_epoch(stream_epoch)
        )
        answer: pb.AlterStreamResponse = await self._change(stream, request, "altering stream {!r}")
        return wire.stream_of(answer.stream)

    async def describe_stream(self, stream: StreamLike) -> StreamDescription:
        """Describe a stream with what its leader knows; if the leader does not answer, with what
        any node knows. Raises StreamNotFoundError, AmbiguousStreamError."""
        self._check_open()
        return await self._streams.describe(stream)

    async def list_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[Stream]:
        """List all streams; with `feeding_subject`, only those that store messages of this subject.
        internal: also list the server's own streams, such as `__cursors`."""
        self._check_open()
        return await self._streams.find(feeding_subject, internal=internal)

    async def describe_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[StreamDescription]:
        """Describe the streams of `list_streams` with what their leaders know (or any node, if a
        leader does not answer). This makes one call to each node, however many streams there are.
        """
        self._check_open()
        return await self._streams.describe_all(feeding_subject, internal=internal)

    async def delete_stream(self, stream: StreamLike) -> None:
        """Delete a stream and its records, for good. Raises StreamNotFoundError."""
        request = pb.DeleteStreamRequest()
        await self._change(stream, request, "deleting stream {!r}", StreamNotFoundError)
        self._forget_routes()

    async def purge_stream(self, stream: StreamLike, before: Position | None = None) -> int:
        """Remove the records before a position, or all committed records, on every replica. Returns
        the first offset kept.

        Only whole batches are removed: the batch that holds the position stays. The records of one
        subject cannot be purged. Purged records cannot be read any more; docs/sdk.md says until
        when their bytes stay on disk. Raises OffsetOutOfRangeError for an offset that is not
        committed.
        """
        self._check_open()
        if before is None:
            # A copy of the call that arrives late must not remove what was stored since.
            offset = (await self.describe_stream(stream)).high_watermark
        else:
            offset = await self.offset_at(stream, before)
        request = pb.PurgeStreamRequest(offset=offset)
        answer: pb.PurgeStreamResponse = await self._change(stream, request, "purging stream {!r}")
        return int(answer.log_start_offset)

    async def set_stream_readonly(self, stream: StreamLike, readonly: bool = True) -> Stream:
        """Refuse every record from now on (StreamReadonlyError), or take records again. Reading,
        retention and compaction go on. Returns the changed stream."""
        request = pb.SetStreamReadonlyRequest(readonly=readonly)
        what = "making stream {!r} " + ("read-only" if readonly else "writable")
        return await self._change_access(stream, request, what)

    async def pause_stream(self, stream: StreamLike) -> Stream:
        """Stop listening to the stream's subject: messages published from now on are not stored.

        Messages that were published before are stored when this returns. Reading, retention and
        compaction go on. A publish through this client raises StreamPausedError; other publishers
        get no answer.
        """
        return await self._change_access(stream, pb.PauseStreamRequest(), "pausing stream {!r}")

    async def resume_stream(self, stream: StreamLike) -> Stream:
        """Undo `pause_stream`. When this returns, the stream listens."""
        return await self._change_access(stream, pb.ResumeStreamRequest(), "resuming stream {!r}")

    async def restore_batches(self, stream: StreamLike, batches: bytes) -> int:
        """Append batches, with the offsets and times that they have, to a stream that was created
        with `restoring`. Returns the offset where the next batch must begin, once these are
        committed.

        batches: whole batches, back to back, at most 4 MiB. Raises PreconditionFailedError for any
        other stream, and for batches that do not begin at the stream's log end; UnknownOutcomeError
        if they may be stored: then `describe_stream` shows the log end.
        """
        # Not repeated once it may have been done: the caller looks where the log ends, and goes on
        # there.
        answer: pb.RestoreBatchesResponse = await self._calls.call(
            pb.RestoreBatchesRequest(stream=wire.to_ref(stream), batches=batches),
            what="restoring batches",
            changes=True,
        )
        return int(answer.next_offset)

    async def _change_access(self, stream: StreamLike, request: Any, what: str) -> Stream:
        try:
            return wire.stream_of((await self._change(stream, request, what)).stream)
        finally:
            self._forget_routes()

    async def _change(
        self, stream: StreamLike, request: Any, what: str, gone: type[JetstreamError] | None = None
    ) -> Any:
        """request: without its stream. what: with a place for the stream's name. gone: what an
        earlier attempt has done to it, if its answer was lost."""
        calls = self._calls
        found = await self._streams.by_id(stream)
        request.stream.CopyFrom(wire.to_ref(found))
        what = what.format(found.full_name)
        return await calls.call(request, what=what, changes=True, done_already=gone)
