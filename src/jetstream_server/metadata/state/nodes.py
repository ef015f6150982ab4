"""Nodes as the metadata group knows them: immutable values, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NewType, cast

from jetstream_protocol.types import NodeId

FeatureLevel = NewType("FeatureLevel", int)
"""A set of metadata commands and fields: grows with every new command or field."""

FIRST_LEVEL = FeatureLevel(1)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The advertised addresses of a node's ports, as host:port, by which others reach it."""

    grpc: str
    data: str
    raft: str
    http: str

    def to_dict(self) -> dict[str, str]:
        return cast("dict[str, str]", asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> Addresses:
        return cls(**values)


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """One node. incarnation: the revision at which this run of its process registered.

    session: the random token of that run; registering twice with one token changes nothing.
    fenced: its session has lapsed: it is in no ISR and leads nothing.
    draining: this run is about to stop: it leads nothing, and joins no ISR any more.
    relieved: an operator's mark, which outlives runs: it leads nothing, and follows.
    disk_full: its disk is below its reserve: it takes nothing from publishers, and follows.
    """

    node_id: NodeId
    incarnation: int
    fenced: bool
    draining: bool
    rack: str
    addresses: Addresses
    session: str = ""
    feature_level_max: FeatureLevel = FIRST_LEVEL
    relieved: bool = False
    disk_full: bool = False

    @property
    def yields_leadership(self) -> bool:
        """Whether others have to lead in its place, as long as there are any."""
        return self.draining or self.relieved

    @property
    def has_room(self) -> bool:
        """Whether it is alive and can store more."""
        return not (self.fenced or self.disk_full)

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _NODE_FIELDS}
        values["addresses"] = self.addresses.to_dict()
        if not self.disk_full:
            del values["disk_full"]  # Software from before DISK_LEVEL does not know it.
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NodeMetadata:
        return cls(**{**values, "addresses": Addresses.from_dict(values["addresses"])})


_NODE_FIELDS = tuple(field.name for field in fields(NodeMetadata))
