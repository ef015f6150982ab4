"""The cluster's settings and its controller: immutable values, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from jetstream_protocol.settings import CLUSTER_SETTINGS
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.nodes import FIRST_LEVEL, FeatureLevel

COPY_LIMIT_LEVEL = FeatureLevel(5)
"""From this level on the cluster has a limit on copying."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of the whole cluster. cluster_id: "" until it is first set, then fixed.

    feature_level: the newest level that every node understands; it only grows.
    ack_subjects: patterns of the subjects to which an ack may be published.
    recoveries: a token for each recovery of the metadata group without lost voters.
    Those that users can alter are in CLUSTER_SETTINGS (jetstream_protocol/settings.py).
    """

    cluster_id: str = ""
    feature_level: FeatureLevel = FIRST_LEVEL
    ack_subjects: tuple[str, ...] = ("_INBOX.>",)
    recoveries: tuple[str, ...] = ()
    copy_bytes_per_second: int = 0
    replica_lag_max_us: int = 0

    def to_dict(self) -> dict[str, Any]:
        """**safety** Older software writes the same at its levels, so snapshots are the same."""
        values = asdict(self)
        for setting in CLUSTER_SETTINGS:
            if self.feature_level < setting.level:
                del values[setting.field]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ClusterSettings:
        lists = {name: tuple(values.get(name, ())) for name in ("ack_subjects", "recoveries")}
        return cls(**{**values, **lists})


@dataclass(frozen=True, slots=True)
class ControllerClaim:
    """The controller. epoch: the revision of its claim; commands with an older one are refused."""

    node_id: NodeId
    epoch: int

    def to_dict(self) -> dict[str, int]:
        return cast("dict[str, int]", asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ControllerClaim:
        return cls(**values)
