"""The streams that clients see: their names, and what is reported of them.

A name is one token for NATS: the dots of ours are written as %2E. Of streams that share a name,
none is shown: clients could not say which one they mean.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from typing import Any, Final

from jetstream_protocol.errors import JetstreamError, PermissionDeniedError
from jetstream_protocol.subjects import covers, is_pattern, overlaps
from jetstream_server.clocks import WallClock
from jetstream_server.jetstream_api.answers import StreamState, stream_info
from jetstream_server.jetstream_api.errors import (
    ApiError,
    bad_request_error,
    stream_not_found_error,
)
from jetstream_server.jetstream_api.requests import api_name, number, own_name, pattern
from jetstream_server.jetstream_api.stream_reads import StreamReads
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.stream_access import StreamAccess

NAMES_MAX: Final = 1024
INFOS_MAX: Final = 256
"""Streams or consumers in one answer, as from a nats-server. There are more pages."""
SUBJECTS_MAX: Final = 100_000
_DESCRIBED_AT_ONCE: Final = 16


class Catalogue:
    """identity: the principal of the account. cluster: for people."""

    def __init__(
        self,
        registry: Registry,
        access: StreamAccess,
        reads: StreamReads,
        identity: Identity,
        *,
        domain: str,
        cluster: str,
        wall_clock: WallClock,
    ) -> None:
        self._registry = registry
        self._access = access
        self._reads = reads
        self._identity = identity
        self._domain = domain
        self._cluster = cluster
        self._wall_clock = wall_clock
        self._listing = asyncio.Lock()
        self._describing = asyncio.Semaphore(_DESCRIBED_AT_ONCE)
        self._seen: list[StreamMetadata] = []
        self._seen_at = (-1, -1)

    def visible(self) -> list[StreamMetadata]:
        """The streams that the principal may know of, sorted by their names in the API."""
        now = self._registry.revision, self._access.control.generation
        if now != self._seen_at:
            known = [
                stream
                for stream in self._registry.streams.values()
                if not stream.is_internal and self._access.knows(self._identity, stream)
            ]
            names = Counter(api_name(stream.name) for stream in known)
            unique = [stream for stream in known if names[api_name(stream.name)] == 1]
            self._seen = sorted(unique, key=lambda stream: api_name(stream.name))
            self._seen_at = now
        return self._seen

    def stream(self, name: str, operation: Operation = Operation.DESCRIBE) -> StreamMetadata:
        """The stream that a client names. Raises ApiError; PermissionDeniedError for one that the
        principal may know of."""
        named = [
            stream
            for stream in self._registry.streams_named(own_name(name))
            if not stream.is_internal and self._access.knows(self._identity, stream)
        ]
        if not named:
            raise stream_not_found_error()
        if len(named) > 1:
            subjects = ", ".join(stream.subject for stream in named)
            raise bad_request_error(f"several streams have the name {name}, on {subjects}")
        self._access.control.check(self._identity, operation, named[0])
        return named[0]

    def note_changed(self, verb: str, stream: StreamMetadata, name: str) -> None:
        """Note in the audit log that a client has changed a durable consumer."""
        resource = f"{name} in {stream.full_name}"
        self._access.control.audit.done(self._identity, verb, resource)

    def note_denied(self, stream: StreamMetadata, name: str) -> None:
        """Note in the audit log that clients may not use a durable consumer."""
        with suppress(PermissionDeniedError):
            self.check_commit(stream, name)

    def check_commit(self, stream: StreamMetadata, name: str) -> None:
        """Raise PermissionDeniedError unless the principal may commit positions of that name."""
        self._access.check_commit(self._identity, stream, name)

    def names(self, body: dict[str, Any], bytes_max: int) -> dict[str, Any]:
        """A page of STREAM.NAMES, of at most that length. Raises ApiError."""
        found, offset = self._matching(body)
        page = [api_name(stream.name) for stream in found[offset : offset + NAMES_MAX]]
        kept = fitting(page, bytes_max)
        limit = NAMES_MAX if len(kept) == len(page) else len(kept)
        return {"total": len(found), "offset": offset, "limit": limit, "streams": kept or None}

    async def infos(self, body: dict[str, Any], bytes_max: int) -> dict[str, Any]:
        """A page of STREAM.LIST. A stream whose leader does not answer is among `missing`."""
        found, offset = self._matching(body)
        page = found[offset : offset + INFOS_MAX]
        async with self._listing:
            states = await asyncio.gather(*map(self._state_or_none, page))
        infos, missing = [], []
        for stream, state in zip(page, states, strict=True):
            if state is None:
                missing.append(api_name(stream.name))
            else:
                infos.append(self._info(stream, state))
        kept = fitting(infos, bytes_max - len(json.dumps(missing)))
        limit = INFOS_MAX if len(kept) == len(infos) else len(kept)
        answer = {"total": len(found), "offset": offset, "limit": limit, "streams": kept}
        return answer | ({"missing": missing} if missing else {})

    async def describe(self, name: str) -> dict[str, Any]:
        """What is told of a stream that was created or altered. Raises ApiError, JetstreamError."""
        stream = self.stream(name)
        return self._info(stream, await self._reads.state(stream))

    async def info(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """STREAM.INFO. With subjects it may be long: see `with_fewer_subjects`. Raises ApiError,
        JetstreamError."""
        subjects = pattern(body, "subjects_filter")
        # The subjects of records are told to who may read them.
        stream = self.stream(name, Operation.READ if subjects else Operation.DESCRIBE)
        if body.get("deleted_details"):
            raise ApiError(500, 10052, "deleted messages are not listed: ask without "
                           "deleted_details")  # fmt: skip
        is_counted = stream.config.keeps_last_of_subjects
        if subjects and is_pattern(stream.subject) and not is_counted:
            raise ApiError(500, 10052, "subjects are not counted on this stream, but only where "
                           "one record of each is kept (compact, key: subject); ask without "
                           "subjects_filter")  # fmt: skip
        state = await self._reads.state(stream)
        found: dict[str, Any] = {"total": 0, "offset": 0, "limit": 0}
        info = self._info(stream, state)
        if subjects:
            offset, total = number(body, "offset"), 1
            counted = {stream.subject: state.messages(stream)}
            if not covers(subjects, stream.subject) or is_counted:
                counted, total = {}, 0
            if is_counted:
                page, total = await self._reads.subjects(stream, subjects, offset, SUBJECTS_MAX)
                counted = dict.fromkeys(page, 1)
            if counted or offset:
                found |= {"total": total, "offset": offset, "limit": SUBJECTS_MAX}
            if counted:
                info["state"] |= {"subjects": counted}
            if not is_counted:
                info["state"] |= {"num_subjects": min(1, state.messages(stream))}
        return found | info

    def _matching(self, body: dict[str, Any]) -> tuple[list[StreamMetadata], int]:
        offset, subject = number(body, "offset"), pattern(body, "subject")
        streams = self.visible()
        if subject:
            streams = [stream for stream in streams if overlaps(subject, stream.subject)]
        return streams, min(offset, len(streams))

    async def _state_or_none(self, stream: StreamMetadata) -> StreamState | None:
        async with self._describing:
            try:
                return await self._reads.state(stream)
            except JetstreamError:
                return None

    def _info(self, stream: StreamMetadata, state: StreamState) -> dict[str, Any]:
        return stream_info(
            stream,
            state,
            domain=self._domain,
            cluster=self._cluster,
            fenced=[each.node_id for each in self._registry.nodes.values() if each.fenced],
            now_us=self._wall_clock(),
        )


def with_fewer_subjects(info: dict[str, Any], bytes_max: int) -> dict[str, Any]:
    """A STREAM.INFO of at most that length: with a page of fewer subjects, if it is too long."""
    subjects: dict[str, int] = info.get("state", {}).get("subjects", {})
    if not subjects:
        return info
    room = bytes_max - len(json.dumps({**info, "state": {**info["state"], "subjects": {}}}))
    kept = fitting(list(subjects.items()), room)
    if len(kept) == len(subjects):
        return info
    return {**info, "limit": len(kept), "state": {**info["state"], "subjects": dict(kept)}}


def fitting(page: list[Any], bytes_max: int) -> list[Any]:
    """As many of the first items as fit. Clients ask for the rest."""
    while len(page) > 1 and len(json.dumps(page, separators=(",", ":"))) > bytes_max:
        page = page[: len(page) // 2]
    return page
