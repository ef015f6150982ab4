"""An operator's transfer of a leadership."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.serving.grpc.cluster_service import ClusterService
from jetstream_server.serving.grpc.grpc_loop import Call
from tests.support.loops import on_loop
from tests.unit.metadata.cluster import Cluster


@on_loop
async def test_a_leader_hands_over_to_a_node_of_whose_return_is_not_heard_yet() -> None:
    """Otherwise it is deposed, and its publishers do not know what was stored."""
    cluster = Cluster(3)
    stream = cluster.create("orders", "orders", (0, 1))
    cluster.change_isr(stream, (0,))
    calls: list[tuple[str, int]] = []

    async def barrier() -> None:
        cluster.change_isr(stream, (0, 1))

    async def propose(command: Any) -> None:
        calls.append((command.op, command.leader))

    async def transfer(_: object, target: int, **__: object) -> None:
        calls.append(("hand_over", target))

    given: dict[str, Any] = {
        "metadata": SimpleNamespace(registry=cluster.registry, barrier=barrier, propose=propose),
        "transfers": SimpleNamespace(transfer=transfer),
        "node_id": 2,
        "version": "",
    }
    unused = (
        "nats_urls", "replicas", "hand_overs", "elections", "peers", "not_ready", "debug_node",
        "node_use", "may_see_use", "streams", "voters", "histories",
    )  # fmt: skip
    service = ClusterService(**given, **dict.fromkeys(unused, cast(Any, None)))
    context = SimpleNamespace(
        peer=lambda: "ipv4:10.0.0.1:5",
        auth_context=dict,
        invocation_metadata=tuple,
        time_remaining=lambda: None,
    )
    ref = common_pb2.StreamRef(name="orders")
    request = pb.TransferLeaderRequest(stream=ref, node_id=1)
    await service.TransferLeader(request, Call(cast(Any, context)))
    assert calls == [("hand_over", 1)]
