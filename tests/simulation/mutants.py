"""Every safety rule the simulation covers, switched off one at a time: each mutant must die.

A mutant is a function that replaces attributes of the shipped classes, for as long as its seeds
run; the product knows nothing of it. `docs/replication.md` names each rule's mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from jetstream_protocol.errors import NotEnoughReplicasError, StorageError, UnknownOutcomeError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.ingest.stream import StreamIngest
from jetstream_server.log import incoming, recovery
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata import (
    elections,
    leadership_commands,
    node_commands,
    registry,
    stream_commands,
)
from jetstream_server.metadata.streams import NodeMetadata, StreamMetadata
from jetstream_server.replication import trust, unclean
from jetstream_server.replication.follower import Append, FollowerState, Step
from jetstream_server.replication.isr import InSyncReplicas, IsrChange, Outcome
from jetstream_server.replication.leader import LeaderState
from jetstream_server.replication.lease import Heartbeat, SessionLease
from jetstream_server.replication.messages import (
    Answer,
    Diverging,
    FetchRequest,
    OutOfRange,
    last_epoch_of,
)
from jetstream_server.replication.progress import FollowerProgress
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.sessions import Sessions
from jetstream_server.replication.trust import RunRecord, Trust
from tests.simulation import controller, leading, process
from tests.simulation.fetcher import Fetcher
from tests.simulation.process import Process

Install = Callable[["Patches"], None]
MUTANTS: dict[str, Install] = {}
RULES: dict[str, str] = {}
"""What the mutant does, by its name."""


class Patches:
    """Replaces attributes until the mutant's seeds have run."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: Any) -> None:
        # `create`: also what a module only finds among the builtins.
        self._stack.enter_context(patch.object(owner, name, value, create=True))


def mutant(install: Install) -> Install:
    """Register a mutant; its docstring says what the cluster does wrong."""
    MUTANTS[install.__name__] = install
    RULES[install.__name__] = (install.__doc__ or "").strip()
    return install


