"""Streams that clients create, alter, purge and delete: in the name of the API's principal, by the
same checks as gRPC's (serving/grpc/guard.py), and with a line in the audit log.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    QuotaExceededError,
    StorageFullError,
    StreamExistsError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.settings import BY_FIELD
from jetstream_protocol.stream_names import check_own_name
from jetstream_protocol.subjects import covers, overlaps
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.jetstream_api.answers import stream_config
from jetstream_server.jetstream_api.catalogue import Catalogue
from jetstream_server.jetstream_api.errors import ApiError, bad_request_error
from jetstream_server.jetstream_api.requests import api_name, body_of, number, pattern
from jetstream_server.jetstream_api.stream_configs import (
    WantedStream,
    config_error,
    wanted_stream,
)
from jetstream_server.jetstream_api.stream_reads import StreamReads, until_settled
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.commands import DeleteStream
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.peers import Peers, until_known
from jetstream_server.serving.grpc.purges import Purges
from jetstream_server.serving.stream_access import StreamAccess

_Found = TypeVar("_Found")

_ATTEMPTS: Final = 8
"""Clients wait for 5 s. A new cluster needs a moment until it takes every setting."""

_FIXED = {"replicas": "num_replicas", "key": "max_msgs_per_subject"}
"""What STREAM.UPDATE cannot change, and what clients call it."""


class StreamChanges:
    """identity: the principal of the account. confirm: returns once NATS has confirmed the
    subscription of a stream that this node leads."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        streams: Streams,
        access: StreamAccess,
        catalogue: Catalogue,
        reads: StreamReads,
        peers: Peers,
        identity: Identity,
        confirm: Callable[[int], Awaitable[None]],
        replicas: ReplicaManager,
        purges: Purges,
        *,
        node_id: int,
    ) -> None:
        self._metadata = metadata
        self._streams = streams
        self._access = access
        self._catalogue = catalogue
        self._reads = reads
        self._peers = peers
        self._identity = identity
        self._confirm = confirm
        self._replicas = replicas
        self._purges = purges
        self._node_id = NodeId(node_id)

    async def create(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """STREAM.CREATE. Raises ApiError, JetstreamError."""
        wanted = wanted_stream(name, body)
        request = pb.CreateStreamRequest(name=wanted.name, subject=wanted.subject)
        try:
            check_own_name(wanted.name)
            names_at = partial(self._access.check_new, self._identity, request)
            names_at()
            self._check_free(wanted)
            self._streams.check_room(self._node_id, self._replicas.full_reason)
            stream, created = await self._noted(
                "STREAM.CREATE",
                f"{wanted.name}@{wanted.subject}",
                until_settled(partial(self._create, wanted, names_at), _ATTEMPTS),
            )
            await self._until_heard(stream, request)
        except InvalidRequestError as error:
            raise config_error(error.message) from None
        except StreamExistsError as error:
            raise ApiError(
                400, 10058, f"stream name already in use with a different configuration: "
                f"{error.message}"
            ) from None  # fmt: skip
        except QuotaExceededError as error:
            raise ApiError(400, 10027, f"maximum number of streams reached: {error.message}"
                           ) from None  # fmt: skip
        except StorageFullError as error:
            raise ApiError(
                503, 10047, f"insufficient storage resources available: {error.message}"
            ) from None
        await self._until_known(stream.id, stream.leader)
        found = await self._catalogue.describe(api_name(stream.name))
        return found | {"did_create": True} if created else found

    async def _create(
        self, wanted: WantedStream, names_at: Callable[[], int]
    ) -> tuple[StreamMetadata, bool]:
        control = self._access.control
        existing = self._metadata.registry.find(wanted.name, wanted.subject)
        settings = wanted.settings
        if existing is not None:
            if others := differing(existing, wanted):
                raise StreamExistsError(", ".join(sorted(others)))
            settings = {field: getattr(existing.config, field) for field in settings}
        config = {
            "group": "",
            "partition": 0,
            "partitions": 0,
            **_without_later_defaults(settings),
        }
        return await self._streams.create(
            wanted.name,
            wanted.subject,
            config,
            False,
            check_names=names_at,
            creator=control.quota_holder(self._identity),
            streams_max=control.quotas.streams,
            made_at=self._metadata.registry.revision,
        )

    def _check_free(self, wanted: WantedStream) -> None:
        """Raise ApiError if another stream would store the same messages: their publishers would be
        answered twice, which JetStream's clients do not expect."""
        for stream in self._metadata.registry.streams.values():
            is_same = (stream.name, stream.subject) == (wanted.name, wanted.subject)
            if not is_same and not stream.is_internal and overlaps(stream.subject, wanted.subject):
                raise ApiError(400, 10065, "subjects overlap with an existing stream")

    async def _until_heard(self, stream: StreamMetadata, request: pb.CreateStreamRequest) -> None:
        """Return once the leader listens: publishers may publish at once."""
        if stream.leader == NO_NODE:
            raise UnavailableError(f"stream {stream.name!r} exists, but has no leader; try again")
        if stream.leader == self._node_id:
            await self._confirm(stream.id)
        else:
            await self._peers.ask(stream.leader, request)

    async def _until_known(self, stream_id: StreamId, leader: NodeId = NO_NODE) -> None:
        """Return once the other nodes have heard of a change, as its leader has, or a moment later:
        NATS brings the client's next request to any of them."""
        knowing = {self._node_id, leader}
        await until_known(self._peers, self._metadata.registry, stream_id, knowing)

    async def update(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """STREAM.UPDATE: the whole configuration. Raises ApiError, JetstreamError."""
        stream = self._catalogue.stream(name, Operation.ALTER)
        wanted = wanted_stream(name, body)
        if wanted.subject != stream.subject:
            raise config_error(f"the subject of a stream cannot be changed: {stream.subject}")
        altered = differing(stream, wanted)
        for field, api_field in _FIXED.items():
            if field in altered:
                raise config_error(f"{api_field} of a stream cannot be changed")
        if altered:
            try:
                await self._noted(
                    "STREAM.UPDATE",
                    stream.full_name,
                    until_settled(partial(self._alter, stream, altered), _ATTEMPTS),
                )
            except InvalidRequestError as error:
                raise config_error(error.message) from None
        return await self._catalogue.describe(name)

    async def _alter(self, stream: StreamMetadata, altered: dict[str, Any]) -> None:
        config = {"group": "", "partition": 0, "partitions": 0, **altered}
        made_at = self._metadata.registry.revision
        after = await self._streams.alter(stream, config, None, made_at)
        if after.leader not in (NO_NODE, self._node_id):
            await self._peers.reach_epoch(after.leader, after.id, after.stream_epoch)
        await self._until_known(after.id, after.leader)

    async def delete(self, name: str) -> dict[str, Any]:
        """STREAM.DELETE. Raises ApiError, JetstreamError."""
        stream = self._catalogue.stream(name, Operation.DELETE)
        delete = until_settled(partial(self._delete, stream.id), _ATTEMPTS)
        await self._noted("STREAM.DELETE", stream.full_name, delete)
        await self._until_known(stream.id)
        return {"success": True}

    async def _delete(self, stream_id: StreamId) -> None:
        made_at = self._metadata.registry.revision
        await self._metadata.propose(DeleteStream(stream_id=stream_id), made_at=made_at)

    async def purge(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """STREAM.PURGE. Raises ApiError, JetstreamError."""
        stream = self._catalogue.stream(name, Operation.PURGE)
        sequence, keep = number(body, "seq"), number(body, "keep")
        if sequence and keep:
            raise bad_request_error()
        subjects = pattern(body, "filter")
        if subjects:  # The answer tells which keys there are.
            self._catalogue.stream(name, Operation.READ)
        if subjects and not overlaps(subjects, stream.subject):
            return {"success": True, "purged": 0}
        if subjects and not covers(subjects, stream.subject):
            return await self._purge_subjects(stream, subjects, keep)
        start, end = await self._reads.bounds(stream)
        offset = min(sequence - 1, end) if sequence else end - keep
        if keep and stream.was_compacted:
            raise ApiError(500, 10110, "a compacted stream is purged by `seq`, or whole")
        if offset > start:
            purging = self._reads.purge(stream, offset, self._purges.purge)
            after = await self._noted("STREAM.PURGE", stream.full_name, purging)
        else:
            after = start
        return {"success": True, "purged": max(0, after - start)}

    async def purge_for(self, stream_id: StreamId, payload: bytes) -> bytes:
        """Purge for another node, which has checked the caller's rights. Raises JetstreamError."""
        stream = self._metadata.registry.stream_of(common_pb2.StreamRef(id=stream_id))
        replica = self._replicas.led_replica_of(stream)
        start = await self._purges.purge(replica, number(body_of(payload), "offset"))
        return json.dumps({"log_start_offset": start}).encode()

    async def _purge_subjects(
        self, stream: StreamMetadata, subjects: str, keep: int
    ) -> dict[str, Any]:
        """A bucket has one message of each key, and compaction removes those of deleted keys.
        Clients ask for that after they have deleted keys. Other keys they have to delete first: a
        value that was put since is not to go by this."""
        if not stream.config.keeps_last_of_subjects:
            raise ApiError(500, 10110, "single subjects are purged of buckets only")
        live, _ = await self._reads.subjects(stream, subjects, 0, 1, only_live=True)
        if live and not keep:
            raise ApiError(500, 10110, f"{live[0][:200]} is not deleted: delete the key first")
        return {"success": True, "purged": 0}

    async def _noted(self, verb: str, resource: str, work: Awaitable[_Found]) -> _Found:
        """The result of a change, which the audit log has, also if it may have been made."""
        audit, is_decided = self._access.control.audit, False
        try:
            found = await work
            is_decided = True
        except JetstreamError as error:
            is_decided = not isinstance(error, UnavailableError | UnknownOutcomeError)
            raise
        finally:
            if not is_decided:
                audit.in_doubt(self._identity, verb, resource)
        audit.done(self._identity, verb, resource)
        return found


def differing(stream: StreamMetadata, wanted: WantedStream) -> dict[str, Any]:
    """What a client wants to be otherwise than INFO shows it. What JetStream has no words for, such
    as compaction by other keys than subjects, stays as it is. Raises ApiError."""
    shown = wanted_stream(api_name(stream.name), stream_config(stream)).settings
    return {
        field: value
        for field, value in wanted.settings.items()
        if field not in shown or value != shown[field]
    }


def _without_later_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Without defaults of settings that an older cluster does not know."""
    return {
        field: value
        for field, value in settings.items()
        if BY_FIELD[field].level == 1 or value != BY_FIELD[field].default
    }
