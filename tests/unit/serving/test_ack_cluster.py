"""When clients may rely on it that every ack names the cluster."""

from __future__ import annotations

from jetstream_protocol.ack_cluster import mark_of
from jetstream_server.metadata.state.cluster import ClusterSettings
from jetstream_server.metadata.state.commands import ACK_CLUSTER_LEVEL, FEATURE_LEVEL_MAX
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.serving.grpc.streams_service import ack_cluster


def test_it_is_told_only_once_all_nodes_name_it() -> None:
    before = FeatureLevel(ACK_CLUSTER_LEVEL - 1)
    assert ack_cluster(ClusterSettings(cluster_id="id", feature_level=before)) == ""
    after = ClusterSettings(cluster_id="id", feature_level=FEATURE_LEVEL_MAX)
    assert ack_cluster(after) == mark_of("id")
