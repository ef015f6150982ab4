"""The controller's half of the sessions: takes heartbeats, grants leases, fences and unfences
nodes.

Runs on the Raft thread of every member, so that a blocked server loop delays no failover. It acts
only while its node leads the metadata group. session_table.py decides, quorum.py says whether this
node may still grant leases. This module only decides when to call them.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from jetstream_protocol.types import BootUs, NodeId, StreamId
from jetstream_server.metadata.member.extension import ExtensionContext
from jetstream_server.metadata.state.commands import FenceNode, UnfenceNode
from jetstream_server.replication.sessions.lease import Heartbeat, SessionSettings
from jetstream_server.replication.sessions.quorum import LeaderSupport, Quorum
from jetstream_server.replication.sessions.session_messages import (
    Echo,
    LogEnd,
    Ping,
    Reports,
    encode,
)
from jetstream_server.replication.sessions.session_table import Sessions

PINGS_PER_AUTHORITY = 4
"""Pings sent while one echo still counts: two in a row may be late."""
DECISIONS_PER_HEARTBEAT = 6
"""How often silent nodes are looked for: every 50 ms by default."""

logger = structlog.get_logger("jetstream.replication")


class ControllerSessions:
    """See the module.

    log_ends: the reports of nodes about their replicas of leaderless streams. Replaced, never
    changed, so that other threads may read it.
    """

    def __init__(self, settings: SessionSettings, backing: LeaderSupport) -> None:
        self.log_ends: Mapping[NodeId, Mapping[StreamId, LogEnd]] = {}
        self._settings = settings
        self._backing = backing
        self._quorum: Quorum | None = None
        self._sessions: Sessions | None = None
        # Until when an earlier leader was sure, for the term in which this node was elected.
        self._elected_in = -1
        self._earlier_sure_at_us: BootUs | None = None
        self._granted_until_us = BootUs(-1)
        self._epoch: int | None = None
        self._revision = 0
        self._pinged_at_us = BootUs(0)
        self._decided_at_us = BootUs(0)
        self._last_decisions: dict[NodeId, FenceNode | UnfenceNode] = {}

    def turn(self, context: ExtensionContext, now_us: BootUs) -> None:
        if context.leader != context.node_id:
            self._quorum = None
            self._follow_role(context, now_us)
            return
        self._backing.back(context.term, now_us)
        self._ping(context, now_us)
        self._follow_role(context, now_us)
        sessions = self._sessions
        if sessions is None:
            return
        if self._revision != context.registry.revision:
            self._revision = context.registry.revision
            sessions.update(context.registry.nodes, self._revision, now_us)
        if now_us - self._decided_at_us >= self._settings.heartbeat_us // DECISIONS_PER_HEARTBEAT:
            self._decided_at_us = now_us
            self._decide(context, sessions, now_us)

    def heard(
        self, context: ExtensionContext, heartbeat: Heartbeat, now_us: BootUs
    ) -> BootUs | None:
        """Take a heartbeat. Returns the start of the granted lease, or None (session_table.py)."""
        sessions, quorum = self._sessions, self._quorum
        # The role may have been lost between two turns.
        if sessions is None or quorum is None or context.controller_epoch != self._epoch:
            return None
        sessions.renew(quorum.sure_at_us(now_us))
        return sessions.heard(heartbeat, now_us)

    def is_certain(self, context: ExtensionContext) -> bool:
        """Whether a majority of the voters in force has confirmed this leader, and the one that
        elected it have reported of earlier leaders."""
        quorum = self._quorum
        return (
            quorum is not None
            and self._sessions is not None
            and (quorum.term, quorum.voters) == (context.term, context.voters)
            and quorum.sure_at_us(BootUs(0)) >= 0
        )

    def echoed(self, voter: NodeId, echo: Echo, now_us: BootUs) -> None:
        if self._quorum is not None:
            backed_before_us = BootUs(now_us - echo.backed_ago_us)
            self._quorum.echoed(voter, echo.term, echo.sent_at_us, backed_before_us)

    def reported(self, node_id: NodeId, reports: Reports) -> None:
        """Add log ends of a node. An empty report means that it has none any more."""
        before = self.log_ends.get(node_id, {})
        known = {
            stream_id: log_end
            for stream_id, log_end in before.items()
            if reports.log_ends and log_end.report.incarnation == reports.incarnation
        }
        known.update((log_end.stream_id, log_end) for log_end in reports.log_ends)
        self.log_ends = {**self.log_ends, node_id: known}

    def _follow_role(self, context: ExtensionContext, now_us: BootUs) -> None:
        """Begin with this node's own claim, once a majority has reported on earlier leaders. End
        with the claim."""
        epoch = context.controller_epoch
        if epoch != self._epoch:
            if self._sessions is not None:
                self._granted_until_us = now_us
            self._epoch = epoch
            self._sessions = None
            self._last_decisions.clear()
            self.log_ends = {}
        quorum = self._quorum
        if epoch is None or quorum is None or self._sessions is not None:
            return
        # **safety** What the voters that elected this leader have reported. Later ones need not
        # have backed an earlier leader. The bound holds for the whole term.
        if self._elected_in != context.term:
            self._elected_in, self._earlier_sure_at_us = context.term, None
        if self._earlier_sure_at_us is None:
            self._earlier_sure_at_us = quorum.earlier_sure_at_us()
        earlier_sure_at_us = self._earlier_sure_at_us
        if earlier_sure_at_us is not None:
            self._revision = context.registry.revision
            # The current revision, not that of the claim, which may be older: a node gets no lease
            # before it has applied what this controller has.
            self._sessions = Sessions(
                self._settings,
                claim_revision=self._revision,
                nodes=context.registry.nodes,
                now_us=now_us,
                # There may have been an earlier claim of this node in this term too.
                earlier_sure_at_us=max(earlier_sure_at_us, self._granted_until_us),
            )

    def _ping(self, context: ExtensionContext, now_us: BootUs) -> None:
        quorum = self._quorum
        if quorum is None or (quorum.term, quorum.voters) != (context.term, context.voters):
            quorum = self._quorum = Quorum(
                context.term,
                context.voters,
                context.node_id,
                self._backing.before_us(context.term),
            )
        elif now_us - self._pinged_at_us < self._settings.authority_us // PINGS_PER_AUTHORITY:
            return
        self._pinged_at_us = now_us
        ping = encode(Ping(quorum.term, now_us))
        for voter in quorum.others:
            context.send(voter, ping)

    def _decide(self, context: ExtensionContext, sessions: Sessions, now_us: BootUs) -> None:
        for decision in sessions.decide(now_us):
            is_fencing = isinstance(decision, FenceNode)
            if is_fencing and context.voters == (decision.node_id,):
                continue  # A group of one: no other node could act in its place.
            if self._last_decisions.get(decision.node_id) != decision:
                self._last_decisions[decision.node_id] = decision
                if is_fencing:
                    logger.warning("node_fenced", node=decision.node_id)
                else:
                    logger.info("node_unfenced", node=decision.node_id)
            context.command(decision)
