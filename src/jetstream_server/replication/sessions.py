"""The controller's view of who is alive: heartbeats in, grants and fencing decisions out.

One `Sessions` is one claim of the controller's role: it is made once the node's *own claim* has
applied, and thrown away when another claim applies. Heartbeats live here, in memory; only fencing
and unfencing enter the metadata log, every command under this claim's controller epoch.

**safety** A node that holds a lease is not fenced by anybody. So a grant is given only
* to the incarnation that is registered, while it is not fenced and no fencing of it is under way;
* to a node that has applied everything up to its last fencing, unfencing or registration: one that
  was fenced meanwhile may still take itself for the leader of what it has lost;
* while this controller is sure of its own role: `renew` was called within `authority_us`; and the
  lease begins earlier by as much as that was ago.
A new controller does not know what the ones before it have granted; but none of those leases runs
from later than `earlier_sure_at_us`, when one of them was last sure. So it takes every node for
heard then, and fences nobody before a whole timeout has passed since. Nor before `greeting_us`
after its claim: that is only to give those who are alive the time to say so.

Times are µs of this node's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.streams import NodeMetadata
from jetstream_server.replication.lease import Heartbeat, SessionSettings

NEVER = -(1 << 62)


@dataclass(frozen=True, slots=True)
class FenceNode:
    """The node's session has lapsed. To be proposed under the controller epoch, and again while
    its outcome is unknown."""

    node_id: NodeId
    incarnation: int

    def command(self) -> dict[str, Any]:
        return {
            "op": "fence_node",
            "node_id": self.node_id,
            "node_incarnation": self.incarnation,
        }


@dataclass(frozen=True, slots=True)
class UnfenceNode:
    """The node is heard again."""

    node_id: NodeId
    incarnation: int

    def command(self) -> dict[str, Any]:
        return {
            "op": "unfence_node",
            "node_id": self.node_id,
            "node_incarnation": self.incarnation,
        }


class _Session:
    """One node in one incarnation."""

    __slots__ = ("fence_proposed", "fenced", "heard_at_us", "incarnation", "since_revision")

    def __init__(self, node: NodeMetadata, revision: int, heard_at_us: int) -> None:
        self.incarnation = node.incarnation
        self.fenced = node.fenced
        self.since_revision = revision
        self.heard_at_us = heard_at_us
        self.fence_proposed = False


class Sessions:
    """See the module. `claim_revision` is the controller epoch: the revision of the claim."""

    __slots__ = ("_decided_at_us", "_sessions", "_settings", "_sure_at_us", "claim_revision")

    def __init__(
        self,
        settings: SessionSettings,
        *,
        claim_revision: int,
        nodes: Mapping[NodeId, NodeMetadata],
        now_us: int,
        earlier_sure_at_us: int,
    ) -> None:
        """earlier_sure_at_us: no lease that another claim's sessions have granted, this node's own
        included, runs from later than that."""
        self.claim_revision = claim_revision
        self._settings = settings
        self._sure_at_us = NEVER
        self._decided_at_us = now_us
        not_heard_us = now_us - settings.timeout_us
        heard_us = max(earlier_sure_at_us, not_heard_us + settings.greeting_us)
        self._sessions = {
            node_id: _Session(node, claim_revision, not_heard_us if node.fenced else heard_us)
            for node_id, node in nodes.items()
        }

    def renew(self, sure_at_us: int) -> None:
        """At that time a majority of the metadata group still followed this leader: the time at
        which a message was *sent* that a majority has answered since."""
        self._sure_at_us = max(self._sure_at_us, sure_at_us)

    def update(self, nodes: Mapping[NodeId, NodeMetadata], revision: int, now_us: int) -> None:
        """The metadata of `revision` was applied here."""
        for node_id, node in nodes.items():
            session = self._sessions.get(node_id)
            if session is None or session.incarnation != node.incarnation:
                self._sessions[node_id] = _Session(node, revision, now_us)
            elif session.fenced != node.fenced:
                session.fenced = node.fenced
                session.fence_proposed = False
                session.since_revision = revision
                session.heard_at_us = now_us - self._settings.timeout_us if node.fenced else now_us
        for node_id in [known for known in self._sessions if known not in nodes]:
            del self._sessions[node_id]

    def heard(self, heartbeat: Heartbeat, now_us: int) -> int | None:
        """A heartbeat arrived. Returns from when, by the node's clock, the lease runs that is
        granted; None: none is."""
        session = self._sessions.get(heartbeat.node_id)
        if session is None or heartbeat.incarnation != session.incarnation:
            return None
        if session.fenced or not session.fence_proposed:
            session.heard_at_us = max(session.heard_at_us, now_us)
        age_us = now_us - self._sure_at_us
        if (
            session.fenced
            or session.fence_proposed
            or heartbeat.applied_revision < session.since_revision
            or age_us >= self._settings.authority_us
        ):
            return None
        return max(0, heartbeat.sent_at_us - age_us)

    def decide(self, now_us: int) -> list[FenceNode | UnfenceNode]:
        """What to propose now; several times a second, after every heartbeat that has arrived.

        A fencing is decided again until its metadata arrives: no grant is given in between.
        """
        timeout_us = self._settings.timeout_us
        if now_us - self._decided_at_us > timeout_us // 2:
            self._excuse(now_us)
        self._decided_at_us = now_us
        decisions: list[FenceNode | UnfenceNode] = []
        for node_id, session in self._sessions.items():
            silent_us = now_us - session.heard_at_us
            if not session.fenced and (session.fence_proposed or silent_us > timeout_us):
                session.fence_proposed = True
                decisions.append(FenceNode(node_id, session.incarnation))
            elif session.fenced and 0 <= silent_us < self._settings.heartbeat_us:
                decisions.append(UnfenceNode(node_id, session.incarnation))
        return decisions

    def _excuse(self, now_us: int) -> None:
        """This process did not run for a while: nobody could be heard, so nobody is blamed."""
        for session in self._sessions.values():
            if not session.fenced:
                session.heard_at_us = now_us
