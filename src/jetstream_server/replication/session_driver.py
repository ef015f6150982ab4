"""A node's session on the Raft thread: its heartbeats, its lease, and its answers to others.

A heartbeat goes to whoever leads the metadata group, this node itself included; a grant comes back
(controller_sessions.py). It carries what the *server's* copy of the metadata has applied, because
the server acts on that copy: a lease must not go to a server that does not know yet what it lost.

`lease` and `log_ends` are replaced or changed by one thread and read by the other, one attribute
at a time; nothing is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.passenger import Carrier
from jetstream_server.replication.controller_sessions import ControllerSessions
from jetstream_server.replication.lease import Heartbeat, SessionLease, SessionSettings
from jetstream_server.replication.quorum import Backing
from jetstream_server.replication.session_messages import (
    REPORTS_MAX,
    Echo,
    Grant,
    LogEnd,
    Ping,
    Reports,
    decode,
    encode,
)

HURRY = 3
"""Without a lease a node asks so many times as often."""
REPORT_US = 1_000_000
"""Between two reports of the same log ends: a link may have broken under the first."""


class Server(Protocol):
    """What is read of the server's side (RaftMetadataLog), on the Raft thread."""

    @property
    def incarnation(self) -> int | None: ...

    @property
    def seen_revision(self) -> int: ...


class SessionDriver:
    """A metadata Passenger.

    on_granted: called on the Raft thread when a lease begins that was not held.
    log_ends: of this node's replicas of leaderless streams, to be reported; set by the server.
    controller_ahead_us: the controller's clock less this node's, as of the last grant; None before.
    leaving: set by the server when it wants no lease any more: a heartbeat would unfence it.
    """

    def __init__(
        self,
        server: Server,
        settings: SessionSettings,
        clock_us: Callable[[], int],
        on_granted: Callable[[], None],
    ) -> None:
        self.lease = SessionLease(settings)
        self.log_ends: tuple[LogEnd, ...] = ()
        self.controller_ahead_us: int | None = None
        self.leaving = False
        self._backing = Backing(clock_us())
        self.controller = ControllerSessions(settings, self._backing)
        self._server = server
        self._settings = settings
        self._clock_us = clock_us
        self._on_granted = on_granted
        self._incarnation: int | None = None
        # Whom the last heartbeat was for: metadata leader, term, controller epoch.
        self._addressee: tuple[NodeId, int, int] | None = None
        self._sent_at_us = 0
        self._reported: tuple[LogEnd, ...] = ()
        self._reported_at_us = 0

    def turn(self, carrier: Carrier) -> None:
        now_us = self._clock_us()
        self.controller.turn(carrier, now_us)
        incarnation = self._server.incarnation
        if incarnation is None:
            return
        if incarnation != self._incarnation:
            # What was granted to another incarnation is not for this one.
            self._incarnation = incarnation
            self.lease = SessionLease(self._settings)
            self._addressee = None
        if carrier.leader != NO_NODE and not self.leaving:
            self._beat(carrier, incarnation, now_us)

    def received(self, carrier: Carrier, peer: NodeId, frame: bytes) -> None:
        message = decode(peer, frame)
        match message:
            case Heartbeat():
                now_us = self._clock_us()
                runs_from_us = self.controller.heard(carrier, message, now_us)
                if runs_from_us is not None:
                    carrier.send(peer, encode(Grant(message.incarnation, runs_from_us, now_us)))
            case Grant():
                self._granted(message)
            case Ping(term, sent_at_us):
                # **safety** `term` as of now, not as of the last turn: see quorum.py. A node that
                # may have forgotten a later term's vote has nothing to say.
                if term == carrier.term and carrier.leader == peer and carrier.votes:
                    self._echo(carrier, term, sent_at_us)
            case Echo():
                self.controller.echoed(peer, message, self._clock_us())
            case Reports():
                self.controller.reported(peer, message)

    def _echo(self, carrier: Carrier, term: int, sent_at_us: int) -> None:
        now_us = self._clock_us()
        self._backing.back(term, now_us)
        backed_ago_us = max(0, now_us - self._backing.before_us(term))
        carrier.send(carrier.leader, encode(Echo(term, sent_at_us, backed_ago_us)))

    def _beat(self, carrier: Carrier, incarnation: int, now_us: int) -> None:
        """Send what is due: at once to a new controller, who cannot know of us otherwise."""
        addressee = (carrier.leader, carrier.term, carrier.registry.controller.epoch)
        is_new = addressee != self._addressee
        pause_us = self._settings.heartbeat_us
        if not self.lease.holds(now_us):
            pause_us //= HURRY
        if not is_new and now_us - self._sent_at_us < pause_us:
            return
        self._addressee, self._sent_at_us = addressee, now_us
        heartbeat = Heartbeat(carrier.node_id, incarnation, now_us, self._server.seen_revision)
        if carrier.leader != carrier.node_id:
            carrier.send(carrier.leader, encode(heartbeat))
        else:
            runs_from_us = self.controller.heard(carrier, heartbeat, now_us)
            if runs_from_us is not None:
                self._granted(Grant(incarnation, runs_from_us, now_us))
        self._report(carrier, incarnation, now_us, is_new=is_new)

    def _granted(self, grant: Grant) -> None:
        if grant.incarnation != self._incarnation or grant.runs_from_us > self._sent_at_us:
            return
        now_us = self._clock_us()
        self.controller_ahead_us = grant.granted_at_us - now_us
        held = self.lease.holds(now_us)
        self.lease.granted(grant.runs_from_us)
        if not held and self.lease.holds(now_us):
            self._on_granted()

    def _report(self, carrier: Carrier, incarnation: int, now_us: int, *, is_new: bool) -> None:
        log_ends = self.log_ends
        is_told = not is_new and log_ends is self._reported
        if is_told and (not log_ends or now_us - self._reported_at_us < REPORT_US):
            return
        had_some = bool(self._reported)
        self._reported, self._reported_at_us = log_ends, now_us
        parts = [log_ends[at : at + REPORTS_MAX] for at in range(0, len(log_ends), REPORTS_MAX)]
        if not parts and had_some:
            parts = [()]
        for part in parts:
            reports = Reports(incarnation, part)
            if carrier.leader != carrier.node_id:
                carrier.send(carrier.leader, encode(reports))
            else:
                self.controller.reported(carrier.node_id, reports)
