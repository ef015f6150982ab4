"""The calls of `Client` that ask and wait for an answer.

Written by scripts/generate from the classes of AsyncClient. Do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.processing.listeners import in_thread
from jetstream_client.publishing.ack import PublishResult
from jetstream_client.reading.batches import FetchedBatches
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from jetstream_client.reading.consumer import FETCH_BYTES
from jetstream_client.reading.deserializers import Deserializer
from jetstream_client.reading.group_consumer import SESSION_SECONDS, Listener
from jetstream_client.reading.messages import ROWS, Message, Messages
from jetstream_client.reading.scan import Scan
from jetstream_client.values.access import AclDecision, AclRule, NewToken, Operation, Token
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import (
    AlterableSettings,
    ClusterSettings,
    GroupSettings,
    Seconds,
    StreamSettings,
)
from jetstream_client.values.types import (
    AckLevel,
    ClusterInfo,
    ConsumerGroup,
    Cursor,
    CursorDescription,
    NodeDebug,
    OffsetAt,
    OnReset,
    Payload,
    ReadFrom,
    ReplicaMove,
    Stream,
    StreamDescription,
    StreamLike,
    UncleanElection,
    Via,
    Voters,
)

if TYPE_CHECKING:
    from typing import Unpack


class Calls:
    """What follows is part of `Client`, which sets these."""

    _thread: LoopThread
    _client: AsyncClient

    def publish(
        self,
        subject: str,
        value: Payload | None,
        *,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
        acks: str | Sequence[str] = "all",
        ack_level: AckLevel | None = None,
        msg_id: str | None = None,
        expected_offset: int | None = None,
        timeout: float | None = None,
        via: Via = "nats",
    ) -> PublishResult:
        """Publish an ordinary NATS message and wait until streams acknowledge it.

        value: None is a tombstone, b"" an empty value. key: text is stored as UTF-8; in a keyed
        group the key chooses the stream. acks: wait for "all" streams on the subject, for "any" one
        of them, or for those with the given names. ack_level: when a stream acknowledges: "all"
        (committed, the default), "leader" (appended); with "none" the call waits for nothing.
        msg_id: within its `duplicate_window` a stream stores only one message with this id; a
        repeated one is acknowledged as `duplicate`, with the offset of the first. expected_offset:
        store the message only if it gets this offset. timeout: seconds; default: the client's. via:
        "direct" sends it straight to the leader of each stream on the subject, past NATS: nobody
        else who listens there hears it. "auto" does so where exactly one stream listens, and its
        leader can be reached; else the message goes by NATS.

        Raises NoStreamError at once if no stream listens; the error of a stream that refuses, which
        has then stored nothing (PreconditionFailedError: another record has the expected offset);
        UnknownOutcomeError if `timeout` passes without an answer.

            ack = client.publish("orders.eu", b"3 pears", key=b"42")
            print(ack.stream, ack.offset)

        This publishes one message at a time; a `publisher` is many times faster.
        """
        return self._thread.run(
            self._client.publish(
                subject,
                value,
                key=key,
                headers=headers,
                acks=acks,
                ack_level=ack_level,
                msg_id=msg_id,
                expected_offset=expected_offset,
                timeout=timeout,
                via=via,
            )
        )

    def create_group(
        self, name: str, subject: str, *, streams: int, **settings: Unpack[GroupSettings]
    ) -> list[Stream]:
        """Create a keyed group: streams NAME-0, NAME-1 and so on that share the subject. The key of
        a record chooses its stream. Returns all of them, in order.

        streams: how many. Existing streams stay. If a call fails, repeat it: it creates what is
        missing. With a larger number the group grows. Keys are then shared out anew, so that the
        later records of a key may be in another stream than the earlier ones. A group cannot
        shrink. Settings (see GroupSettings) hold for each stream. docs/keyed_groups.md has more.

        Raises StreamExistsError if one of the streams exists with another configuration,
        InvalidRequestError for fewer streams than there are, and if another stream on the subject
        would not hear messages that are published by key.
        """
        return self._thread.run(
            self._client.create_group(name, subject, streams=streams, **settings)
        )

    def describe_keyed_group(self, name: str) -> list[StreamDescription]:
        """Describe the streams of a keyed group, by number, as `describe_streams` does. Each names
        its stream for calls about one, as in `client.pause_stream(each)`. Raises
        StreamNotFoundError if there is no such group."""
        return self._thread.run(self._client.describe_keyed_group(name))

    def alter_keyed_group(self, name: str, **settings: Unpack[AlterableSettings]) -> list[Stream]:
        """Change settings (see AlterableSettings) of each stream of a keyed group; returns the
        changed streams. If it fails, repeat it: a note at the error says which streams have the old
        settings. Raises StreamNotFoundError, and NoStreamError if the group lacks streams."""
        return self._thread.run(self._client.alter_keyed_group(name, **settings))

    def delete_keyed_group(self, name: str) -> None:
        """Delete the streams of a keyed group and their records, for good, from the last to the
        first. If it fails, repeat it: it deletes those that are left. Raises StreamNotFoundError if
        there are none. `delete_group` deletes a consumer group."""
        self._thread.run(self._client.delete_keyed_group(name))

    def fetch(
        self,
        stream: StreamLike,
        offset: Position = "earliest",
        *,
        stop: Position | None = None,
        max_messages: int | None = None,
        max_wait: float = 0.0,
        max_bytes: int = FETCH_BYTES,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        filter: str = "",
        key: Payload | None = None,
        reverse: bool = False,
    ) -> Messages:
        """Fetch committed records from `offset` on, before `stop`: at most `max_messages`, about
        `max_bytes`.

        Returns `Messages`. If there is no record yet, waits up to `max_wait` seconds for the first
        one, and then returns empty `Messages`. The first batch is read whole even if it is longer
        than `max_bytes`. last_epoch: the `last_epoch` of the `Messages` read before; the server
        then raises DivergedError if those records are no longer in the log. read_from: the
        "leader", the "nearest" replica in sync or observer (in the client's `rack`, else the
        quickest), or "any" replica in sync; copies other than the leader's have a record a moment
        later. filter, key: only records on subjects that match this NATS pattern, and with this
        key. reverse: newest first; to go on, fetch with `stop=messages.next_offset`; max_wait and
        last_epoch are not allowed then.

        Raises OffsetOutOfRangeError for an offset below the log's start or beyond its end.

            for message in client.fetch("orders", "earliest", max_messages=100):
                print(message.offset, message.value)
        """
        return self._thread.run(
            self._client.fetch(
                stream,
                offset,
                stop=stop,
                max_messages=max_messages,
                max_wait=max_wait,
                max_bytes=max_bytes,
                last_epoch=last_epoch,
                read_from=read_from,
                filter=filter,
                key=key,
                reverse=reverse,
            )
        )

    def fetch_batches(
        self,
        stream: StreamLike,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES,
        last_epoch: int = -1,
        encrypted: bool = False,
    ) -> FetchedBatches:
        """Fetch committed batches as they are stored, from the one that holds `offset` on: for
        backups.

        Does not wait: if nothing is committed at `offset` yet, `data` is empty. max_bytes,
        last_epoch: as in `fetch`. encrypted: batches that are encrypted at rest stay encrypted, and
        only a server with the key can read them; otherwise they come decrypted. Raises
        OffsetOutOfRangeError, DivergedError, and StorageError if the server cannot decrypt them.
        """
        return self._thread.run(
            self._client.fetch_batches(
                stream, offset, max_bytes=max_bytes, last_epoch=last_epoch, encrypted=encrypted
            )
        )

    def get_last(
        self, stream: StreamLike, *, subject: str = "", key: Payload | None = None
    ) -> Message | None:
        """Return the last committed record, on a subject of the pattern and with the key if these
        are given, or None if there is none. It may be a tombstone. A stream with `key="subject"`
        knows the last record of each subject. Otherwise the log is searched from its end, so
        finding an old record takes long: use a `table` for many such queries."""
        return self._thread.run(self._client.get_last(stream, subject=subject, key=key))

    def list_offsets(self, positions: Iterable[tuple[StreamLike, Position]]) -> list[OffsetAt]:
        """Resolve positions of many streams in one call; the results are in the same order. An
        offset resolves to itself."""
        return self._thread.run(self._client.list_offsets(positions))

    def offset_at(self, stream: StreamLike, position: Position) -> int:
        """Return the offset of a position; for "latest" it is the offset of the next record."""
        return self._thread.run(self._client.offset_at(stream, position))

    def consume(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        *,
        stop: Position | None = None,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: float | None = None,
        filter: str = "",
        key: Payload | None = None,
        reverse: bool = False,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        cursor: str | None = None,
        auto_commit: bool = True,
        on_reset: OnReset = "error",
    ) -> Consumer:
        """Read records from `start` on, without end, or up to but not including `stop`.

        `stop="latest"` stops at the end of the committed records when reading begins. last_epoch,
        read_from: as in `fetch`; a reader that moves to another replica goes on where it was.
        patience: seconds to wait for the next record before UnavailableError; None: for ever.
        filter, key: as in `fetch`. reverse: newest first, from `stop` or the end of the committed
        records down to `start`. key_deserializer, value_deserializer: turn the bytes of keys and
        values into `message.key` and `message.value`, for example `json.loads`; not called for
        None.

        cursor: the name under which the cluster keeps the position. The consumer resumes there; a
        new cursor begins at `start`. Records that are done are committed each second and at the
        end. A record is done once the next one is asked for, or the `with` ends without an error.
        auto_commit: False: only `commit()` commits. on_reset: what to do if the stream no longer
        holds the position, because records were removed or lost, or the stream was created anew:
        raise the "error" (OffsetOutOfRangeError, DivergedError), or log it and go on from
        "earliest" or "latest". docs/consumers.md has more.

            with client.consume("orders", cursor="billing") as consumer:
                for message in consumer:
                    print(message.offset, message.value)

        The start is resolved before this returns.
        """
        return self._thread.begun(
            lambda: self._client.consume(
                stream,
                start,
                stop=stop,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
                filter=filter,
                key=key,
                reverse=reverse,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                cursor=cursor,
                auto_commit=auto_commit,
                on_reset=on_reset,
            ),
            Consumer,
        )

    def consume_group(
        self,
        source: str,
        group: str,
        *,
        instance: str = "",
        start: Position = "earliest",
        read_from: ReadFrom = "leader",
        filter: str = "",
        key: Payload | None = None,
        session_timeout: float = SESSION_SECONDS,
        auto_commit: bool = True,
        on_reset: OnReset = "error",
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> GroupConsumer:
        """Join a consumer group. Its members share out the streams of `source`, and one member at a
        time reads a stream, in order.

        source: the name of a group of streams, or of a stream. group: the name of the consumer
        group, under which its cursors are kept. instance: a name for this member that outlives its
        process: the next member of that name takes its place at once, and while its process
        restarts, within `session_timeout`, its streams wait for it. start, filter, key,
        auto_commit, on_reset: as in `consume`, for each stream. session_timeout: seconds after
        which a member that sends nothing is removed. on_assigned, on_revoked: called between two
        records with the names of streams that come and go; the streams that go are committed
        afterwards. They run in another thread while the one that reads waits, and may use the
        client and `commit()`, but not read. They have 60 seconds.

            with client.consume_group("orders", "billing") as member:
                for message in member:
                    print(message.stream, message.offset)

        The consumer is a member when this returns.
        """
        return self._thread.begun(
            lambda: self._client.consume_group(
                source,
                group,
                instance=instance,
                start=start,
                read_from=read_from,
                filter=filter,
                key=key,
                session_timeout=session_timeout,
                auto_commit=auto_commit,
                on_reset=on_reset,
                on_assigned=in_thread(on_assigned),
                on_revoked=in_thread(on_revoked),
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
            ),
            GroupConsumer,
        )

    def scan(
        self,
        stream: StreamLike,
        start: Position = "earliest",
        stop: Position = "latest",
        *,
        rows: int = ROWS,
        columns: Iterable[str] | None = None,
        last_epoch: int = -1,
        read_from: ReadFrom = "leader",
        patience: float | None = None,
    ) -> Scan:
        """Read the records of [start, stop) as Arrow record batches.

        rows: at most so many in a batch. columns: only these; the others are not built. last_epoch,
        read_from: as in `fetch`; last_epoch is that of the record before `start`. patience: as in
        `consume`, but by default the client's timeout, because a scan has an end. Needs
        `jetstream-log[arrow]`.

        Start and stop are resolved before this returns.
        """
        return self._thread.begun(
            lambda: self._client.scan(
                stream,
                start,
                stop,
                rows=rows,
                columns=columns,
                last_epoch=last_epoch,
                read_from=read_from,
                patience=patience,
            ),
            Scan,
        )

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
        has this epoch. Raises PreconditionFailedError if the stream has a leader, or the replica
        cannot lead.
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

    def set_throttle(self, bytes_per_second: int) -> None:
        """Limit how many bytes a second each node sends to replicas that are not in sync: new ones,
        observers, and those that were away. 0: no limit.

        It holds for the whole cluster, at once, and until it is set again; `describe_cluster` tells
        it. Replicas in sync are not affected, nor streams that have fewer of them than
        `min_insync_replicas`. Raises InvalidRequestError below 64 KiB and above 1 TiB.
        """
        self._thread.run(self._client.set_throttle(bytes_per_second))

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
        Raises NotFoundError."""
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
