"""Creates and alters streams: the node that was asked proposes, the registry decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    StorageFullError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_server.clocks import WallClock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import (
    NAMES_LEVEL,
    AlterStream,
    CreateStream,
    ReassignStream,
)
from jetstream_server.metadata.state.operations import check_feature
from jetstream_server.metadata.state.placement import Placement, Placer
from jetstream_server.metadata.state.streams import (
    INTERNAL_MINIMUM_LEVEL,
    RequestedSettings,
    StreamMetadata,
)

CREATOR_LEVEL = 2
"""The feature level from which streams have a creator."""
ATTEMPTS_MAX = 20
"""Attempts before the caller gets the error. Each failure means that the stream changed in between,
probably its ISR or leader. Many failures in a row mean a cluster in trouble."""
_DELETED_MEANWHILE = "the stream was deleted while it was being created"


class Streams:
    """Creates and alters streams. Calls may be concurrent."""

    def __init__(
        self, metadata: RaftMetadataLog, wall_clock: WallClock, *, nodes_configured: int
    ) -> None:
        self._metadata = metadata
        self._wall_clock = wall_clock
        self._placer = Placer(metadata.registry, nodes_configured)

    async def create(
        self,
        name: str,
        subject: str,
        config: dict[str, Any],
        allow_same_name: bool,
        *,
        check_names: Callable[[], int] = lambda: 0,
        creator: str = "",
        streams_max: int = 0,
        made_at: int = 0,
    ) -> tuple[StreamMetadata, bool]:
        """Create a stream. Returns it, and whether it is new.

        config: the settings that the user gave, None for the others. allow_same_name: create it
        even if a stream of that name exists on another subject. check_names: returns `names_at`
        (commands.py), or raises if the caller may not share the names; asked again when somebody
        has taken one meanwhile. creator: the calling principal, whose quota counts; "": none.
        It is recorded only once every node's software supports it. made_at: see
        `RaftMetadataLog.propose`.

        Idempotent. Raises the errors of check_names, StreamExistsError, InvalidRequestError,
        QuotaExceededError, UnavailableError, UnknownOutcomeError.
        """
        if self._metadata.registry.settings.feature_level < CREATOR_LEVEL:
            creator, streams_max = "", 0
        settings = {key: value for key, value in config.items() if value is not None}
        group = settings.pop("group")
        partition, partitions = settings.pop("partition"), settings.pop("partitions")
        placement = Placement(())
        try:
            placement = self._placer.place(settings.get("replicas"), settings.get("observers", 0))
        except UnavailableError:
            if self._metadata.registry.find(name, subject) is None:
                raise
            # The stream exists already: it needs no nodes, and may have been created with fewer.
        command = CreateStream(
            name=name,
            subject=subject,
            group=group,
            config=settings,
            replicas=placement.replicas,
            observers=placement.observers,
            created_at_us=self._wall_clock(),
            allow_same_name=allow_same_name,
            creator=creator,
            streams_max=streams_max,
            partition=partition,
            partitions=partitions,
        )
        try:
            result = await self._with_names(command, check_names, made_at)
        finally:
            self._placer.settle(placement)
        stream = self._metadata.registry.streams.get(result["stream_id"])
        if stream is None:
            raise StreamNotFoundError(_DELETED_MEANWHILE)
        return stream, bool(result["created"])

    def check_room(self, here: int, full_reason: str) -> None:
        """Raise StorageFullError if no node has room for a new stream. here, full_reason: this
        node, and why it has none; "": it has room, though the metadata may not know it yet."""
        nodes = self._metadata.registry.nodes.values()
        full = [
            node.node_id
            for node in nodes
            if (full_reason if node.node_id == here else node.disk_full)
        ]
        if full and all(node.fenced or node.node_id in full for node in nodes):
            raise StorageFullError(
                full_reason
                or f"no stream can be created: the disks of nodes {full} are below "
                "their reserve, and no other node is alive; free some space"
            )

    async def existing(self, name: str, subject: str) -> StreamMetadata:
        """The stream that another node has just created. Raises StreamNotFoundError,
        UnavailableError."""
        await self._metadata.barrier()
        stream = self._metadata.registry.find(name, subject)
        if stream is None:
            raise StreamNotFoundError(_DELETED_MEANWHILE)
        return stream

    async def _with_names(
        self, command: CreateStream, check_names: Callable[[], int], made_at: int
    ) -> dict[str, Any]:
        """Propose it with its `names_at`."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            names_at = check_names()
            if self._metadata.registry.settings.feature_level < NAMES_LEVEL:
                names_at = 0
            try:
                return await self._metadata.propose(
                    replace(command, names_at=names_at), made_at=made_at
                )
            except PreconditionFailedError:
                if not names_at or attempt == ATTEMPTS_MAX:
                    raise
        raise AssertionError("the last attempt raises")

    async def create_internal(self, name: str, config: RequestedSettings) -> None:
        """Create a stream of the server's own, with the usual number of replicas. Idempotent.

        Raises UnavailableError, also while some node's version does not support internal streams.
        """
        placement = self._placer.place()
        try:
            await self._metadata.propose(
                CreateStream(
                    name=name,
                    subject="",
                    config=config,
                    replicas=placement.replicas,
                    created_at_us=self._wall_clock(),
                    internal=True,
                )
            )
        except PreconditionFailedError as error:
            raise UnavailableError(f"{name} cannot be created yet: {error.message}") from error
        finally:
            self._placer.settle(placement)

    async def alter(
        self,
        stream: StreamMetadata,
        config: dict[str, Any],
        stream_epoch: int | None,
        made_at: int = 0,
    ) -> StreamMetadata:
        """Change the settings that are not None in `config`, and return the stream.

        made_at: see `RaftMetadataLog.propose`.
        stream_epoch: change it only if the stream is still at that epoch; None: at any epoch. With
        another number of observers, observers come and go (ReassignStream) before other settings
        change. Idempotent. Raises InvalidRequestError, PreconditionFailedError,
        StreamNotFoundError, UnavailableError, UnknownOutcomeError.
        """
        settings = {key: value for key, value in config.items() if value is not None}
        if settings.pop("group"):
            raise InvalidRequestError("the group of a stream cannot be altered")
        if settings.pop("partition") or settings.pop("partitions"):
            raise InvalidRequestError("which partition a stream is cannot be altered")
        if not settings:
            raise InvalidRequestError("say which settings to alter")
        observers = settings.pop("observers", None)
        if observers is not None:
            stream = await self._at_its_epoch(
                stream, stream_epoch, lambda now: self._with_observers(now, observers), made_at
            )
            made_at = made_at and self._metadata.registry.revision  # After its own change.
            stream_epoch = None if stream_epoch is None else stream.stream_epoch
        if not settings:
            return stream
        if stream.is_internal and settings.keys() == {"min_insync_replicas"}:
            check_feature(
                self._metadata.registry, INTERNAL_MINIMUM_LEVEL, f"altering {stream.full_name}"
            )
        return await self._at_its_epoch(
            stream,
            stream_epoch,
            lambda now: AlterStream(
                stream_id=now.id, stream_epoch=now.stream_epoch, config=settings
            ),
            made_at,
        )

    def _with_observers(self, stream: StreamMetadata, count: int) -> ReassignStream:
        return ReassignStream(
            stream_id=stream.id,
            replicas=stream.target_replicas or stream.replicas,
            observers=self._placer.observers_of(stream, count),
            stream_epoch=stream.stream_epoch,
        )

    async def _at_its_epoch(
        self,
        stream: StreamMetadata,
        stream_epoch: int | None,
        make: Callable[[StreamMetadata], Command],
        made_at: int,
    ) -> StreamMetadata:
        """Propose what `make` returns for the stream as it is, and return the stream afterwards.
        stream_epoch: raise PreconditionFailedError if the stream is at another epoch."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            if stream_epoch is not None:
                stream = replace(stream, stream_epoch=stream_epoch)
            try:
                await self._metadata.propose(make(stream), made_at=made_at)
            except PreconditionFailedError:
                if stream_epoch is not None or attempt == ATTEMPTS_MAX:
                    raise
                stream = self._current(stream)
            else:
                return self._current(stream)
        raise AssertionError("the last attempt raises")

    def _current(self, stream: StreamMetadata) -> StreamMetadata:
        current = self._metadata.registry.streams.get(stream.id)
        if current is None:
            raise StreamNotFoundError(f"stream {stream.full_name} was deleted")
        return current
