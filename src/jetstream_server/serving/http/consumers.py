"""`/api/v1/consumers`, for the console; and `/jsz`, which scalers of NATS JetStream read: the
consumers of all streams, or of one account.

Every node answers for all: each of them is asked for the consumers that it serves, in the name of
the caller. So a scaler that asks one node finds what it looks for. It is told of a cluster of one,
and looks for no other leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

from jetstream_protocol.errors import PermissionDeniedError, StreamNotFoundError
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.api import to_dict
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.http.server import Route

ACCOUNT = "$G"
ROWS_PER_TURN = 50
"""Some milliseconds of the event loop. Each node may serve 10,000 consumers."""


class ConsumersApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        return [Route("/api/v1/consumers", self._consumers), Route("/jsz", self._jsz)]

    async def _consumers(self, request: web.Request) -> web.Response:
        """List consumers. Query: stream (name@subject); without it all."""
        wanted = request.query.get("stream", "")
        rows = []
        for count, each in enumerate(await self._listed(request), 1):
            if wanted in ("", each.stream):
                rows.append(to_dict(each))
            if count % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        return web.json_response({"consumers": rows})

    async def _jsz(self, request: web.Request) -> web.Response:
        """What scalers read of a NATS server. Query: acc (the account that they will look for)."""
        by_stream: dict[str, list[pb.ConsumerDescription]] = {}
        for each in await self._listed(request):
            if each.pending < 0:
                continue  # Nobody knows: a scaler that is told nothing keeps its readers.
            by_stream.setdefault(each.stream, []).append(each)
        account = request.query.get("acc") or ACCOUNT
        return web.json_response(
            {
                "streams": len(by_stream),
                "consumers": sum(map(len, by_stream.values())),
                "meta_cluster": {"name": "jetstream", "cluster_size": 1},
                "account_details": [
                    {
                        "name": account,
                        "stream_detail": [_stream(*each) for each in by_stream.items()],
                    }
                ],
            }
        )

    async def _listed(self, request: web.Request) -> list[pb.ConsumerDescription]:
        """From all nodes. Raises the error of one that does not answer: a scaler keeps what it
        knows then, and would take less for the truth."""
        who = sender_of(request)
        before = self._gateway.leaderships()
        answer = await self._gateway.call(api_pb2.DescribeClusterRequest(), who)
        await claim(request)
        alive = [each.address.node_id for each in answer.nodes if not each.fenced]
        pages = await asyncio.gather(*(self._listed_by(node, who) for node in alive))
        # Neither leader may have told of a stream that has moved meanwhile, or both.
        await self._gateway.caught_up()
        after = self._gateway.leaderships()
        moved = {each for each, led in after.items() if led != before.get(each)}
        found = [each for page in pages for each in page if each.stream_id not in moved]
        for stream_id in moved:
            with contextlib.suppress(StreamNotFoundError, PermissionDeniedError):
                ref = common_pb2.StreamRef(id=stream_id)
                found += await self._listed_by(after[stream_id][0], who, ref)
        return found

    async def _listed_by(
        self, node_id: int, who: Sender, stream: common_pb2.StreamRef | None = None
    ) -> list[pb.ConsumerDescription]:
        """Of all streams that the node leads, or of one."""
        found: list[pb.ConsumerDescription] = []
        after = ""
        while True:
            answer: pb.ListConsumersResponse = await self._gateway.call(
                pb.ListConsumersRequest(stream=stream, after=after),
                who,
                node_id=node_id,
            )
            found += answer.consumers
            after = answer.next
            if not after:
                return found


def _stream(full_name: str, consumers: list[pb.ConsumerDescription]) -> dict[str, Any]:
    name, _, subject = full_name.partition("@")
    last = max(each.position + each.pending for each in consumers)
    return {
        "name": name,
        "config": {"name": name, "subjects": [subject]},
        "state": {"last_seq": last},
        "consumer_detail": [_consumer(name, each) for each in consumers],
    }


def _consumer(stream: str, consumer: pb.ConsumerDescription) -> dict[str, Any]:
    return {
        "stream_name": stream,
        "name": consumer.name,
        "config": {
            "name": consumer.name,
            "durable_name": consumer.name if consumer.is_durable else "",
            "ack_policy": consumer.ack_policy,
        },
        "delivered": {"stream_seq": consumer.position},
        "ack_floor": {"stream_seq": consumer.ack_floor},
        "num_pending": consumer.pending,
        "num_ack_pending": consumer.ack_pending,
        "num_redelivered": consumer.redelivered,
        "num_waiting": consumer.waiting,
    }
