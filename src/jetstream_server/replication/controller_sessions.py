"""The controller's half of the sessions: heartbeats in, grants out, nodes fenced and unfenced.

Lives on the Raft thread of every member and does nothing but while its node leads the metadata
group: so a blocked server loop delays no failover. sessions.py decides, quorum.py tells whether
this node may still grant; here is only when they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.passenger import Carrier
from jetstream_server.replication.lease import Heartbeat, SessionSettings
from jetstream_server.replication.quorum import Backing, Quorum
from jetstream_server.replication.session_messages import Echo, LogEnd, Ping, Reports, encode
from jetstream_server.replication.sessions import FenceNode, Sessions, UnfenceNode

PINGS_PER_AUTHORITY = 4
"""So many pings are sent while one echo still counts: two in a row may be late."""
DECISIONS_PER_HEARTBEAT = 6
"""How often it is looked whether somebody has fallen silent: 50 ms at the default."""

_log = structlog.get_logger("jetstream.replication")


class ControllerSessions:
    """See the module.

    log_ends: what nodes have reported of their replicas of leaderless streams. It is never
    changed, only replaced: other threads may read it.
    """

    def __init__(self, settings: SessionSettings, backing: Backing) -> None:
        self.log_ends: Mapping[NodeId, Mapping[StreamId, LogEnd]] = {}
        self._settings = settings
        self._backing = backing
        self._quorum: Quorum | None = None
        self._sessions: Sessions | None = None
        self._granted_until_us = -1
        self._epoch: int | None = None
        self._revision = 0
        self._pinged_at_us = 0
        self._decided_at_us = 0
        self._told: dict[NodeId, FenceNode | UnfenceNode] = {}

    def turn(self, carrier: Carrier, now_us: int) -> None:
        if carrier.leader != carrier.node_id:
            self._quorum = None
            self._follow_role(carrier, now_us)
            return
        self._backing.back(carrier.term, now_us)
        self._ping(carrier, now_us)
        self._follow_role(carrier, now_us)
        sessions = self._sessions
        if sessions is None:
            return
        if self._revision != carrier.registry.revision:
            self._revision = carrier.registry.revision
            sessions.update(carrier.registry.nodes, self._revision, now_us)
        if now_us - self._decided_at_us >= self._settings.heartbeat_us // DECISIONS_PER_HEARTBEAT:
            self._decided_at_us = now_us
            self._decide(carrier, sessions, now_us)

    def heard(self, carrier: Carrier, heartbeat: Heartbeat, now_us: int) -> int | None:
        """From when the lease runs that is granted; None: none is (sessions.py)."""
        sessions, quorum = self._sessions, self._quorum
        # Between two turns the role may have been lost.
        if sessions is None or quorum is None or carrier.controller_epoch != self._epoch:
            return None
        sessions.renew(quorum.sure_at_us(now_us))
        return sessions.heard(heartbeat, now_us)

    def echoed(self, voter: NodeId, echo: Echo, now_us: int) -> None:
        if self._quorum is not None:
            backed_before_us = now_us - echo.backed_ago_us
            self._quorum.echoed(voter, echo.term, echo.sent_at_us, backed_before_us)

    def reported(self, node_id: NodeId, reports: Reports) -> None:
        """More of a node's log ends; no log ends at all: there are none any more."""
        before = self.log_ends.get(node_id, {})
        known = {
            stream_id: log_end
            for stream_id, log_end in before.items()
            if reports.log_ends and log_end.report.incarnation == reports.incarnation
        }
        known.update((log_end.stream_id, log_end) for log_end in reports.log_ends)
        self.log_ends = {**self.log_ends, node_id: known}

    def _follow_role(self, carrier: Carrier, now_us: int) -> None:
        """Begin with the own claim, once a majority has told of earlier leaders; end with it."""
        epoch = carrier.controller_epoch
        if epoch != self._epoch:
            if self._sessions is not None:
                self._granted_until_us = now_us
            self._epoch = epoch
            self._sessions = None
            self._told.clear()
            self.log_ends = {}
        quorum = self._quorum
        if epoch is None or quorum is None or self._sessions is not None:
            return
        earlier_sure_at_us = quorum.earlier_sure_at_us()
        if earlier_sure_at_us is not None:
            self._revision = carrier.registry.revision
            # The revision of now rather than of the claim, which may be a few behind already:
            # nobody is granted a lease who has not applied what this controller has.
            self._sessions = Sessions(
                self._settings,
                claim_revision=self._revision,
                nodes=carrier.registry.nodes,
                now_us=now_us,
                # Of this same term, too, there may have been an own claim before.
                earlier_sure_at_us=max(earlier_sure_at_us, self._granted_until_us),
            )

    def _ping(self, carrier: Carrier, now_us: int) -> None:
        quorum = self._quorum
        if quorum is None or quorum.term != carrier.term:
            quorum = self._quorum = Quorum(
                carrier.term,
                carrier.voters,
                carrier.node_id,
                self._backing.before_us(carrier.term),
            )
        elif now_us - self._pinged_at_us < self._settings.authority_us // PINGS_PER_AUTHORITY:
            return
        self._pinged_at_us = now_us
        ping = encode(Ping(quorum.term, now_us))
        for voter in quorum.others:
            carrier.send(voter, ping)

    def _decide(self, carrier: Carrier, sessions: Sessions, now_us: int) -> None:
        for decision in sessions.decide(now_us):
            is_fencing = isinstance(decision, FenceNode)
            if is_fencing and carrier.voters == (decision.node_id,):
                continue  # A group of one: nobody else could act in its place.
            if self._told.get(decision.node_id) != decision:
                self._told[decision.node_id] = decision
                if is_fencing:
                    _log.warning("node_fenced", node=decision.node_id)
                else:
                    _log.info("node_unfenced", node=decision.node_id)
            carrier.command(decision.command())
