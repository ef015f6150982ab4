"""The state of the metadata group as one node sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from jetstream_protocol.types import NO_NODE, NodeId

Role = Literal["leader", "follower", "candidate"]


class Leadership(NamedTuple):
    leader: NodeId
    role: Role
    term: int
    controller_epoch: int | None


@dataclass(frozen=True, slots=True)
class MetadataStatus:
    """leader: NO_NODE if none is in reach. journal_entries: Raft entries not in the snapshot yet.

    voters: the set in force here. voter_addresses: their Raft ports, as the group has agreed on
    them. are_voters_committed: whether that set is known to be agreed on. problems: peers without a
    link, and why. failure: why this node takes no further part; "" while it does. journal_loss:
    what was cut off or missing in the metadata's journal at the start; "" if nothing was.
    controller_epoch: the epoch while this node is the controller.
    """

    node_id: NodeId
    leader: NodeId
    role: Role
    term: int
    revision: int
    commit_index: int
    applied_index: int
    journal_entries: int
    journal_bytes: int
    voters: tuple[NodeId, ...]
    connected: tuple[NodeId, ...]
    problems: tuple[tuple[NodeId, str], ...] = ()
    failure: str = ""
    controller_epoch: int | None = None
    journal_loss: str = ""
    voter_addresses: tuple[tuple[NodeId, str], ...] = ()
    are_voters_committed: bool = True

    @classmethod
    def absent(cls, node_id: NodeId, voters: tuple[NodeId, ...]) -> MetadataStatus:
        """The status before the start."""
        return cls(node_id, NO_NODE, "follower", 0, 0, 0, 0, 0, 0, voters, ())

    @property
    def leadership(self) -> Leadership:
        return Leadership(self.leader, self.role, self.term, self.controller_epoch)
