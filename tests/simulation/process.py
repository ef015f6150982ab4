"""A server process: the shipped cores, and drivers as thin as the simulation allows.

start ──> recover the log ──> register with what can be said of it ──> follow the metadata
      every TICK_US: heartbeat, ISR changes, reports, flush confirmations, the controller's work

A driver here does what the server's drivers do, in the same order: persist, flush, send.
"""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.log.checkpoint import read_state, write_state
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.isr import IsrChange, Outcome
from jetstream_server.replication.lease import Heartbeat, SessionLease
from jetstream_server.replication.log_ends import leaderless_log_ends
from jetstream_server.replication.replica import Replica, RoleChange
from jetstream_server.replication.trust import RunRecord, judge
from tests.simulation.controller import ControllerRole
from tests.simulation.fetcher import Fetcher
from tests.simulation.handing_over import HandingOver
from tests.simulation.leading import Leading
from tests.simulation.machine import SESSION_PATH, Machine
from tests.simulation.metadata import OnResult, View

TICK_US = 120_000
ADDRESSES = {"grpc": "a:1", "data": "a:2", "raft": "a:3", "http": "a:4"}

OUTCOMES = {
    "": Outcome.ACCEPTED,
    "invalid_request": Outcome.INELIGIBLE,
    "precondition_failed": Outcome.STALE,
    "fenced_epoch": Outcome.STALE,
    "unknown_epoch": Outcome.STALE,
    "stream_not_found": Outcome.STALE,
}
"""What an error code says of a change_isr; anything else leaves it unknown."""


