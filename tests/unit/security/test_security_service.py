"""Tokens made by the service: which hash they get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import WallUs
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state import commands
from jetstream_server.security import token_text
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.security_service import SecurityService
from tests.support.access import open_to_all
from tests.support.local_metadata import LocalMetadata
from tests.support.loops import on_loop
from tests.unit.metadata.cluster import Cluster


@on_loop
@pytest.mark.parametrize("level", [5, 6])
async def test_a_quick_hash_is_stored_once_every_node_knows_it(level: int) -> None:
    cluster = Cluster()
    cluster.register(0, feature_level_max=6)
    cluster.do(commands.SetCluster(feature_level=commands.FeatureLevel(level)))
    metadata = LocalMetadata(cluster)
    service = SecurityService(cast(RaftMetadataLog, metadata), open_to_all(), lambda: WallUs(1))
    call = cast(Call, SimpleNamespace(made_at=0))
    made = await service.CreateToken(pb.CreateTokenRequest(principal="user:x"), call)
    [proposed] = metadata.proposed
    assert isinstance(proposed, commands.CreateToken)
    assert token_text.is_quick(proposed.hash) == (level >= 6)
    assert token_text.verify(made.text, proposed.hash)
