"""Where a reader over HTTP begins: places as people write them, and their offsets as the stream's
leader knows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from jetstream_protocol.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnavailableError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.times import seconds_in, to_timestamp_us
from jetstream_protocol.types import WallUs
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender

PLACES = (
    "earliest, latest, an offset, -10 (the last ten), 1h (ago) or a time like 2026-01-31T12:00:00Z"
)
ALL = 10**18
"""More records than any stream has."""
_AGO_SECONDS_MAX = 1e12
"""More would be beyond any timestamp."""
_NUMBER = re.compile(r"(-?)(\d{1,18})", re.ASCII)
_Query = pb.ListOffsetsRequest.Query


@dataclass(frozen=True, slots=True)
class Place:
    """An offset; or the first record of a time or later; or, without both, the `last` records."""

    offset: int | None = None
    timestamp_us: int | None = None
    last: int = 0

    @classmethod
    def of(cls, name: str, text: str, now_us: WallUs) -> Place:
        """Parse the parameter of that name. now_us: to count back from. Raises
        InvalidRequestError."""
        if text == "earliest":
            return cls(last=ALL)
        if text == "latest":
            return cls()
        number = _NUMBER.fullmatch(text)
        if number:
            found = int(number[2])
            return cls(last=found) if number[1] else cls(offset=found)
        seconds = seconds_in(text)
        if seconds is not None and seconds < _AGO_SECONDS_MAX:
            return cls(timestamp_us=now_us - round(seconds * 1_000_000))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidRequestError(f"invalid {name}={text[:50]!r}: say {PLACES}") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return cls(timestamp_us=to_timestamp_us(moment))


class StartOffsets:
    """The start offsets of all streams."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def offset(
        self,
        stream: common_pb2.StreamRef,
        sender: Sender,
        timestamp_us: int | None,
        last: int,
    ) -> int:
        """The offset of the first record of that time or later; without a time, of the `last`
        records. Raises the JetstreamErrors of a fetch."""
        earliest, there = await self._resolved(
            stream, sender, _Query(earliest=True), _latest_or(timestamp_us)
        )
        first = _offset_of(earliest)
        try:
            found = _offset_of(there)
        except UnavailableError:
            # Its leader does not know yet where it ends. Show what can be read.
            bounds = pb.FetchRequest(stream=stream, offset=first, bytes_max=1)
            answer = await self._gateway.call(bounds, sender)
            found = answer.high_watermark
        return found if timestamp_us is not None else max(first, found - last)

    async def held(self, stream: common_pb2.StreamRef, sender: Sender, place: Place) -> int:
        """The offset of a place that the stream holds, for a cursor. Raises OffsetOutOfRangeError,
        UnavailableError as long as the leader does not know where the stream ends, and the
        JetstreamErrors of ListOffsets."""
        earliest, there = await self._resolved(
            stream, sender, _Query(earliest=True), _latest_or(place.timestamp_us)
        )
        first, found = _offset_of(earliest), _offset_of(there)
        if place.timestamp_us is not None:
            return found
        if place.offset is None:
            return max(first, found - place.last)
        if not first <= place.offset <= found:
            raise OffsetOutOfRangeError(
                f"the stream holds the offsets {first} to {found}, and not {place.offset}",
                first,
                found,
            )
        return place.offset

    async def _resolved(
        self, stream: common_pb2.StreamRef, sender: Sender, *queries: pb.ListOffsetsRequest.Query
    ) -> list[pb.ListOffsetsResponse.Result]:
        """Ask the leader. Any other node gives errors that name the leader."""
        described = await self._gateway.call(
            pb.DescribeStreamRequest(stream=stream, registry_only=True),
            sender,
        )
        leader = described.description.stream.leader
        for query in queries:
            query.stream.CopyFrom(stream)
        answer = await self._gateway.call(
            pb.ListOffsetsRequest(queries=queries),
            sender,
            node_id=leader if leader >= 0 else None,
        )
        return list(answer.results)


def _latest_or(timestamp_us: int | None) -> pb.ListOffsetsRequest.Query:
    return _Query(latest=True) if timestamp_us is None else _Query(timestamp_us=timestamp_us)


def _offset_of(result: pb.ListOffsetsResponse.Result) -> int:
    """Raises the JetstreamError of the result."""
    if result.HasField("error"):
        raise from_proto(result.error)
    return int(result.offset)