class Process:
    """One run of a node."""

    def __init__(self, machine: Machine) -> None:
        cluster = machine.cluster
        self.machine = machine
        self.cluster = cluster
        self.world = cluster.world
        self.node_id = machine.node_id
        self.alive = True
        self.stopping = False
        self.failed = False
        self.paused_until = 0
        self.session = f"{machine.node_id}.{machine.starts}"
        self.incarnation = -1
        self.view: View = cluster.metadata.views[0]
        self.lease = SessionLease(cluster.session_settings)
        self.record = RunRecord()
        self.log: CommitLog | None = None
        self.replica: Replica | None = None
        self.leading = Leading(self)
        self.handing_over = HandingOver(self)
        self.fetcher = Fetcher(self)
        self.controller = ControllerRole(self)
        self._heartbeat_at_us = 0
        self._sids = 0
        self._sequence = 0
        self._isr_command: tuple[IsrChange, int] | None = None
        """The ISR change proposed last, and its command's sequence: a retry repeats it."""
        self._flushing = False
        self._flushed_at_us = 0
        self._confirming = False
        self._reporting = False

    def note(self, text: str) -> None:
        self.world.note(f"node {self.node_id}#{self.machine.starts}: {text}")

    # Beginning and end.

    def start(self) -> None:
        """Recover, and say so; registering waits for the metadata to be reachable."""
        disk = self.machine.disk
        before = RunRecord.from_dict(self._read_record())
        self.record = before.begun(self.session, str(self.machine.boot))
        try:
            if not disk.exists("/streams"):
                disk.make_directory("/streams")
            disk.fsync_directory("/")
            self._write_record()
            self.log = self._open_log(clean=before.clean)
        except (OSError, StorageError) as error:
            self.die(f"cannot start: {error}")
            return
        world = self.world
        world.later(world.between(1_000, 50_000), self, self._register)

    def _open_log(self, *, clean: bool) -> CommitLog:
        cluster, disk = self.cluster, self.machine.disk
        directory = f"/streams/{cluster.stream_id}"
        checkpoint = f"{directory}/{CHECKPOINT_NAME}"
        if cluster.stream_id in self.record.suspects and disk.exists(checkpoint):
            # What it says was flushed may never have reached the disk: everything is scanned.
            disk.remove(checkpoint)
        log = CommitLog.open(
            disk, directory, cluster.log_config, clean=clean, boot_id=self.record.boot_id
        )
        if self.world.trace is not None:
            self.note(
                f"starts; log [{log.log_start_offset}, {log.log_end_offset}) "
                f"{log.epochs.entries} {log.offline_reason}"
            )
        if log.offline_reason:
            self.world.count("damaged log")
            if cluster.profile.replicas == 1 and cluster.faults.healing:
                log.mend()  # The operator's decision: there is no other replica.
        elif not clean:
            log.flush()
        cluster.checker.reopened(self.node_id, log)
        return log

    def _register(self) -> None:
        """Judge the logs by the newest metadata, and register until it is known to be done."""
        cluster, log = self.cluster, self.log
        assert log is not None
        if not cluster.metadata.reaches(self):
            self.world.later(200_000, self, self._register)
            return
        truth = cluster.metadata.now
        known = truth.nodes.get(NodeId(self.node_id))
        trust = judge(
            self.record,
            None if known is None else known.session,
            {int(cluster.stream_id): log.offline_reason or log.incomplete_reason},
        )
        if not trust.trusted or trust.distrusted:
            self.world.count("restart distrusted")
        command = {
            "op": "register_node",
            "node_id": self.node_id,
            "session": self.session,
            "addresses": ADDRESSES,
            "trusted": trust.trusted,
            "distrusted": list(trust.distrusted),
            "replaces": "" if known is None else known.session,
        }
        cluster.faults.scenario.registers(self)
        cluster.metadata.propose(self, command, self._registered)

    def _registered(self, code: str, result: dict[str, Any]) -> None:
        if code:
            self.world.later(self.world.between(50_000, 300_000), self, self._register)
            return
        assert self.log is not None
        self.incarnation = int(result["incarnation"])
        self.record = self.record.registered(self.session)
        self._write_record()
        self.log.incompleteness_told()
        self.note(f"is registered as incarnation {self.incarnation}")
        stream = self.view.stream
        assert stream is not None
        if self.node_id in stream.replicas:
            self._open_replica(stream, self.log)
        self._tick()

    def _open_replica(self, stream: StreamMetadata, log: CommitLog) -> None:
        self.replica = Replica(
            stream,
            log,
            node_id=self.node_id,
            incarnation=self.incarnation,
            lag_max_us=self.cluster.lag_max_us,
            rebuild=stream.id in self.record.suspects,
        )
        self.replica.on_commit = self._committed
        self._follow(self.replica, stream)

    def next_sid(self) -> int:
        """For a subscription: what is on the way to an earlier one is dropped."""
        self._sids += 1
        return self._sids

    def stop(self) -> None:
        """SIGTERM: hand over, flush, close, say that all is well, leave."""
        if self.stopping or self.incarnation < 0:
            return
        self.stopping = True
        self.world.count("clean stop")
        self.propose({"op": "drain_node", "node_id": self.node_id})
        self.hand_over()
        self.world.later(self.world.between(50_000, 1_000_000), self, self._stop)

    def _stop(self) -> None:
        assert self.log is not None
        self.leading.end()
        was_offline = bool(self.log.offline_reason)
        try:
            if self.replica is not None:
                self.replica.close(clean=True)
            if not was_offline and not self.failed:
                self.record = self.record.stopped()
                self._write_record()
        except (OSError, StorageError) as error:
            self.note(f"did not stop cleanly: {error}")
            self.record = self.record.suspecting(self.cluster.stream_id)
            self._write_record()
        self.propose({"op": "fence_node", "node_id": self.node_id})
        self.die("stopped")

    def die(self, reason: str) -> None:
        """The process is gone, whatever it was about to do."""
        if not self.alive:
            return
        self.alive = False
        self.machine.process = None
        self.machine.disk.repair()
        self.cluster.members[self.node_id] = None
        self.note(f"is gone: {reason}")
        self.cluster.faults.process_ended(self.machine)

    def fail(self, error: StorageError) -> None:
        """The log's disk failed it: its bytes are not to be believed, now or after a restart. The
        node goes on without this replica until somebody restarts it."""
        if self.failed or not self.alive:
            return
        self.failed = True
        self.world.count("log failed")
        self.note(f"log failed: {error.message}")
        self.record = self.record.suspecting(self.cluster.stream_id)
        self._write_record()
        self.leading.failed(error)
        self._distrust()
        self.world.later(self.world.between(100_000, 4_000_000), self, self.die, "restarted")

    def _distrust(self) -> None:
        """Say so until the metadata says it, too."""
        stream = self.view.stream
        if stream is not None and self.node_id in (*stream.isr, *stream.elr):
            self.propose(
                {
                    "op": "distrust_replica",
                    "stream_id": stream.id,
                    "node_id": self.node_id,
                    "node_incarnation": self.incarnation,
                }
            )

    def rebuilt(self) -> None:
        """The log was emptied and is fetched again: its bytes can be believed once more."""
        stream_id = self.cluster.stream_id
        if stream_id in self.record.suspects:
            self.world.count("log rebuilt")
            self.record = self.record.rebuilt(stream_id)
            self._write_record()

    def _read_record(self) -> dict[str, Any] | None:
        return read_state(self.machine.disk, SESSION_PATH, "session", str(self.node_id))

    def _write_record(self) -> None:
        state = self.record.to_dict()
        try:
            write_state(self.machine.disk, SESSION_PATH, "session", str(self.node_id), state)
        except StorageError as error:
            self.die(f"cannot write its session record: {error.message}")

    # The metadata.

    def propose(
        self, command: dict[str, Any], on_result: OnResult | None = None, sequence: int = -1
    ) -> int:
        """Propose under a command id of this incarnation; `sequence` repeats an earlier one.

        Returns the sequence used."""
        if sequence < 0:
            self._sequence += 1
            sequence = self._sequence
        identified = {**command, "id": [self.incarnation, sequence]}
        self.cluster.metadata.propose(self, identified, on_result or _ignore)
        return sequence

    def learn(self, revision: int) -> None:
        """Apply the metadata up to that revision: one by one, or at times as one snapshot."""
        views = self.cluster.metadata.views
        if revision <= self.view.revision:
            return
        if revision > self.view.revision + 2 and self.world.chance(0.2):
            self._apply(views[revision])
            return
        for next_revision in range(self.view.revision + 1, revision + 1):
            self._apply(views[next_revision])

    def _apply(self, view: View) -> None:
        before, self.view = self.view, view
        self.controller.apply(before, view)
        replica = self.replica
        registered = self.incarnation >= 0
        if registered and view.nodes[NodeId(self.node_id)].session != self.session:
            # A late registration of an earlier run, or another server of this id: start again.
            self.world.count("superseded")
            self.die("another run registered as this node")
            return
        if replica is None or view.stream is None:
            return
        if view.stream is not before.stream or view.nodes is not before.nodes:
            self._follow(replica, view.stream)

    def _follow(self, replica: Replica, stream: StreamMetadata) -> None:
        changes = replica.update(stream, self.view.nodes, self.world.now)
        self.cluster.checker.truncated(self.node_id, replica.log)
        for change in changes:
            self._follow_role(change)
        log = replica.log
        if log.health.has_failed or (replica.leadership is not None and log.offline_reason):
            self.fail(StorageError(replica.log.offline_reason))
        self.leading.metadata_changed()
        self.fetcher.pump()
        self.request_flush()

    def _follow_role(self, change: RoleChange) -> None:
        replica = self.replica
        assert replica is not None
        if self.world.trace is not None:
            self.note(f"{change.name} epoch {replica.stream.leader_epoch}")
        match change:
            case RoleChange.STOPPED_LEADING:
                self.leading.end()
            case RoleChange.LEADS:
                self.cluster.checker.leads(self, replica)
                self.leading.begin()
                self.cluster.faults.scenario.begins_to_lead(self)
            case RoleChange.FELL_BELOW_MINIMUM:
                self.leading.fell_below_minimum()

    # Time.

    def _tick(self) -> None:
        world, replica = self.world, self.replica
        world.later(TICK_US, self, self._tick)
        self.controller.tick()
        if world.now >= self._heartbeat_at_us:
            self._heartbeat_at_us = world.now + self.cluster.session_settings.heartbeat_us
            self._send_heartbeat()
        if self.cluster.metadata.now.revision > self.view.revision:
            self.cluster.metadata.tell(self)
        if self.failed:
            self._distrust()
        if replica is None:
            return
        if not replica.is_settled(world.now):
            replica.tick(world.now)
        self.leading.tick()
        self.fetcher.tick()
        self.propose_changes()
        self._report_leader(replica)
        self._flush_by_interval(replica)

    def _send_heartbeat(self) -> None:
        world = self.world
        target = self.view.controller.node_id
        leader = self.cluster.metadata.leader
        if leader is not None and world.chance(0.3):
            target = NodeId(leader.node_id)
        if target == NO_NODE:
            return
        heartbeat = Heartbeat(NodeId(self.node_id), self.incarnation, world.now, self.view.revision)
        streams = [] if self.view.stream is None else [self.view.stream]
        log_ends = leaderless_log_ends(
            NodeId(self.node_id), streams, lambda _: self.replica, self.record.suspects
        )
        self.cluster.network.send(self.node_id, target, "on_heartbeat", heartbeat, log_ends)

    def propose_changes(self) -> None:
        """What the cores want of the metadata group: ISR changes, and a confirmed flush."""
        replica = self.replica
        assert replica is not None
        settled = replica.is_settled(self.world.now)
        change = replica.propose(self.world.now)
        assert change is None or not settled, "the server's driver would not have looked"
        if change is not None:
            self._propose_isr(replica, change)
        if not self._confirming:
            confirmation = replica.flush_confirmation()
            if confirmation is not None:
                self._confirming = True
                self.propose(confirmation, self._confirmed)

    def _propose_isr(self, replica: Replica, change: IsrChange) -> None:
        sequence = -1
        if self._isr_command is not None and self._isr_command[0] is change:
            sequence = self._isr_command[1]
            self.world.count("ISR change retried")
        if self.world.trace is not None:
            self.note(f"proposes ISR {change.isr} at stream epoch {change.stream_epoch}")
        if sequence < 0:
            self.cluster.faults.isr_proposed(change, replica)

        def settle(code: str, result: dict[str, Any]) -> None:
            outcome = OUTCOMES.get(code, Outcome.UNKNOWN)
            self.world.count(f"ISR change {outcome.name.lower()}")
            replica.settle(change, outcome, self.world.now)

        self._isr_command = change, self.propose(change.command(), settle, sequence)

    def _confirmed(self, code: str, result: dict[str, Any]) -> None:
        self._confirming = False
        if not code:
            self.world.count("flush confirmed")

    def _report_leader(self, replica: Replica) -> None:
        following = replica.following
        if following is not None and following.report_due(self.world.now):
            self.world.count("leader reported")
            self.propose(
                {
                    "op": "report_leader",
                    "stream_id": replica.stream.id,
                    "leader_epoch": replica.stream.leader_epoch,
                    "reporter": self.node_id,
                    "now_us": self.world.now,
                }
            )

    def hand_over(self) -> None:
        """Give the leadership to another member of the ISR, if this node leads and there is one."""
        replica = self.replica
        if replica is None or replica.leadership is None:
            return
        others = [member for member in replica.stream.isr if member != self.node_id]
        if not others:
            return
        target = others[self.world.between(0, len(others) - 1)]
        if self.cluster.faults.scenario.plans_hand_overs:
            self.world.count("hand-over")
            self.handing_over.give(target, self._handed_over)
            return
        self.world.count("leadership handed over")
        self.propose({"op": "transfer_leader", "stream_id": replica.stream.id, "leader": target})

    def _handed_over(self, _: object, error: JetstreamError | None) -> None:
        if error is None:
            self.world.count("hand-over done")
            self.handing_over.asked_to_stand_by.clear()
        elif self.world.trace is not None:
            self.note(f"does not hand over: {error.message}")

    # The disk.

    def request_flush(self) -> None:
        """One flush at a time; what is appended meanwhile waits for the next."""
        if not self._flushing and self.replica is not None and self.replica.flush_wanted:
            self._start_flush()

    def flush_now(self) -> None:
        """Whatever the policy."""
        if self.replica is not None and not self._flushing and not self.replica.log.offline_reason:
            self._start_flush()

    def _start_flush(self) -> None:
        self._flushing = True
        world = self.world
        delay = world.between(100, 2_000) + self.cluster.faults.scenario.flush_delay_us(self)
        if world.chance(self.cluster.profile.slow_flushes):
            delay += world.between(0, 1_500_000)
        world.later(delay, self, self._flush)

    def _flush_by_interval(self, replica: Replica) -> None:
        if replica.stream.config.flush != "interval" or self._flushing:
            return
        log = replica.log
        due = self.world.now - self._flushed_at_us >= 1_000_000
        if due and log.flushed_offset < log.log_end_offset and not log.offline_reason:
            self._start_flush()

    def _flush(self) -> None:
        replica = self.replica
        assert replica is not None
        self._flushing = False
        self._flushed_at_us = self.world.now
        try:
            replica.log.flush()
        except StorageError as error:
            self.fail(error)
            return
        replica.moved()
        self.fetcher.pump()
        self.propose_changes()
        self.request_flush()

    def _committed(self, replica: Replica) -> None:
        self.cluster.checker.high_watermark_rose(self, replica)
        self.leading.committed()

    # Messages; each names the method it is for.

    def on_fetch(self, source: int, *arguments: Any) -> None:
        self.leading.on_fetch(source, *arguments)

    def on_answer(self, *arguments: Any) -> None:
        self.fetcher.on_answer(*arguments)

    def on_hand_over(self, *arguments: Any) -> None:
        if self.incarnation >= 0:
            self.handing_over.on_hand_over(*arguments)

    def on_handed_over(self, *arguments: Any) -> None:
        self.handing_over.on_handed_over(*arguments)

    def on_heartbeat(self, *arguments: Any) -> None:
        self.controller.on_heartbeat(*arguments)

    def on_grant(self, runs_from_us: int) -> None:
        self.lease.granted(runs_from_us)
        self.leading.lease_renewed()

    def take_control(self) -> None:
        self.controller.begin_term()

    def renew_control(self, sure_at_us: int) -> None:
        self.controller.renew(sure_at_us)


def _ignore(code: str, result: dict[str, Any]) -> None:
    pass
