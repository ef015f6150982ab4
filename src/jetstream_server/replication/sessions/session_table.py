"""The controller's table of sessions: takes heartbeats, decides on grants and fencing.

One `Sessions` is one claim of the controller's role: it is created once the node's *own claim* was
applied, and dropped when another claim is applied. Heartbeats are kept in memory; only fencing and
unfencing enter the metadata log, under this claim's controller epoch.

**safety** No controller fences a node that holds a lease. So a grant is given only
* to the registered incarnation, while it is not fenced and no fencing of it is pending;
* to a node that has applied everything up to its last fencing, unfencing or registration: otherwise
  it may still assume that it leads streams that it has lost;
* while this controller is sure of its own role: `renew` was called within `authority_us`; the lease
  begins earlier by the time since that call. A new controller does not know the grants of earlier
  ones, but none of those leases runs from later than `earlier_sure_at_us`. So it counts every node
  as heard at that time, and fences no node before a whole timeout has passed since, nor before
  `greeting_us` after its claim, which gives live nodes the time to send a heartbeat.

Times are those of this node's boot clock; those in a heartbeat are the sender's.
"""

from __future__ import annotations

from collections.abc import Mapping

from jetstream_protocol.types import BootUs, NodeId
from jetstream_server.metadata.state.commands import FenceNode, UnfenceNode
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.replication.sessions.lease import Heartbeat, SessionSettings

NEVER = BootUs(-(1 << 62))


class _Session:
    """One node in one incarnation."""

    __slots__ = ("fence_proposed", "fenced", "heard_at_us", "incarnation", "since_revision")

    def __init__(self, node: NodeMetadata, revision: int, heard_at_us: BootUs) -> None:
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
        now_us: BootUs,
        earlier_sure_at_us: BootUs,
    ) -> None:
        """earlier_sure_at_us: no lease granted under another claim, even one of this node, runs
        from later than that."""
        self.claim_revision = claim_revision
        self._settings = settings
        self._sure_at_us = NEVER
        self._decided_at_us = now_us
        not_heard_us = BootUs(now_us - settings.timeout_us)
        heard_us = max(earlier_sure_at_us, BootUs(not_heard_us + settings.greeting_us))
        self._sessions = {
            node_id: _Session(node, claim_revision, not_heard_us if node.fenced else heard_us)
            for node_id, node in nodes.items()
        }

    def renew(self, sure_at_us: BootUs) -> None:
        """Note that a majority of the metadata group still followed this leader at that time: when
        a message was *sent* that a majority has answered since."""
        self._sure_at_us = max(self._sure_at_us, sure_at_us)

    def update(self, nodes: Mapping[NodeId, NodeMetadata], revision: int, now_us: BootUs) -> None:
        """Note that the metadata of `revision` was applied here."""
        for node_id, node in nodes.items():
            session = self._sessions.get(node_id)
            if session is None or session.incarnation != node.incarnation:
                self._sessions[node_id] = _Session(node, revision, now_us)
            elif session.fenced != node.fenced:
                session.fenced = node.fenced
                session.fence_proposed = False
                session.since_revision = revision
                silent_us = self._settings.timeout_us if node.fenced else 0
                session.heard_at_us = BootUs(now_us - silent_us)
        for node_id in [known for known in self._sessions if known not in nodes]:
            del self._sessions[node_id]

    def heard(self, heartbeat: Heartbeat, now_us: BootUs) -> BootUs | None:
        """Take a heartbeat. Returns the start of the granted lease by the node's clock, or None."""
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
        return BootUs(max(0, heartbeat.sent_at_us - age_us))

    def decide(self, now_us: BootUs) -> list[FenceNode | UnfenceNode]:
        """The commands to propose under the controller epoch: FenceNode for a session that has
        lapsed, UnfenceNode for a node that is heard again. Called several times a second, after
        every heartbeat that has arrived.

        A fencing is returned again until its metadata arrives. No lease is granted in between.
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
                decisions.append(FenceNode(node_id=node_id, node_incarnation=session.incarnation))
            elif session.fenced and 0 <= silent_us < self._settings.heartbeat_us:
                decisions.append(UnfenceNode(node_id=node_id, node_incarnation=session.incarnation))
        return decisions

    def _excuse(self, now_us: BootUs) -> None:
        """Extend every node's time: this process did not run for a while and could hear no node."""
        for session in self._sessions.values():
            if not session.fenced:
                session.heard_at_us = now_us
