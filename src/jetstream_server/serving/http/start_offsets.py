"""Where a reader over HTTP begins: offsets, as the stream's leader knows them."""

from __future__ import annotations

from jetstream_protocol.errors import UnavailableError, from_proto
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender


class StartOffsets:
    """Of all streams."""

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
        query = pb.ListOffsetsRequest.Query
        if timestamp_us is None:
            wanted = query(stream=stream, latest=True)
        else:
            wanted = query(stream=stream, timestamp_us=timestamp_us)
        earliest, there = await self._resolved(
            stream, sender, query(stream=stream, earliest=True), wanted
        )
        first = _offset_of(earliest)
        try:
            found = _offset_of(there)
        except UnavailableError:
            # Its leader does not know yet where it ends. Show what can be read.
            bounds = pb.FetchRequest(stream=stream, offset=first, bytes_max=1)
            answer = await self._gateway.call("Reads", "Fetch", bounds, sender)
            found = answer.high_watermark
        return found if timestamp_us is not None else max(first, found - last)

    async def _resolved(
        self,
        stream: common_pb2.StreamRef,
        sender: Sender,
        *queries: pb.ListOffsetsRequest.Query,
    ) -> list[pb.ListOffsetsResponse.Result]:
        """Ask the leader. Any other node gives errors that name the leader."""
        described = await self._gateway.call(
            "Streams",
            "DescribeStream",
            pb.DescribeStreamRequest(stream=stream, registry_only=True),
            sender,
        )
        leader = described.description.stream.leader
        answer = await self._gateway.call(
            "Reads",
            "ListOffsets",
            pb.ListOffsetsRequest(queries=queries),
            sender,
            node_id=leader if leader >= 0 else None,
        )
        return list(answer.results)


def _offset_of(result: pb.ListOffsetsResponse.Result) -> int:
    """Raises the JetstreamError of the result."""
    if result.HasField("error"):
        raise from_proto(result.error)
    return int(result.offset)
