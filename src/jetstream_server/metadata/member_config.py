"""What one member of the metadata group needs to know to take part."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.link import LinkTimings
from jetstream_server.metadata.raft_library import RaftTimings


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """voters: host:port of each voter's Raft port as others reach it, this node's included if it
    is one; a node that is none follows and forwards.

    accept_voters: take over a folder that was written under other voters (group_file.py), or whose
    journal may lack something: an operator says that this node is to vote with it.
    cluster_id: what the data folder says; not "" once it has belonged to a cluster, and then there
    was a journal. session: the token of this run, with which it will register.
    has_followers: there may be nodes that are no voters. listen: where this node's own port is
    bound. secret: the cluster's credential.
    compact_after_entries: Raft entries (each a batch of commands) after which a snapshot is taken;
    replaying that many takes about a second.
    """

    directory: str
    node_id: NodeId
    voters: dict[NodeId, str]
    listen: str
    secret: bytes = b""
    accept_voters: bool = False
    has_followers: bool = False
    cluster_id: str = ""
    session: str = ""
    compact_after_entries: int = 20_000
    compact_after_bytes: int = 64 * 1024 * 1024
    raft: RaftTimings = field(default_factory=RaftTimings)
    links: LinkTimings = field(default_factory=LinkTimings)

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole group: it needs no port then."""
        return tuple(self.voters) == (self.node_id,) and not self.has_followers
