"""The methods of `Client` about streams: creating, altering, describing, purging, deleting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import AlterableSettings, StreamSettings
from jetstream_client.values.types import OffsetAt, Stream, StreamDescription, StreamLike

if TYPE_CHECKING:
    from typing import Unpack


class StreamMethods:
    """What follows is part of `Client`, which sets these."""

    _thread: LoopThread
    _client: AsyncClient

    def create_stream(
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

            client.create_stream("orders", subject="orders.>", max_age=7 * 86_400)
        """
        return self._thread.run(
            self._client.create_stream(name, subject, allow_same_name=allow_same_name, **settings)
        )

    def alter_stream(
        self,
        stream: StreamLike,
        *,
        stream_epoch: int | None = None,
        **settings: Unpack[AlterableSettings],
    ) -> Stream:
        """Change settings (see AlterableSettings) of a running stream; returns the changed stream.
        stream_epoch: change the settings only if the stream still has this epoch; otherwise raise
        PreconditionFailedError."""
        return self._thread.run(
            self._client.alter_stream(stream, stream_epoch=stream_epoch, **settings)
        )

    def describe_stream(self, stream: StreamLike) -> StreamDescription:
        """Describe a stream with what its leader knows; if the leader does not answer, with what
        any node knows. Raises StreamNotFoundError, AmbiguousStreamError."""
        return self._thread.run(self._client.describe_stream(stream))

    def list_streams(self, feeding_subject: str = "", *, internal: bool = False) -> list[Stream]:
        """List all streams; with `feeding_subject`, only those that store messages of this subject.
        internal: also list the server's own streams, such as `__cursors`."""
        return self._thread.run(self._client.list_streams(feeding_subject, internal=internal))

    def describe_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[StreamDescription]:
        """Describe the streams of `list_streams` with what their leaders know (or any node, if a
        leader does not answer). This makes one call to each node, however many streams there are.
        """
        return self._thread.run(self._client.describe_streams(feeding_subject, internal=internal))

    def delete_stream(self, stream: StreamLike) -> None:
        """Delete a stream and its records, for good. Raises StreamNotFoundError."""
        self._thread.run(self._client.delete_stream(stream))

    def purge_stream(self, stream: StreamLike, before: Position | None = None) -> int:
        """Remove the records before a position, or all committed records, on every replica. Returns
        the first offset kept.

        Only whole batches are removed: the batch that holds the position stays. The records of one
        subject cannot be purged. Purged records cannot be read any more; docs/sdk.md says until
        when their bytes stay on disk. Raises OffsetOutOfRangeError for an offset that is not
        committed.
        """
        return self._thread.run(self._client.purge_stream(stream, before))

    def set_stream_readonly(self, stream: StreamLike, readonly: bool = True) -> Stream:
        """Refuse every record from now on (StreamReadonlyError), or take records again. Reading,
        retention and compaction go on. Returns the changed stream."""
        return self._thread.run(self._client.set_stream_readonly(stream, readonly))

    def pause_stream(self, stream: StreamLike) -> Stream:
        """Stop listening to the stream's subject: messages published from now on are not stored.

        Messages that were published before are stored when this returns. Reading, retention and
        compaction go on. A publish through this client raises StreamPausedError; other publishers
        get no answer.
        """
        return self._thread.run(self._client.pause_stream(stream))

    def resume_stream(self, stream: StreamLike) -> Stream:
        """Undo `pause_stream`. When this returns, the stream listens."""
        return self._thread.run(self._client.resume_stream(stream))

    def list_offsets(self, positions: Iterable[tuple[StreamLike, Position]]) -> list[OffsetAt]:
        """Resolve positions of many streams in one call; the results are in the same order. An
        offset resolves to itself."""
        return self._thread.run(self._client.list_offsets(positions))

    def offset_at(self, stream: StreamLike, position: Position) -> int:
        """Return the offset of a position; for "latest" it is the offset of the next record."""
        return self._thread.run(self._client.offset_at(stream, position))
