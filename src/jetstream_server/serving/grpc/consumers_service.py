"""The `Consumers` service: between nodes. Requests to the leader of a stream, and states to the
leader of `__cursors`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.generated import consumers_pb2_grpc
from jetstream_protocol.types import StreamId
from jetstream_server.serving.grpc.consumer_states import ConsumerStates
from jetstream_server.serving.grpc.grpc_loop import Call

AnswerFor = Callable[[StreamId, str, str, bytes], Awaitable[bytes]]
"""(stream, verb, rest, body): the answer of this node, which leads the stream."""


class ConsumersService(consumers_pb2_grpc.ConsumersServicer):
    def __init__(self, answer_for: AnswerFor | None, states: ConsumerStates) -> None:
        """answer_for: None: this node does not serve the JetStream API."""
        self._answer_for = answer_for
        self._states = states

    async def AskConsumers(
        self, request: pb.AskConsumersRequest, call: Call
    ) -> pb.AskConsumersResponse:
        if self._answer_for is None:
            raise PreconditionFailedError(
                "the node that leads this stream has no nats.api_domain, and serves no consumers"
            )
        stream_id = StreamId(request.stream.id)
        answer = await self._answer_for(stream_id, request.verb, request.rest, request.body)
        return pb.AskConsumersResponse(answer=answer)

    async def LoadConsumers(
        self, request: pb.LoadConsumersRequest, call: Call
    ) -> pb.LoadConsumersResponse:
        return await self._states.load_here(request)

    async def StoreConsumers(
        self, request: pb.StoreConsumersRequest, call: Call
    ) -> pb.StoreConsumersResponse:
        return await self._states.store_here(request)
