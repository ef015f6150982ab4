"""Sessions, and what publishers are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import NotEnoughReplicasError, UnknownOutcomeError
from jetstream_server.ingest import ingest
from jetstream_server.ingest.stream.pending_acks import PendingAcks
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from jetstream_server.replication.sessions.driver import SessionDriver
from jetstream_server.replication.sessions.lease import Heartbeat, SessionLease
from jetstream_server.replication.sessions.session_messages import Grant
from jetstream_server.replication.sessions.session_table import Sessions
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import LapsedSessions, LostControl

# Sessions.


@mutant()
def speaks_without_a_lease(patches: Patches) -> None:
    """A leader speaks whether or not its session may have been ended."""
    patches.set(SessionLease, "holds", lambda self, now_us: True)


@mutant(LapsedSessions)
def counts_the_lease_from_the_grant(patches: Patches) -> None:
    """The lease runs from when the grant arrived, not from when its heartbeat was sent."""
    granted = SessionDriver._granted

    def late(self: SessionDriver, grant: Grant) -> None:
        granted(self, grant)
        if grant.incarnation == self._incarnation:
            self.lease.granted(self._boot_clock())

    patches.set(SessionDriver, "_granted", late)


@mutant(LapsedSessions)
def grants_while_fencing(patches: Patches) -> None:
    """A node gets a lease while the command that fences it is under way."""
    heard = Sessions.heard

    def lenient(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        session = self._sessions.get(heartbeat.node_id)
        if session is None or not session.fence_proposed:
            return heard(self, heartbeat, now_us)
        session.fence_proposed = False
        granted = heard(self, heartbeat, now_us)
        session.fence_proposed = True
        return granted

    patches.set(Sessions, "heard", lenient)


@mutant(LapsedSessions)
def grants_to_who_is_behind(patches: Patches) -> None:
    """A node gets a lease before it has heard that it was fenced."""
    heard = Sessions.heard

    def lenient(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        return heard(self, replace(heartbeat, applied_revision=1 << 60), now_us)

    patches.set(Sessions, "heard", lenient)


@mutant(LostControl)
def grants_without_authority(patches: Patches) -> None:
    """A controller goes on granting leases after it has lost its majority."""
    heard = Sessions.heard

    def sure(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        self._sure_at_us = now_us
        return heard(self, heartbeat, now_us)

    patches.set(Sessions, "heard", sure)


@mutant(LostControl)
def grants_whole_leases(patches: Patches) -> None:
    """A lease does not become shorter by the age of its controller's certainty."""
    heard = Sessions.heard

    def whole(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        return None if heard(self, heartbeat, now_us) is None else heartbeat.sent_at_us

    patches.set(Sessions, "heard", whole)


@mutant(LostControl)
def fences_without_grace(patches: Patches) -> None:
    """A new controller waits for first heartbeats only, whatever leases its predecessors gave."""
    init = Sessions.__init__

    def hasty(self: Sessions, *arguments: Any, **rest: Any) -> None:
        init(self, *arguments, **{**rest, "earlier_sure_at_us": 0})

    patches.set(Sessions, "__init__", hasty)


@mutant()
def acknowledges_before_the_commit(patches: Patches) -> None:
    """Level `all` is acknowledged once the leader has appended."""

    committed = PendingAcks.committed

    def at_once(self: PendingAcks, high_watermark: int) -> None:
        committed(self, 1 << 62)

    patches.set(PendingAcks, "committed", at_once)


@mutant(LapsedSessions)
def acknowledges_commits_without_a_lease(patches: Patches) -> None:
    """A leader whose session may have ended acknowledges what is committed under it."""

    committed = StreamIngest.committed

    def at_once(self: StreamIngest) -> None:
        self._lease_held = lambda: True
        committed(self)

    patches.set(StreamIngest, "committed", at_once)


@mutant()
def deposed_leaders_answer(patches: Patches) -> None:
    """A deposed leader tells its publishers that nobody knows, while the successor commits."""
    drop = StreamIngest.drop

    def answer(self: StreamIngest) -> None:
        self.fail(UnknownOutcomeError("this node leads no more"))
        drop(self)

    patches.set(StreamIngest, "drop", answer)


@mutant()
def denies_what_it_appended(patches: Patches) -> None:
    """What was appended before the ISR fell below its minimum is refused, not called unknown."""
    patches.set(ingest, "NotEnoughReplicasAfterAppendError", NotEnoughReplicasError)


@mutant()
def leaves_publishers_waiting(patches: Patches) -> None:
    """Now and then nobody is told when a record that was appended is committed."""
    wait = StreamIngest._wait

    def forgetful(self: StreamIngest, pending: Any) -> None:
        if pending.base_offset % 10:
            wait(self, pending)

    patches.set(StreamIngest, "_wait", forgetful)
