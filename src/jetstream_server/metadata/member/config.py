"""The configuration of one member of the metadata group."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.link import LinkTimings
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.net.certificates import Certificates


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """voters: of a new group: host:port of each voter's Raft port as other nodes reach it,
    including this node if it votes; other nodes follow and forward. The group's log may have named
    others since.

    accept_voters: accept a folder written under other voters (group_file.py), or one whose journal
    may lack something: an operator lets this node vote with it. cluster_id: from the data folder;
    not "" once the node has belonged to a cluster, and then there must be a journal. session: the
    token with which this run will register. has_followers: there may be nodes that do not vote.
    join: Raft ports of nodes of a running cluster, which a new node asks who votes; `voters` is
    empty then. listen: the address of this node's own port. secret: the cluster's credential.
    certificates: for mutual TLS between the members. compact_after_entries: Raft entries (each a
    batch of commands) after which a snapshot is taken; replaying that many takes about a second.
    """

    directory: str
    node_id: NodeId
    voters: dict[NodeId, str]
    listen: str
    secret: bytes = b""
    accept_voters: bool = False
    has_followers: bool = False
    join: tuple[str, ...] = ()
    cluster_id: str = ""
    session: str = ""
    certificates: Certificates | None = None
    compact_after_entries: int = 20_000
    compact_after_bytes: int = 64 * 1024 * 1024
    raft: RaftTimings = field(default_factory=RaftTimings)
    links: LinkTimings = field(default_factory=LinkTimings)

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole group, as far as the configuration says."""
        return tuple(self.voters) == (self.node_id,) and not self.has_followers and not self.join
