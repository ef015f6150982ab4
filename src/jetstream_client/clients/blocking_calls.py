"""The part of `Client` that asks and waits for an answer.

Written by scripts/generate from the classes of AsyncClient. Do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.values.access import AclDecision, AclRule, NewToken, Operation, Token
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_client.values.durations import Seconds
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import AlterableSettings, ClusterSettings, StreamSettings
from jetstream_client.values.types import (
    ClusterInfo,
    ConsumerGroup,
    Cursor,
    CursorDescription,
    History,
    NodeDebug,
    ReplicaMove,
    Stream,
    StreamDescription,
    StreamLake,
    StreamLike,
    StreamSchema,
    UncleanElection,
    UnneededObject,
    Voters,
)


class Calls:
    """What follows is part of `Client`, which sets these."""

    _thread: LoopThread
    _client: AsyncClient

    def describe_cluster(self) -> ClusterInfo:
        """Describe the cluster: its nodes and why some are not ready, the controller, and the URLs
        of NATS."""
        return self._thread.run(self._client.describe_cluster())

    def transfer_leader(self, stream: StreamLike, node: int) -> Stream:
        """Hand a stream's leadership to another node, which must be in its ISR and not draining.

        Returns the stream with its new leader. Raises PreconditionFailedError if the node cannot
        lead it now.
        """
        return self._thread.run(self._client.transfer_leader(stream, node))

    def elect_uncleanly(
        self,
        stream: StreamLike,
        node: int,
        *,
        dry_run: bool = False,
        stream_epoch: int | None = None,
    ) -> UncleanElection:
        """Elect a replica of a stream without a leader, although committed records may be lost.

        dry_run: only say what the election would cost. stream_epoch: elect only if the stream still
        has this epoch; by default, that which it has when the call begins. Raises
        PreconditionFailedError if the stream has a leader, or the replica cannot lead.
        """
        return self._thread.run(
            self._client.elect_uncleanly(stream, node, dry_run=dry_run, stream_epoch=stream_epoch)
        )

    def drain_node(self, node: int, *, undo: bool = False) -> None:
        """Mark a node as draining: its leaderships move away, and it gets new streams only if there
        are too few other nodes. The mark outlives the node's restarts. Returns before the
        leaderships have moved: `describe_stream` shows when they have. undo: remove the mark.
        """
        self._thread.run(self._client.drain_node(node, undo=undo))

    def debug_node(self, node: int) -> NodeDebug:
        """Return what support needs to know of a node: its configuration without secrets, its
        metrics, and its last log lines. Raises NotFoundError."""
        return self._thread.run(self._client.debug_node(node))

    def describe_history(
        self,
        stream: StreamLike | None = None,
        *,
        cursor: str | None = None,
        node: int | None = None,
    ) -> History:
        """Return the last hour: of a stream (records and bytes a second, size, ISR), or the lag of
        a cursor or consumer group of that name, or else of a node (records and bytes a second, free
        disk); by default of the one that answers. A node keeps it since its start.
        """
        return self._thread.run(self._client.describe_history(stream, cursor=cursor, node=node))

    def record_activity(self) -> Stream:
        """Write every change of the metadata, and which cursors are created, moved by hand and
        deleted, to the stream `__activity` from now on.

        Returns this stream, which can be read like any other. Idempotent; it cannot be undone.
        """
        return self._thread.run(self._client.record_activity())

    def reassign_stream(
        self,
        stream: StreamLike,
        replicas: Sequence[int] | None = None,
        *,
        observers: Sequence[int] | None = None,
        stream_epoch: int | None = None,
    ) -> Stream:
        """Move a stream to these nodes. It then has one replica on each of them.

        Returns at once. The stream stays on its old nodes too until the new ones are in sync; until
        then its `target_replicas` are not empty. Repeated with the old nodes, the call cancels the
        move. replicas: None: they stay. observers: the nodes of its observers, which change at
        once; None: they stay, but those that are named as replicas are promoted. Raises
        InvalidRequestError for an unknown node, one that is named as both, or fewer nodes than the
        stream's `min_insync_replicas`. stream_epoch: move the stream only if it still has this
        epoch; otherwise raise PreconditionFailedError. If the answer to a first try was lost, that
        error may also mean that the stream is being moved.
        """
        return self._thread.run(
            self._client.reassign_stream(
                stream, replicas, observers=observers, stream_epoch=stream_epoch
            )
        )

    def plan_reassignment(self, *, drain: int | None = None) -> list[ReplicaMove]:
        """Plan which streams to move where, so that all nodes hold as many replicas. Moves nothing.

        drain: plan instead to move every replica away from this node. Raises
        PreconditionFailedError if a stream has no other node to go to.
        """
        return self._thread.run(self._client.plan_reassignment(drain=drain))

    def alter_cluster(self, **settings: Unpack[ClusterSettings]) -> None:
        """Change settings (see ClusterSettings) of the whole cluster. They hold at once, and until
        they are changed again; `describe_cluster` tells them. Raises InvalidRequestError for a
        value out of its range.
        """
        self._thread.run(self._client.alter_cluster(**settings))

    def remove_node(self, node: int) -> None:
        """Remove a stopped node from the cluster's metadata. Raises PreconditionFailedError if it
        is alive or holds replicas."""
        self._thread.run(self._client.remove_node(node))

    def list_voters(self) -> Voters:
        """Return which nodes vote on the metadata, as the metadata leader sees it."""
        return self._thread.run(self._client.list_voters())

    def change_voters(self, voters: Sequence[int]) -> Voters:
        """Let these nodes vote on the metadata: those that do, and one more or less.

        Returns once they have agreed. May be repeated with the same nodes. Raises
        InvalidRequestError for more than one change, PreconditionFailedError for an unknown node or
        while a node runs older software, and UnavailableError with what the change waits for: for
        example until a new voter has caught up.
        """
        return self._thread.run(self._client.change_voters(voters))

    def create_consumer(
        self,
        stream: StreamLike,
        name: str,
        *,
        start: Position = "earliest",
        filter: str | Sequence[str] = (),
        ack_wait: Seconds | None = None,
        backoff: Sequence[Seconds] = (),
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        max_ack_pending: int | None = None,
        description: str | None = None,
    ) -> ConsumerDescription:
        """Create a durable consumer, whose messages several readers share and acknowledge one by
        one; or alter the one that there is. What is None or empty is the default, or stays as it
        is. Returns what it is then.

        start: where a new consumer begins. filter: NATS patterns; none: all messages. ack_wait:
        seconds after which a message that was not acknowledged is delivered again; default: 30.
        backoff: instead, seconds for the first, second, … delivery. max_deliver: how often a
        message is delivered; 0: without end. dead_letter: the subject on which a `queue` publishes
        a message that was delivered so often; "": it is given up. max_ack_pending: how many
        messages may be delivered and not acknowledged; default: 1,000.

        Raises PreconditionFailedError if the consumer that there is has other filters, pushes, or
        acknowledges otherwise; QuotaExceededError.
        """
        return self._thread.run(
            self._client.create_consumer(
                stream,
                name,
                start=start,
                filter=filter,
                ack_wait=ack_wait,
                backoff=backoff,
                max_deliver=max_deliver,
                dead_letter=dead_letter,
                max_ack_pending=max_ack_pending,
                description=description,
            )
        )

    def describe_consumer(self, stream: StreamLike, name: str) -> ConsumerDescription:
        """Describe a consumer of a stream. Raises NotFoundError if there is none of the name."""
        return self._thread.run(self._client.describe_consumer(stream, name))

    def list_consumers(self, stream: StreamLike | None = None) -> list[ConsumerDescription]:
        """Describe the consumers of a stream, by name, those of NATS clients among them; without a
        stream those of all streams, for which every node is asked that is alive."""
        return self._thread.run(self._client.list_consumers(stream))

    def delete_consumer(self, stream: StreamLike, name: str) -> None:
        """Delete a consumer, with what it knows of its messages, for good. Raises NotFoundError."""
        self._thread.run(self._client.delete_consumer(stream, name))

    def pause_consumer(
        self, stream: StreamLike, name: str, seconds: Seconds
    ) -> ConsumerDescription:
        """Deliver nothing for so many seconds. What is delivered may be acknowledged. Raises
        NotFoundError."""
        return self._thread.run(self._client.pause_consumer(stream, name, seconds))

    def resume_consumer(self, stream: StreamLike, name: str) -> ConsumerDescription:
        """Undo `pause_consumer`. Idempotent. Raises NotFoundError."""
        return self._thread.run(self._client.resume_consumer(stream, name))

    def list_cursors(self, name: str = "", *, stream: StreamLike | None = None) -> list[Cursor]:
        """List the cursors, by name and stream: all, those of one name, or those in one stream."""
        return self._thread.run(self._client.list_cursors(name, stream=stream))

    def describe_cursors(
        self, name: str = "", *, stream: StreamLike | None = None
    ) -> list[CursorDescription]:
        """Describe the cursors that `list_cursors` lists, with how far behind their streams they
        are."""
        return self._thread.run(self._client.describe_cursors(name, stream=stream))

    def describe_cursor(self, name: str, stream: StreamLike) -> CursorDescription:
        """Describe one cursor: its position in a stream, and how far behind it is. Raises
        NotFoundError."""
        return self._thread.run(self._client.describe_cursor(name, stream))

    def commit_cursor(
        self,
        name: str,
        stream: StreamLike,
        offset: int,
        *,
        last_epoch: int = -1,
        metadata: str = "",
    ) -> Cursor:
        """Commit a position, no matter which was committed before. Returns once it is committed.

        offset: the next record to read. last_epoch: the `last_epoch` of the `Messages` read before;
        -1: not known. metadata: a text that is stored with it. A consumer that uses the cursor
        meanwhile ends with PreconditionFailedError.
        """
        return self._thread.run(
            self._client.commit_cursor(
                name, stream, offset, last_epoch=last_epoch, metadata=metadata
            )
        )

    def seek_cursor(self, name: str, stream: StreamLike, position: Position) -> Cursor:
        """Commit a position, given as for `consume`, from which the next consumer of the cursor
        begins. The stream must hold it; otherwise raises OffsetOutOfRangeError. Returns the cursor.

        A consumer that uses the cursor now ends with PreconditionFailedError.
        """
        return self._thread.run(self._client.seek_cursor(name, stream, position))

    def delete_cursor(self, name: str, stream: StreamLike) -> None:
        """Delete a cursor of a stream. If the stream was deleted, name it in full (`name@subject`).
        Raises NotFoundError, PreconditionFailedError if it is committed at that moment."""
        self._thread.run(self._client.delete_cursor(name, stream))

    def list_groups(self) -> list[ConsumerGroup]:
        """List the consumer groups, also those without members."""
        return self._thread.run(self._client.list_groups())

    def delete_group(self, group: str) -> None:
        """Delete a consumer group that has no members, and its positions, as Kafka does: the next
        member of that name begins anew. If a call fails, repeat it.

        Raises PreconditionFailedError while it has members, NotFoundError.
        """
        self._thread.run(self._client.delete_group(group))

    def describe_group(self, group: str) -> ConsumerGroup:
        """Describe one consumer group: its members, and which streams each reads. Raises
        NotFoundError."""
        return self._thread.run(self._client.describe_group(group))

    def adopt_lake(self, stream: StreamLike, table_url: str) -> None:
        """Make a table of the lake that a lost cluster has left the one of a new stream, which has
        `lake` and is `restoring`. table_url: of its metadata, or of its stream's folder. Raises
        InvalidRequestError for what is no such table, PreconditionFailedError for another stream,
        StreamNotFoundError, UnavailableError."""
        self._thread.run(self._client.adopt_lake(stream, table_url))

    def describe_lake(self, stream: StreamLike) -> StreamLake:
        """Which records of a stream are in the lake, and where its table is. Raises
        StreamNotFoundError, UnavailableError."""
        return self._thread.run(self._client.describe_lake(stream))

    def sweep_lake(
        self, stream: StreamLike, *, dry_run: bool = False
    ) -> tuple[UnneededObject, ...]:
        """Delete from a stream's folder in the lake what its table has not needed for the grace
        time, as its leader does by itself from time to time. dry_run: delete nothing. Returns what
        the table does not need: the 1,000 objects that go first. Raises StreamNotFoundError,
        UnavailableError."""
        return self._thread.run(self._client.sweep_lake(stream, dry_run=dry_run))

    def describe_schema(self, stream: StreamLike) -> StreamSchema:
        """The schema of a stream's values, with its earlier versions. Raises
        StreamNotFoundError."""
        return self._thread.run(self._client.describe_schema(stream))

    def set_schema(
        self, stream: StreamLike, schema: str | type, *, version: int | None = None
    ) -> StreamSchema:
        """Set the schema of a stream's values: `"id bigint, price double"` (docs/typed_streams.md),
        or that of a class: a dataclass, a pydantic model, a msgspec struct; "" takes it away.
        Publishers and records are not touched: a record that does not fit has nulls in its typed
        columns. Returns the schema as it is then.

        version: the version that it replaces; otherwise the one that it is at. Raises
        PreconditionFailedError if somebody has set another one meanwhile, InvalidRequestError for a
        change that programs which use the last version may not survive.
        """
        return self._thread.run(self._client.set_schema(stream, schema, version=version))

    def create_token(self, principal: str, *, lifetime: Seconds | None = None) -> NewToken:
        """Create a token for a principal, `user:NAME`. Only the returned value has its text.

        lifetime: seconds or a timedelta, after which the token is refused; None: it does not
        expire.
        """
        return self._thread.run(self._client.create_token(principal, lifetime=lifetime))

    def list_tokens(self) -> list[Token]:
        """List all tokens, expired ones too, without their texts."""
        return self._thread.run(self._client.list_tokens())

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id: from now on it is refused, also on open connections."""
        self._thread.run(self._client.revoke_token(token_id))

    def add_acl(
        self,
        principal: str,
        operations: Operation | Iterable[Operation],
        *,
        allow: bool = True,
        stream: str | None = None,
        subject: str | None = None,
        cursor: str | None = None,
    ) -> AclRule:
        """Allow (or with `allow=False` deny) a principal some operations. A deny rule wins over an
        allow rule.

        principal: `user:NAME`, or `*` for all. stream: a pattern of stream names, in which `*`
        stands for any characters. subject: a NATS pattern that must cover the stream's subject, `>`
        for all; a rule that allows `read` or `create` needs one. cursor: a pattern of names of
        cursors and consumer groups, to which `commit` is limited. Without all three the rule is for
        the cluster. Returns the rule; an equal rule that exists already is returned as
        it is.
        """
        return self._thread.run(
            self._client.add_acl(
                principal, operations, allow=allow, stream=stream, subject=subject, cursor=cursor
            )
        )

    def list_acls(self, principal: str | None = None) -> list[AclRule]:
        """List the ACL rules; with a principal only those that hold for it, `*` included."""
        return self._thread.run(self._client.list_acls(principal))

    def remove_acl(self, rule_id: int) -> None:
        """Remove an ACL rule by its id."""
        self._thread.run(self._client.remove_acl(rule_id))

    def test_acl(
        self,
        operation: Operation,
        *,
        stream: str | None = None,
        subject: str | None = None,
        principal: str | None = None,
        cursor: str | None = None,
    ) -> AclDecision:
        """Say whether a principal may do an operation, and which rule decides. Does nothing else.

        stream: without it the operation is on the cluster. subject: without it, the subject of the
        stream of this name. principal: by default the caller. cursor: the cursor or consumer group
        that `commit` is about.
        """
        return self._thread.run(
            self._client.test_acl(
                operation, stream=stream, subject=subject, principal=principal, cursor=cursor
            )
        )

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

    def restore_batches(self, stream: StreamLike, batches: bytes) -> int:
        """Append batches, with the offsets and times that they have, to a stream that was created
        with `restoring`. Returns the offset where the next batch must begin, once these are
        committed.

        batches: whole batches, back to back, at most 4 MiB. Raises PreconditionFailedError for any
        other stream, and for batches that do not begin at the stream's log end; UnknownOutcomeError
        if they may be stored: then `describe_stream` shows the log end.
        """
        return self._thread.run(self._client.restore_batches(stream, batches))
