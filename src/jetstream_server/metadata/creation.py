"""Creating a stream: placed by the node that was asked, decided by the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetstream_protocol.errors import StreamNotFoundError, UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.controller import Placer
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.streams import StreamMetadata


class StreamCreation:
    """`await create(…)`, as often and as concurrently as one likes."""

    def __init__(
        self, metadata: MetadataLog, clock_us: Callable[[], int], *, nodes_configured: int
    ) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._placer = Placer(metadata.registry, nodes_configured)

    async def create(
        self, name: str, subject: str, config: dict[str, Any], allow_same_name: bool
    ) -> tuple[StreamMetadata, bool]:
        """The stream, and whether it is new. config: what the user set, None for the rest.
        allow_same_name: also beside a stream of that name on another subject.

        Idempotent. Raises StreamExistsError, InvalidRequestError, UnavailableError,
        UnknownOutcomeError.
        """
        settings = {key: value for key, value in config.items() if value is not None}
        group = settings.pop("group")
        placement: tuple[NodeId, ...] = ()
        try:
            placement = self._placer.place(settings.get("replicas"))
        except UnavailableError:
            if self._metadata.registry.find(name, subject) is None:
                raise
            # It is there: it needs no nodes, and may have been made with fewer.
        try:
            result = await self._metadata.propose(
                {
                    "op": "create_stream",
                    "name": name,
                    "subject": subject,
                    "group": group,
                    "config": settings,
                    "replicas": placement,
                    "created_at_us": self._clock_us(),
                    "allow_same_name": allow_same_name,
                }
            )
        finally:
            self._placer.settle(placement)
        stream = self._metadata.registry.streams.get(result["stream_id"])
        if stream is None:
            raise StreamNotFoundError("the stream was deleted while it was being created")
        return stream, bool(result["created"])
