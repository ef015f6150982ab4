"""A node's session on the Raft thread: its heartbeats, its lease, and its answers to other nodes.

A heartbeat goes to the metadata leader, which may be this node; a grant comes back (controller.py).
The heartbeat carries the revision of the *server's* copy of the metadata, because the server acts
on that copy: a server that does not know yet what it has lost must not get a lease.

One thread replaces or changes `lease` and `log_ends`, the other reads them, one attribute at a
time. Nothing is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetstream_protocol.types import NO_NODE, BootUs, NodeId
from jetstream_server.clocks import BootClock
from jetstream_server.metadata.member.extension import ExtensionContext
from jetstream_server.replication.sessions.controller_sessions import ControllerSessions
from jetstream_server.replication.sessions.lease import Heartbeat, SessionLease, SessionSettings
from jetstream_server.replication.sessions.quorum import LeaderSupport
from jetstream_server.replication.sessions.session_messages import (
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
"""Without a lease, a node sends this many times as many heartbeats."""
REPORT_US = 1_000_000
"""Pause between two reports of the same log ends: a link may have broken during the first."""


class Server(Protocol):
    """The part of the server's side (RaftMetadataLog) that the Raft thread reads."""

    @property
    def incarnation(self) -> int | None: ...

    @property
    def seen_revision(self) -> int: ...


class SessionDriver:
    """A metadata RaftThreadExtension.

    on_granted: called on the Raft thread when a lease begins after there was none. log_ends: of
    this node's replicas of leaderless streams, to be reported; set by the server.
    controller_ahead_us: the controller's clock minus this node's, as of the last grant; None before
    one. leaving: set by the server when it wants no more leases: a heartbeat would unfence it.
    """

    def __init__(
        self,
        server: Server,
        settings: SessionSettings,
        boot_clock: BootClock,
        on_granted: Callable[[], None],
    ) -> None:
        self.lease = SessionLease(settings)
        self.log_ends: tuple[LogEnd, ...] = ()
        self.controller_ahead_us: int | None = None
        self.leaving = False
        self._backing = LeaderSupport(boot_clock())
        self.controller = ControllerSessions(settings, self._backing)
        self._server = server
        self._settings = settings
        self._boot_clock = boot_clock
        self._on_granted = on_granted
        self._incarnation: int | None = None
        # The target of the last heartbeat: metadata leader, term, controller epoch.
        self._addressee: tuple[NodeId, int, int] | None = None
        self._sent_at_us = BootUs(0)
        self._reported: tuple[LogEnd, ...] = ()
        self._reported_at_us = BootUs(0)

    def turn(self, context: ExtensionContext) -> None:
        now_us = self._boot_clock()
        self.controller.turn(context, now_us)
        incarnation = self._server.incarnation
        if incarnation is None:
            return
        if incarnation != self._incarnation:
            # A grant for another incarnation does not count.
            self._incarnation = incarnation
            self.lease = SessionLease(self._settings)
            self._addressee = None
        if context.leader != NO_NODE and not self.leaving:
            self._beat(context, incarnation, now_us)

    def received(self, context: ExtensionContext, peer: NodeId, frame: bytes) -> None:
        message = decode(peer, frame)
        match message:
            case Heartbeat():
                now_us = self._boot_clock()
                runs_from_us = self.controller.heard(context, message, now_us)
                if runs_from_us is not None:
                    context.send(peer, encode(Grant(message.incarnation, runs_from_us, now_us)))
            case Grant():
                self._granted(message)
            case Ping(term, sent_at_us):
                # **safety** The current `term`, not that of the last turn: see quorum.py. A node
                # that may have forgotten a vote of a later term must not answer.
                if term == context.term and context.leader == peer and context.votes:
                    self._echo(context, term, sent_at_us)
            case Echo():
                self.controller.echoed(peer, message, self._boot_clock())
            case Reports():
                self.controller.reported(peer, message)

    def is_certain(self, context: ExtensionContext) -> bool:
        return self.controller.is_certain(context)

    def _echo(self, context: ExtensionContext, term: int, sent_at_us: BootUs) -> None:
        now_us = self._boot_clock()
        self._backing.back(term, now_us)
        backed_ago_us = max(0, now_us - self._backing.before_us(term))
        context.send(context.leader, encode(Echo(term, sent_at_us, backed_ago_us)))

    def _beat(self, context: ExtensionContext, incarnation: int, now_us: BootUs) -> None:
        """Send what is due; at once to a new controller, which does not know this node yet."""
        addressee = (context.leader, context.term, context.registry.controller.epoch)
        is_new = addressee != self._addressee
        pause_us = self._settings.heartbeat_us
        if not self.lease.holds(now_us):
            pause_us //= HURRY
        if not is_new and now_us - self._sent_at_us < pause_us:
            return
        self._addressee, self._sent_at_us = addressee, now_us
        heartbeat = Heartbeat(context.node_id, incarnation, now_us, self._server.seen_revision)
        if context.leader != context.node_id:
            context.send(context.leader, encode(heartbeat))
        else:
            runs_from_us = self.controller.heard(context, heartbeat, now_us)
            if runs_from_us is not None:
                self._granted(Grant(incarnation, runs_from_us, now_us))
        self._report(context, incarnation, now_us, is_new=is_new)

    def _granted(self, grant: Grant) -> None:
        if grant.incarnation != self._incarnation or grant.runs_from_us > self._sent_at_us:
            return
        now_us = self._boot_clock()
        self.controller_ahead_us = grant.granted_at_us - now_us
        held = self.lease.holds(now_us)
        self.lease.granted(grant.runs_from_us)
        if not held and self.lease.holds(now_us):
            self._on_granted()

    def _report(
        self, context: ExtensionContext, incarnation: int, now_us: BootUs, *, is_new: bool
    ) -> None:
        log_ends = self.log_ends
        is_reported = not is_new and log_ends is self._reported
        if is_reported and (not log_ends or now_us - self._reported_at_us < REPORT_US):
            return
        had_some = bool(self._reported)
        self._reported, self._reported_at_us = log_ends, now_us
        parts = [log_ends[at : at + REPORTS_MAX] for at in range(0, len(log_ends), REPORTS_MAX)]
        if not parts and had_some:
            parts = [()]
        for part in parts:
            reports = Reports(incarnation, part)
            if context.leader != context.node_id:
                context.send(context.leader, encode(reports))
            else:
                self.controller.reported(context.node_id, reports)