@contextmanager
def installed(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        MUTANTS[name](Patches(stack))
        yield


# Fetching and truncation.


@mutant
def truncates_to_the_high_watermark(patches: Patches) -> None:
    """A follower cuts its log to its high watermark instead of asking where the logs part."""
    follow = Replica._follow

    def cut(self: Replica, now_us: int) -> None:
        if not self.log.offline_reason:
            self.log.truncate(max(self.high_watermark, self.log.log_start_offset))
        follow(self, now_us)

    patches.set(Replica, "_follow", cut)


@mutant
def compares_offsets_only(patches: Patches) -> None:
    """The leader asks whether the follower's log is longer, not whether it is the same."""

    def compare(self: LeaderState, request: FetchRequest) -> Diverging | OutOfRange | None:
        log = self._log
        if request.fetch_offset < log.log_start_offset:
            return OutOfRange(request, self.standing)
        if request.fetch_offset > log.log_end_offset:
            return Diverging(request, self.standing, request.last_epoch, log.log_end_offset)
        return None

    patches.set(LeaderState, "compare", compare)


@mutant
def compares_once_only(patches: Patches) -> None:
    """After one diverging round the logs are taken to agree."""
    compare = LeaderState.compare
    seen: dict[tuple[int, int, int], None] = {}

    def once(self: LeaderState, request: FetchRequest) -> Diverging | OutOfRange | None:
        key = id(self), request.follower, request.incarnation
        problem = compare(self, request)
        if isinstance(problem, Diverging):
            within = request.fetch_offset <= self._log.log_end_offset
            if key in seen and within:
                return None
            seen[key] = None
        return problem

    patches.set(LeaderState, "compare", once)


@mutant
def leads_without_an_epoch_entry(patches: Patches) -> None:
    """A leadership does not begin in the leader's epoch cache."""
    patches.set(CommitLog, "start_epoch", lambda self, leader_epoch: None)


@mutant
def serves_older_leaderships(patches: Patches) -> None:
    """A fetch under an older leader epoch is answered and counted."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        if request.leader_epoch < self.stream.leader_epoch:
            request = replace(request, leader_epoch=self.stream.leader_epoch)
        return check(self, request)

    patches.set(LeaderState, "check", lenient)


@mutant
def serves_newer_leaderships(patches: Patches) -> None:
    """A deposed leader answers those who follow its successor, as if they followed it."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        if request.leader_epoch > self.stream.leader_epoch:
            request = replace(request, leader_epoch=self.stream.leader_epoch)
        return check(self, request)

    def send_anywhere(self: Any) -> None:
        """The follower's fetches also reach whoever led before."""
        pump(self)
        replica = self._process.replica
        position = None if replica is None else replica.position()
        if replica is None or position is None:
            return
        for node_id in replica.stream.replicas:
            if node_id not in (self._process.node_id, replica.stream.leader):
                self._process.cluster.network.send(
                    self._process.node_id, node_id, "on_fetch", self._process.node_id, position, 0
                )

    pump = Fetcher.pump
    patches.set(Fetcher, "pump", send_anywhere)
    patches.set(LeaderState, "check", lenient)


@mutant
def counts_older_incarnations(patches: Patches) -> None:
    """What an earlier run of a follower said still counts."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        progress = self._followers.get(request.follower)
        if progress is not None and request.leader_epoch == self.stream.leader_epoch:
            return progress
        return check(self, request)

    def keep(self: FollowerProgress, incarnation: int, now_us: int) -> None:
        self.incarnation = incarnation

    patches.set(LeaderState, "check", lenient)
    renew = FollowerProgress.renew

    def renew_once(self: FollowerProgress, incarnation: int, now_us: int) -> None:
        if hasattr(self, "position"):
            keep(self, incarnation, now_us)
        else:
            renew(self, incarnation, now_us)

    patches.set(FollowerProgress, "renew", renew_once)


@mutant
def acts_on_stale_answers(patches: Patches) -> None:
    """A follower does what an answer says although it has moved on since it asked."""

    def same_leadership(self: FetchRequest, other: FetchRequest) -> bool:
        return self.leader_epoch == other.leader_epoch

    patches.set(FetchRequest, "asks_the_same", same_leadership)


@mutant
def appends_batches_of_any_epoch(patches: Patches) -> None:
    """A follower takes batches of epochs above the one it asked under."""
    append = CommitLog.append_replica

    def lenient(self: CommitLog, data: bytes, *, leader_epoch: int | None = None) -> None:
        append(self, data)

    patches.set(CommitLog, "append_replica", lenient)


@mutant
def appends_without_checksums(patches: Patches) -> None:
    """A follower does not check the bytes of a batch."""
    patches.set(incoming, "check_body", lambda *arguments: None)


@mutant
def keeps_empty_epochs(patches: Patches) -> None:
    """A deposed leader keeps the epoch under which it appended nothing, and refuses older ones."""

    def follow(self: Replica, now_us: int) -> None:
        self.following = FollowerState(
            stream=self.stream,
            node_id=self.node_id,
            incarnation=self.incarnation,
            log=self.log,
            high_watermark=self.high_watermark,
            now_us=now_us,
            rebuild=self._rebuild,
        )

    patches.set(Replica, "_follow", follow)


@mutant
def acknowledges_a_log_it_will_drop(patches: Patches) -> None:
    """A follower whose log is to be rebuilt acknowledges what it holds."""
    position, decide = FollowerState.position, FollowerState.decide

    def claim(self: FollowerState) -> FetchRequest:
        log = self._log
        return replace(
            position(self),
            fetch_offset=log.log_end_offset,
            last_epoch=last_epoch_of(log),
            flushed_offset=log.flushed_offset,
        )

    def drop(self: FollowerState, answer: Answer) -> Step:
        if self._rebuild and answer.asked.asks_the_same(self.position()):
            answer = OutOfRange(answer.asked, answer.standing)
        return decide(self, answer)

    patches.set(FollowerState, "position", claim)
    patches.set(FollowerState, "decide", drop)


# The high watermark.


@mutant
def commits_alone(patches: Patches) -> None:
    """The leader commits what it holds itself."""

    def advance(self: LeaderState) -> bool:
        log = self._log
        own = log.flushed_offset if self.counts_flushed else log.log_end_offset
        rose = self.can_commit and own > self.high_watermark
        self.high_watermark = max(self.high_watermark, own) if rose else self.high_watermark
        return rose

    patches.set(LeaderState, "_advance", advance)


@mutant
def commits_below_the_minimum(patches: Patches) -> None:
    """The high watermark moves while the ISR is below its minimum."""
    patches.set(LeaderState, "can_commit", property(lambda self: True))


@mutant
def counts_unflushed_positions(patches: Patches) -> None:
    """Under flush `group` the leader counts what followers only have in memory."""
    fetch = LeaderState.fetch

    def generous(self: LeaderState, request: FetchRequest, now_us: int) -> Any:
        return fetch(self, replace(request, flushed_offset=request.fetch_offset), now_us)

    patches.set(LeaderState, "fetch", generous)


@mutant
def counts_its_own_unflushed_log(patches: Patches) -> None:
    """Under flush `group` the leader counts what it only has in memory itself."""

    def advance(self: LeaderState) -> bool:
        if not self.can_commit:
            return False
        committed = self._log.log_end_offset
        for member in self._in_sync.maximal:
            if member != self._node_id:
                committed = min(committed, self._followers[member].position)
        rose = committed > self.high_watermark
        self.high_watermark = max(self.high_watermark, committed)
        return rose

    patches.set(LeaderState, "_advance", advance)


@mutant
def believes_the_leaders_high_watermark(patches: Patches) -> None:
    """A follower's high watermark passes its own log end."""
    settle = FollowerState.settle

    def beyond(self: FollowerState, answer: Answer, step: Step, now_us: int) -> bool:
        settle(self, answer, step, now_us)
        rose = answer.standing.high_watermark > self.high_watermark
        if isinstance(step, Append) and rose:
            self.high_watermark = answer.standing.high_watermark
        return rose

    patches.set(FollowerState, "settle", beyond)


@mutant
def takes_the_high_watermark_while_diverging(patches: Patches) -> None:
    """A follower takes the leader's high watermark although the logs are not aligned."""
    settle = FollowerState.settle

    def eager(self: FollowerState, answer: Answer, step: Step, now_us: int) -> bool:
        rose = settle(self, answer, step, now_us)
        reached = min(answer.standing.high_watermark, self._log.log_end_offset)
        if isinstance(answer, Diverging) and reached > self.high_watermark:
            self.high_watermark = reached
            return True
        return rose

    patches.set(FollowerState, "settle", eager)


# The ISR.


@mutant
def shrinks_before_the_commit(patches: Patches) -> None:
    """A member that is being removed counts no more, before the metadata says so."""
    follow = InSyncReplicas._follow

    def shrink(self: InSyncReplicas) -> None:
        follow(self)
        if self.pending is not None:
            self.maximal = self.pending.isr

    patches.set(InSyncReplicas, "_follow", shrink)


@mutant
def counts_joiners_late(patches: Patches) -> None:
    """A member that is being added counts only once the leader has heard that it was."""

    def follow(self: InSyncReplicas) -> None:
        self.maximal = self.committed

    patches.set(InSyncReplicas, "_follow", follow)


@mutant
def adds_followers_that_lag(patches: Patches) -> None:
    """A follower joins the ISR before it has reached the high watermark."""

    def may_join(self: LeaderState, replica: NodeId, progress: FollowerProgress) -> bool:
        node = self._nodes.get(replica)
        alive = node is not None and not node.fenced and node.incarnation == progress.incarnation
        return alive and progress.position >= self.epoch_start_offset

    patches.set(LeaderState, "_may_join", may_join)


@mutant
def adds_followers_behind_the_epoch(patches: Patches) -> None:
    """A follower joins the ISR before it has reached the start of the leader's epoch."""

    def may_join(self: LeaderState, replica: NodeId, progress: FollowerProgress) -> bool:
        node = self._nodes.get(replica)
        alive = node is not None and not node.fenced and node.incarnation == progress.incarnation
        return alive and progress.position >= self.high_watermark

    patches.set(LeaderState, "_may_join", may_join)


@mutant
def adds_any_incarnation(patches: Patches) -> None:
    """The registry does not ask which run of a node the leader means."""
    check = leadership_commands._check_isr_member

    def lenient(tables: Any, stream: StreamMetadata, node_id: NodeId, incarnation: int) -> None:
        node = tables.nodes.get(node_id)
        check(tables, stream, node_id, incarnation if node is None else node.incarnation)

    patches.set(leadership_commands, "_check_isr_member", lenient)


@mutant
def takes_unknown_for_refused(patches: Patches) -> None:
    """A change of unknown outcome is taken for one that did not happen."""
    settle = InSyncReplicas.settle

    def revert(self: InSyncReplicas, change: IsrChange, outcome: Outcome, now_us: int) -> None:
        if outcome is Outcome.UNKNOWN:
            outcome = Outcome.INELIGIBLE
        settle(self, change, outcome, now_us)

    patches.set(InSyncReplicas, "settle", revert)


@mutant
def retries_under_another_id(patches: Patches) -> None:
    """A change of unknown outcome is proposed again as another command."""
    propose = Process._propose_isr

    def anew(self: Process, replica: Replica, change: IsrChange) -> None:
        self._isr_command = None
        propose(self, replica, change)

    patches.set(Process, "_propose_isr", anew)


@mutant
def changes_isr_without_comparing(patches: Patches) -> None:
    """The registry takes an ISR from a leader that acted on older metadata."""
    patches.set(leadership_commands, "check_stream_epoch", lambda stream, stream_epoch: None)


# Eligibility and elections.


@mutant
def forgets_who_left_below_the_minimum(patches: Patches) -> None:
    """There is no ELR, and nobody is remembered: the last replica standing is all that counts."""

    def last(stream: StreamMetadata, isr: Sequence[NodeId], elr: Sequence[NodeId]) -> Any:
        return () if isr else stream.isr or stream.last_known

    patches.set(elections, "next_elr", lambda stream, isr, distrusted=(): ())
    patches.set(elections, "_last_known", last)


@mutant
def keeps_the_elr_under_a_new_minimum(patches: Patches) -> None:
    """Changing the minimum leaves those eligible that were so under the old one."""
    patches.set(stream_commands, "without_elr", lambda stream: stream)


@mutant
def resumes_leaderships(patches: Patches) -> None:
    """A node that registers anew keeps its leaderships and its place in every ISR."""
    ended = node_commands._session_ended

    def keep(tables: Any, node: NodeMetadata, **rest: Any) -> list[Any]:
        return ended(tables, node, **rest) if node.fenced else []

    patches.set(node_commands, "_session_ended", keep)


@mutant
def elects_without_waiting(patches: Patches) -> None:
    """With ISR and ELR empty, whoever is there is elected."""
    patches.set(leadership_commands, "_check_all_told", lambda *arguments: None)

    def choose(
        stream: StreamMetadata, nodes: Mapping[NodeId, NodeMetadata], reports: Mapping[NodeId, Any]
    ) -> dict[str, Any] | None:
        if stream.leader != NO_NODE or stream.isr or stream.elr:
            return None
        alive = [r for r in stream.replicas if not nodes[r].fenced and r in reports]
        if not alive:
            return None
        return {"op": "elect_leader", "stream_id": stream.id, "leader": alive[0]}

    patches.set(controller, "choose_unclean", choose)


@mutant
def elects_the_shortest_log(patches: Patches) -> None:
    """With ISR and ELR empty, it is not the replica that holds most that is elected."""
    patches.set(unclean, "max", min)


@mutant
def elects_by_old_reports(patches: Patches) -> None:
    """A log's end counts although its node has lost power since it told."""
    patches.set(leadership_commands, "_check_all_told", lambda *arguments: None)


# Restart trust.


@mutant
def trusts_logs_after_a_power_failure(patches: Patches) -> None:
    """A node vouches for its logs although the machine has restarted."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), power_lost=False)

    patches.set(RunRecord, "begun", begin)


@mutant
def trusts_a_clean_stop_for_ever(patches: Patches) -> None:
    """The mark of a clean stop is not taken back when the next run begins."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), clean=self.clean)

    patches.set(RunRecord, "begun", begin)


@mutant
def trusts_any_folder(patches: Patches) -> None:
    """A data folder that the registered session did not write is believed."""
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(record, None, problems)

    patches.set(process, "judge", lenient)


@mutant
def forgets_runs_that_never_registered(patches: Patches) -> None:
    """A run that ended before it registered leaves no trace of what it found lost."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return begun(replace(self, power_lost=False), session, boot_id)

    patches.set(RunRecord, "begun", begin)


@mutant
def trusts_damaged_logs(patches: Patches) -> None:
    """A log in which recovery found corruption is vouched for."""
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(record, registered, dict.fromkeys(problems, ""))

    patches.set(process, "judge", lenient)


@mutant
def trusts_failed_flushes(patches: Patches) -> None:
    """That an fsync failed is forgotten at the next start."""
    patches.set(RunRecord, "suspecting", lambda self, stream_id: self)


@mutant
def flushes_again_after_a_failure(patches: Patches) -> None:
    """A failed fsync is tried again, and its success believed."""

    def go_on(self: CommitLog, error: OSError, doing: str) -> StorageError:
        return StorageError(doing)

    def retry(self: Process, error: StorageError) -> None:
        self.request_flush()

    patches.set(CommitLog, "_take_offline", go_on)
    patches.set(Process, "fail", retry)


@mutant
def cuts_corruption_off(patches: Patches) -> None:
    """Recovery cuts the log at the first bad batch, although valid ones follow."""
    patches.set(recovery._Scan, "_find_valid_behind", lambda *arguments: "")


@mutant
def believes_a_late_registration(patches: Patches) -> None:
    """A registration of a run that is over takes the node from the run that replaced it."""
    decide = node_commands.register_node

    def lenient(tables: Any, fields: Any, revision: int) -> Any:
        fields.text("replaces", "")
        fields._values.pop("replaces", None)
        return decide(tables, fields, revision)

    operations = {**registry.OPERATIONS, "register_node": (1, lenient)}
    patches.set(registry, "OPERATIONS", operations)


@mutant
def confirms_flushes_too_early(patches: Patches) -> None:
    """A follower confirms its flush while the leader still counts what is in memory only."""
    may_confirm = Replica._may_confirm_flush

    def early(self: Replica) -> bool:
        if self.following is not None:
            self.following._confirmable = True
        return may_confirm(self)

    patches.set(Replica, "_may_confirm_flush", early)


@mutant
def confirms_without_a_flush(patches: Patches) -> None:
    """A replica confirms a flush that has not taken place."""
    confirmation = Replica.flush_confirmation

    def at_once(self: Replica) -> dict[str, Any] | None:
        self._flush_target = 0
        return confirmation(self)

    patches.set(Replica, "flush_confirmation", at_once)


@mutant
def needs_no_flush_confirmation(patches: Patches) -> None:
    """Changing flush to `group` earns trust after a power failure at once."""
    flushes = property(lambda self: self.config.flush == "group")
    patches.set(StreamMetadata, "flushes_before_ack", flushes)


# Sessions.


@mutant
def speaks_without_a_lease(patches: Patches) -> None:
    """A leader speaks whether or not its session may have been ended."""
    patches.set(SessionLease, "holds", lambda self, now_us: True)


@mutant
def counts_the_lease_from_the_grant(patches: Patches) -> None:
    """The lease runs from when the grant arrived, not from when its heartbeat was sent."""
    on_grant = Process.on_grant

    def late(self: Process, sent_at_us: int) -> None:
        on_grant(self, self.world.now)

    patches.set(Process, "on_grant", late)


@mutant
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


@mutant
def grants_to_who_is_behind(patches: Patches) -> None:
    """A node gets a lease before it has heard that it was fenced."""
    heard = Sessions.heard

    def lenient(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        return heard(self, replace(heartbeat, applied_revision=1 << 60), now_us)

    patches.set(Sessions, "heard", lenient)


@mutant
def grants_without_authority(patches: Patches) -> None:
    """A controller goes on granting leases after it has lost its majority."""
    heard = Sessions.heard

    def sure(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        self._sure_at_us = now_us
        return heard(self, heartbeat, now_us)

    patches.set(Sessions, "heard", sure)


@mutant
def grants_whole_leases(patches: Patches) -> None:
    """A lease does not become shorter by the age of its controller's certainty."""
    heard = Sessions.heard

    def whole(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
        return None if heard(self, heartbeat, now_us) is None else heartbeat.sent_at_us

    patches.set(Sessions, "heard", whole)


@mutant
def fences_without_grace(patches: Patches) -> None:
    """A new controller waits for first heartbeats only, whatever leases its predecessors gave."""
    init = Sessions.__init__

    def hasty(self: Sessions, *arguments: Any, **rest: Any) -> None:
        init(self, *arguments, **{**rest, "earlier_sure_at_us": 0})

    patches.set(Sessions, "__init__", hasty)


# Answers to publishers.


@mutant
def acknowledges_before_the_commit(patches: Patches) -> None:
    """Level `all` is acknowledged once the leader has appended."""

    def at_once(self: StreamIngest) -> None:
        while self._pending:
            done = self._pending.popleft()
            self._forget(done)
            if done.replies:
                self._ack(done.replies, done.positions, done.base_offset)

    patches.set(StreamIngest, "committed", at_once)


@mutant
def deposed_leaders_answer(patches: Patches) -> None:
    """A deposed leader tells its publishers that nobody knows, while the successor commits."""
    drop = StreamIngest.drop

    def answer(self: StreamIngest) -> None:
        self.fail(UnknownOutcomeError("this node leads no more"))
        drop(self)

    patches.set(StreamIngest, "drop", answer)


@mutant
def denies_what_it_appended(patches: Patches) -> None:
    """What was appended before the ISR fell below its minimum is refused, not called unknown."""
    patches.set(leading, "NotEnoughReplicasAfterAppendError", NotEnoughReplicasError)
