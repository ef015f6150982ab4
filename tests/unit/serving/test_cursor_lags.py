"""Lags of cursors in streams that this node leads. A real log; the cursors are given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.cursors.records import cursor_key
from jetstream_server.cursors.store import CursorStore
from jetstream_server.serving.grpc.cursor_lags import CursorLags
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.lag import Lag
from tests.support.loops import on_loop
from tests.support.node import Node
from tests.unit.replication.cores import request


class Store:
    """Cursors that were committed."""

    def __init__(self, *cursors: pb.Cursor) -> None:
        self._cursors = {
            cursor_key(each.name, f"{each.stream_name}@{each.stream_subject}"): SimpleNamespace(
                value=each.SerializeToString()
            )
            for each in cursors
        }

    def committed_now(self) -> dict[bytes, SimpleNamespace]:
        return self._cursors


@on_loop
async def test_a_lag_is_unknown_until_the_leader_knows_what_was_committed(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", nodes=2)
    node.start()
    replica = node.create(replicas=(0, 1))
    node.append(replica, b"1", b"2", b"3")
    node.replicas.close()
    node.start()
    replica = node.replica(replica.stream)
    stream = node.cluster.now(replica.stream)
    assert (replica.high_watermark, replica.log.log_end_offset) == (0, 3)
    cursor = pb.Cursor(
        name="billing", stream_id=stream.id, stream_name=stream.name,
        stream_subject=stream.subject, offset=1,
    )  # fmt: skip
    lags = CursorLags(
        cast(CursorStore, Store(cursor)),
        node.cluster.registry,
        node.replicas,
        cast(Peers, None),
        0,
        node.clocks.wall,
        None,
    )

    async def lag() -> Lag | None:
        (found,), left_out = await lags.find(lambda name, full_name: True)
        assert (found.cursor, left_out) == ("billing", 0)
        return found.lag

    assert await lag() is None
    replica.log.flush()  # It notes its epoch on disk first.
    replica.moved()
    assert await lag() is None
    follower = request(
        1, 3, last_epoch=stream.leader_epoch, leader_epoch=stream.leader_epoch,
        stream_id=stream.id, flushed_offset=3,
        incarnation=node.cluster.registry.nodes[NodeId(1)].incarnation,
        stream_epoch=stream.stream_epoch,
    )  # fmt: skip
    replica.fetch(follower, MonotonicUs(0))
    found = await lag()
    assert found is not None
    assert (found.high_watermark, found.records) == (3, 2)
    node.replicas.close()


@on_loop
async def test_the_lag_in_a_log_that_is_lost_is_unknown_and_not_0(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"1", b"2", b"3")
    node.replicas.close()
    [segment] = (tmp_path / "streams").rglob("*.log")
    segment.unlink()
    node.start()
    stream = node.replica(replica.stream).stream
    cursor = pb.Cursor(
        name="billing", stream_id=stream.id, stream_name=stream.name,
        stream_subject=stream.subject, offset=1,
    )  # fmt: skip
    lags = CursorLags(
        cast(CursorStore, Store(cursor)),
        node.cluster.registry,
        node.replicas,
        cast(Peers, None),
        0,
        node.clocks.wall,
        None,
    )
    (found,), _ = await lags.find(lambda name, full_name: True)
    assert found.lag is None
