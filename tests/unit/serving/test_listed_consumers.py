"""A list of all consumers, for which every node is asked, while a stream moves from one to another:
the first node may answer after it has moved, and the second one before."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from jetstream_protocol.errors import PermissionDeniedError, StreamNotFoundError
from jetstream_protocol.generated import api_pb2
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_server.serving.http import consumers
from jetstream_server.serving.http.consumers import ConsumersApi
from jetstream_server.serving.http.gateway import Gateway
from tests.support.loops import on_loop

STAYS, MOVES, IS_OTHERS, IS_DELETED, IS_NEW = 1, 2, 3, 4, 5
REFUSALS = {
    IS_OTHERS: PermissionDeniedError("describe is not allowed"),
    IS_DELETED: StreamNotFoundError("was it deleted?"),
}


class Nodes(Gateway):
    """Two nodes. told: what each of them tells of all that it leads."""

    def __init__(self, told: dict[int, list[int]]) -> None:
        self.told = told
        self.led = {STAYS: (0, 1), MOVES: (0, 1), IS_OTHERS: (0, 1), IS_DELETED: (0, 1)}

    async def call(
        self, request: Message, *_: object, node_id: int | None = None, **__: Any
    ) -> Any:
        if isinstance(request, api_pb2.DescribeClusterRequest):
            answer = api_pb2.DescribeClusterResponse()
            for node in self.told:
                answer.nodes.add().address.node_id = node
            return answer
        assert isinstance(request, pb.ListConsumersRequest)
        assert node_id is not None
        if not request.HasField("stream"):
            return listed(*self.told[node_id])
        stream_id = request.stream.id
        assert self.led[stream_id][0] == node_id
        if stream_id in REFUSALS:
            raise REFUSALS[stream_id]
        return listed(stream_id)

    def leaderships(self) -> dict[int, tuple[int, int]]:
        return dict(self.led)

    async def caught_up(self) -> None:
        """From now on this node knows what the others knew."""
        self.led |= {MOVES: (1, 2), IS_OTHERS: (1, 2), IS_DELETED: (1, 2), IS_NEW: (0, 1)}


def listed(*stream_ids: int) -> pb.ListConsumersResponse:
    return pb.ListConsumersResponse(
        consumers=[pb.ConsumerDescription(stream_id=each, name="c") for each in stream_ids]
    )


@pytest.mark.parametrize(
    "told", [{0: [STAYS], 1: []}, {0: [STAYS, MOVES], 1: [MOVES]}], ids=["neither", "both"]
)
@on_loop
async def test_its_consumers_are_listed_once(
    told: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(_: object) -> None: ...

    monkeypatch.setattr(consumers, "sender_of", lambda request: request)
    monkeypatch.setattr(consumers, "claim", claim)
    request: Any = None
    found = await ConsumersApi(Nodes(told))._listed(request)
    assert sorted(each.stream_id for each in found) == [STAYS, MOVES, IS_NEW]
