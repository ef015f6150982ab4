"""`/api/v1/history`: the last hour of nodes, of a stream, or of a cursor's lag, for the console.

Like the rest of the API, each request becomes gRPC calls in the name of the caller (api.py).
"""

from __future__ import annotations

import asyncio
from math import isnan
from typing import Any

from aiohttp import web

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.http.http_requests import ref_of
from jetstream_server.serving.http.server import Route


class HistoryApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        return [Route("/api/v1/history", self._history)]

    async def _history(self, request: web.Request) -> web.Response:
        """Query: stream (name@subject), or cursor (its name); without both, of each node that
        answers."""
        who, asked = sender_of(request), pb.DescribeHistoryRequest()
        if "stream" in request.query:
            asked.stream.CopyFrom(ref_of(request.query["stream"]))
        asked.cursor = request.query.get("cursor", "")
        answers = [await self._call(asked, who)]
        await claim(request)
        if not asked.HasField("stream") and not asked.cursor:
            answers += await self._of_other_nodes(answers[0], who)
        return web.json_response({"histories": [self._fields(each) for each in answers]})

    async def _of_other_nodes(
        self, first: pb.DescribeHistoryResponse, who: Sender
    ) -> list[pb.DescribeHistoryResponse]:
        """Of those that answer. first: the answer of this node."""
        cluster = await self._gateway.call(pb.DescribeClusterRequest(), who)
        others = [
            each.address.node_id
            for each in cluster.nodes
            if not each.fenced and each.address.node_id != first.node_id
        ]
        asking = [self._call(pb.DescribeHistoryRequest(node_id=node), who) for node in others]
        found = await asyncio.gather(*asking, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, JetstreamError):
                raise error
        return [each for each in found if not isinstance(each, BaseException)]

    async def _call(
        self, asked: pb.DescribeHistoryRequest, who: Sender
    ) -> pb.DescribeHistoryResponse:
        answer: pb.DescribeHistoryResponse = await self._gateway.call(asked, who)
        return answer

    def _fields(self, answer: pb.DescribeHistoryResponse) -> dict[str, Any]:
        """Times in milliseconds; a value that is not known is null."""
        return {
            "node": answer.node_id,
            "times": [each // 1000 for each in answer.times_us],
            "series": [
                {
                    "name": each.name,
                    "stream": self._gateway.stream_name(each.stream_id),
                    "values": [None if isnan(value) else value for value in each.values],
                }
                for each in answer.series
            ],
        }
