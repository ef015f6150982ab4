"""The turns of one member: the fixed order in which Raft, the journal and the links are driven.

    take in → sync the journal → let Raft decide, commit, apply → sync what that wrote → send → tell

after every message, and at least once per tick. So nothing counts before it is durable, neither an
entry nor a vote nor an acknowledgement, and all messages of a turn share one flush.

**safety** The journal is synced on its own thread. Raft pauses until the sync has ended:
messages that arrive wait, and only frames that promise nothing are sent: a leader's heartbeats, and
frames of the extension (sessions). So a disk that blocks for a second costs neither the leadership
nor a lease.

Fail-stop: an I/O error, an entry of newer software, or a bug here ends this node's part in the
group. Its promises are in the journal.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.background import run_in_background
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.controller_context import ControllerContext
from jetstream_server.metadata.member.extension import RaftThreadExtension, is_extension_frame
from jetstream_server.metadata.member.proposals import Outcome, Proposals
from jetstream_server.metadata.member.state_machine import RegistryStateMachine
from jetstream_server.metadata.raft.core import SURELY_NOT_APPLIED, RaftCore
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.handshake import Capability, Identity, cluster_digest
from jetstream_server.metadata.raft.joining import encode_group
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import Message, decode, encode
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.raft.voter_change import Verdict
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.state.changes import Change
from jetstream_server.metadata.state.state_image import StateImage
from jetstream_server.net.certificates import Certificates

logger = structlog.get_logger(__name__)

LOST_SECONDS = 5.0
"""A node that has had no metadata leader for so long dials every node that it knows of, and asks
them who votes. The voters that it knows may have been replaced while it was down, or it lost its
folder and knows only its configuration."""

CALM_TICKS = 4
"""Ticks between the turns of a leader that is alone, and the most between those of a follower of a
leader that it hears. Nothing is to be done in them."""

AskGroup = Callable[[str, Identity, Certificates | None], Awaitable[Group]]


@dataclass(frozen=True, slots=True)
class News:
    """The result of a turn: changes up to `revision`, and outcomes of proposals."""

    changes: list[Change]
    revision: int
    outcomes: list[tuple[str, Outcome]]


class Listener(Protocol):
    """Called on the member's thread."""

    def member_news(self, news: News) -> None: ...

    def member_status(self, status: MetadataStatus) -> None:
        """Leader, role, term or controller epoch have changed."""

    def member_failed(self, reason: str) -> None: ...


class MemberLoop:
    """See the module. Everything is called on one event loop; the journal is open."""

    def __init__(
        self,
        config: MemberConfig,
        journal: Journal,
        group_file: GroupFile,
        listener: Listener,
        extension: RaftThreadExtension | None = None,
        *,
        make_core: Callable[..., RaftCore] = RaftCore,
        make_links: Callable[..., PeerLinks] = PeerLinks,
        ask_group: AskGroup | None = None,
        on_turn_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """make_core, make_links: create the Raft core and the links; the simulation passes its
        own. ask_group: asks a node who votes (joining.py); None: no node can be asked.
        on_turn_ended: called after each turn; `next_turn_at` may have changed."""
        self.failure = ""
        self.not_leading = asyncio.Event()
        self.proposals = Proposals()
        self.machine = RegistryStateMachine(self.proposals)
        group = group_file.group
        self.status = MetadataStatus.absent(config.node_id, group.voters)
        self._config = config
        self._is_to_be_alone = config.is_alone
        self._journal = journal
        self._group_file = group_file
        self._listener = listener
        self._answered_addresses: Mapping[NodeId, str] = {}
        voters = group.voter_set
        self._core = make_core(config.node_id, voters, journal, self.machine, config.raft)
        identity = Identity(config.node_id, os.urandom(16), config.secret)
        self.links = make_links(
            identity,
            self._addresses(),
            self,
            self._cluster_digest,
            config.links,
            superseded=self._superseded_digests,
            certificates=config.certificates,
            group=self._group_for_new_nodes,
        )
        self._controller_context = ControllerContext(
            config.node_id, self._core, self.links, self.machine.registry, extension,
            group.recoveries,
        )  # fmt: skip
        self._core.core_is_certain = lambda: self._controller_context.is_certain
        self._dialled: dict[NodeId, tuple[str, ...]] = {}
        self._seen_voters: object = None
        self._led_at = 0.0
        self._ask_group = ask_group
        self._identity = identity
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._turn_due = False
        self._compacting = False
        # Messages that have arrived and are not processed yet, in order.
        self._arrived: deque[Callable[[], None]] = deque()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="metadata-journal")
        self._syncing: asyncio.Future[None] | None = None
        self._has_waited = False
        self._closed = False
        self._beat_at = self._taken_in_at = 0.0
        self._turned_at = 0.0
        self._on_turn_ended = on_turn_ended
        self._throttle = LogThrottle()
        self._was_learner = False
        self._journal_loss = journal.lost
        if journal.cut_bytes and not self._journal_loss:
            self._journal_loss = f"{journal.cut_bytes} bytes were cut off the journal"

    def propose(self, texts: list[str], patience: float, term: int | None) -> None:
        deadline = asyncio.get_running_loop().time() + patience
        for text in texts:
            self.proposals.add(text, deadline, term)
        if self.failure:
            self.abandon(self.failure)
        else:
            self.turn_soon()

    def change_voters(
        self, wanted: tuple[NodeId, ...], done: Callable[[Verdict, str], None]
    ) -> None:
        """As metadata leader, change the voters to these, if that may be now."""
        if self.failure:
            done(Verdict.WAIT, self.failure)
            return
        known = self._addresses(is_lost=True) | {self._config.node_id: (self._config.listen,)}
        known |= self._addresses()
        addresses = {voter: (*known.get(voter, ()), "")[0] for voter in wanted}
        self._core.change_voters(Voters.of(addresses, self._core.voters.recoveries), done)
        self.turn_soon()

    def abandon(self, reason: str) -> None:
        """End every proposal, because this node takes no further part."""
        self.proposals.abandon(reason)
        self._publish_results()

    def hand_over(self) -> bool:
        """Ask a follower to take over, which saves an election timeout. Returns whether one was
        asked."""
        if self.failure or not self._core.hand_over():
            return False
        self.turn()
        return True

    def turn_soon(self) -> None:
        """Run a turn once everything that has arrived is processed."""
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        self._turn_due = False
        if self.failure or self._closed:
            return
        self._turned_at = asyncio.get_running_loop().time()
        if self._syncing is not None:
            self._has_waited = True
            self._guarded(self._wait_for_the_disk)
        else:
            self._guarded(self._take_in)
        self._on_turn_ended()

    @property
    def next_turn_at(self) -> float:
        """When a turn is due, in the loop's time, though nothing has arrived. A leader owes
        heartbeats. A follower that is linked to its leader has nothing to do but to hear them, and
        to miss them in time. Whoever waits for something looks each tick."""
        raft = self._config.raft
        pause = raft.tick
        is_waiting = self._syncing is not None or bool(self.proposals)
        if not is_waiting and self.status.leader == self._config.node_id:
            pause = CALM_TICKS * raft.tick if self.is_alone else raft.heartbeat
        elif not is_waiting and self.status.leader != NO_NODE:
            pause = min(CALM_TICKS * raft.tick, max(self._core.election_in(), raft.tick))
        return self._turned_at + pause

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except JetstreamError as error:
            self.fail(error.message)

    async def close(self) -> None:
        """Close the links. Returns when the disk is not used any more."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
        await self.links.close()
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self._disk.shutdown()

    def fail(self, reason: str) -> None:
        """End this node's part in the group."""
        if self.failure:
            return
        self.failure = reason
        logger.critical("metadata_failed", reason=reason)
        self.abandon(reason)
        self._listener.member_failed(reason)

    # One turn, in three steps. Between two steps the journal is synced.

    def _take_in(self) -> None:
        while self._arrived:
            self._arrived.popleft()()
        self._submit_proposals(asyncio.get_running_loop().time())
        self._taken_in_at = asyncio.get_running_loop().time()
        self._once_synced(self._decide)

    def _decide(self) -> None:
        late = asyncio.get_running_loop().time() - self._taken_in_at
        if self._arrived and late > self._config.raft.heartbeat:
            # Process the messages that have arrived before deciding which peers were silent.
            self._take_in()
            return
        self._core.tick()
        self._once_synced(self._send)

    def _send(self) -> None:
        now = asyncio.get_running_loop().time()
        for peer, message in self._core.take_messages():
            if not self.links.send(peer, encode(message)):
                self._core.undeliverable(message)
        self._beat_at = now
        if self._controller_context.turn(now) or self._core.needs_turn() or self._has_waited:
            self._has_waited = False
            self.turn_soon()
        self.proposals.pass_time(now)
        self._learn_group()
        self._follow_voters()
        self._publish_results()
        self._compact_if_due()

    def _once_synced(self, step: Callable[[], None]) -> None:
        """Continue with `step` once everything in the journal is durable."""
        if self._journal.is_synced:
            step()
            return
        loop = asyncio.get_running_loop()
        self._syncing = loop.run_in_executor(self._disk, self._journal.sync)
        self._syncing.add_done_callback(lambda ended: self._synced(ended, step))

    def _synced(self, ended: asyncio.Future[None], step: Callable[[], None]) -> None:
        self._syncing = None
        error = ended.exception()
        if self.failure or self._closed:
            return
        if error is None:
            self._guarded(step)
        else:
            self.fail(error.message if isinstance(error, JetstreamError) else repr(error))

    def _wait_for_the_disk(self) -> None:
        """Send keep-alives during a sync: they promise nothing."""
        now = asyncio.get_running_loop().time()
        if self._core.role() == "leader" and now - self._beat_at >= self._config.raft.heartbeat:
            self._beat_at = now
            for peer, message in self._core.heartbeats():
                self.links.send(peer, encode(message))
        self._controller_context.turn(now)
        self.proposals.pass_time(now)
        self._publish_results()

    def _learn_group(self) -> None:
        """Store the group's id, its recoveries and its voters, so that the next start knows them
        before it has read the log or has peers."""
        known, settings = self._group_file.group, self.machine.registry.settings
        group, voters = known, self._core.committed_voters
        if settings.cluster_id:
            group = replace(group, cluster_id=settings.cluster_id)
        if len(settings.recoveries) > len(group.recoveries):
            group = replace(group, recoveries=settings.recoveries)
        if voters is not None:
            group = replace(group, addresses=voters.addresses, is_named=True)
        if group != known:
            self._group_file.replace(group)

    def _follow_voters(self) -> None:
        """Link this node to the voters in force."""
        now = asyncio.get_running_loop().time()
        if self._core.leader_id() != NO_NODE or not self._led_at:
            self._led_at = now
        is_lost = now - self._led_at > LOST_SECONDS
        if not is_lost:
            self._answered_addresses = {}
        elif self._may_ask(now) and self._ask_group is not None:
            self._asked_at = now
            self._asking = run_in_background(self._ask(self._ask_group), "search for voters")
        seen = (
            self._core.voters,
            self.machine.registry.revision,
            is_lost,
            self._answered_addresses,
        )
        if seen != self._seen_voters:
            self._seen_voters = seen
            addresses = self._addresses(is_lost=is_lost)
            if addresses != self._dialled:
                self._dialled = addresses
                self.links.use(addresses)

    def _may_ask(self, now: float) -> bool:
        is_asking = self._asking is not None and not self._asking.done()
        return not is_asking and now - self._asked_at > LOST_SECONDS

    async def _ask(self, ask_group: AskGroup) -> None:
        """Ask the nodes that are dialled who votes. The links report those that do not answer."""
        known = self._group_file.group.cluster_id
        others = [at for peer, at in self._dialled.items() if peer != self._config.node_id]
        answered: dict[NodeId, str] = {}
        for address in dict.fromkeys(address for addresses in others for address in addresses):
            try:
                group = await ask_group(address, self._identity, self._config.certificates)
            except JetstreamError:
                continue
            if known in ("", group.cluster_id):
                answered.update(group.addresses)
        self._answered_addresses = answered

    def _addresses(self, *, is_lost: bool = False) -> dict[NodeId, tuple[str, ...]]:
        """Where the voters in force may be: as they have registered, as the group has agreed, and
        as the configuration says. is_lost: other nodes, too."""
        nodes, configured = self.machine.registry.nodes, self._config.voters
        agreed = dict(self._core.voters.addresses)
        ahead = self._core.addresses_ahead
        others: set[NodeId] = (
            {*nodes, *configured, *ahead, *self._answered_addresses} if is_lost else set()
        )
        others -= {self._config.node_id}
        addresses = {}
        for node_id in sorted({*agreed, *others}):
            registered = nodes[node_id].addresses.raft if node_id in nodes else ""
            answered = (
                ahead.get(node_id, ""),
                registered,
                self._answered_addresses.get(node_id, ""),
            )
            known = (*answered, agreed.get(node_id, ""), configured.get(node_id, ""))
            addresses[node_id] = tuple(dict.fromkeys(address for address in known if address))
        return addresses

    def _group_for_new_nodes(self) -> bytes:
        """The group, as far as this node has applied its log."""
        group = self._group_file.group
        voters = self._core.committed_voters or group.voter_set
        at = self._addresses()
        known = {voter: (*at.get(voter, ()), old)[0] for voter, old in voters.addresses}
        return encode_group(Voters.of(known, voters.recoveries), group.cluster_id, group.recoveries)

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole group. It needs no port then."""
        return self._is_to_be_alone and self._core.voters.ids == (self._config.node_id,)

    def _submit_proposals(self, now: float) -> None:
        if self._core.leader_id() == NO_NODE:
            self.proposals.without_leader(self._why_no_leader())
            return
        if self._controller_context.is_recovering:
            return
        leading = self._core.raftCurrentTerm if self._core.role() == "leader" else None
        while (batch := self.proposals.next_batch(now, leading)) is not None:
            number, command, term = batch
            self._core.submit(command, partial(self._submission_failed, number), term=term)

    def _submission_failed(self, number: int, reason: int) -> None:
        self.proposals.failed(number, surely=reason in SURELY_NOT_APPLIED)

    def _why_no_leader(self) -> str:
        problems = [f"node {peer} {why}" for peer, why in sorted(self.links.problems.items())]
        if self._core.is_member() and not self._core.votes():
            problems.insert(0, f"this node does not vote: {self._core.no_vote_reason()}")
        return "there is no metadata leader" + (f" ({'; '.join(problems)})" if problems else "")

    # Results.

    def _publish_results(self) -> None:
        """Pass on the results of the turn."""
        changes = self.machine.registry.take_changes()
        outcomes = self.proposals.take_outcomes()
        revision = self.machine.registry.revision
        before, self.status = self.status, self._status_now(revision)
        if changes or outcomes or revision != before.revision:
            self._listener.member_news(News(changes, revision, outcomes))
        if before.leadership != self.status.leadership:
            logger.info("metadata_leadership", **self.status.leadership._asdict())
            self._listener.member_status(self.status)
        self._log_voter_state()
        if self.status.role != "leader":
            self.not_leading.set()
        else:
            self.not_leading.clear()

    def _log_voter_state(self) -> None:
        """Log when this voter becomes a learner, and when the group has taken it back."""
        is_learner = self._core.is_member() and self._core.is_learner()
        if is_learner == self._was_learner:
            return
        self._was_learner = is_learner
        if is_learner:
            self._journal_loss = self._journal_loss or self._core.no_vote_reason()
            logger.warning("metadata_vote_withheld", reason=self._core.no_vote_reason())
        else:
            logger.info("metadata_vote_restored", term=self._core.raftCurrentTerm)

    def _status_now(self, revision: int) -> MetadataStatus:
        core, journal = self._core, self._journal
        return MetadataStatus(
            node_id=self._config.node_id,
            leader=NO_NODE if self.failure else core.leader_id(),
            role="follower" if self.failure else core.role(),
            term=core.raftCurrentTerm,
            revision=revision,
            commit_index=core.raftCommitIndex,
            applied_index=core.raftLastApplied,
            journal_entries=len(journal),
            journal_bytes=journal.size_bytes,
            voters=core.voters.ids,
            voter_addresses=core.voters.addresses,
            are_voters_committed=core.are_voters_committed,
            connected=self.links.connected_nodes(),
            problems=tuple(sorted(self.links.problems.items())),
            failure=self.failure,
            controller_epoch=None if self.failure else self._controller_context.controller_epoch,
            journal_loss=self._journal_loss,
        )

    # Events of the links.

    def link_up(self, peer: NodeId, capabilities: Capability) -> None:
        has_pre_vote = Capability.PRE_VOTE in capabilities
        self._arrive(partial(self._core.connected, peer, has_pre_vote=has_pre_vote))

    def link_down(self, peer: NodeId) -> None:
        self._arrive(partial(self._core.disconnected, peer))

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        if is_extension_frame(payload):
            if not self.failure:
                self._controller_context.received(peer, payload)
            return
        self._arrive(partial(self._receive, peer, decode(payload)))

    def _arrive(self, event: Callable[[], None]) -> None:
        if not self.failure:
            self._arrived.append(event)
            self.turn_soon()

    def superseded(self, reason: str) -> None:
        self.fail(reason)

    def _receive(self, peer: NodeId, message: Message) -> None:
        try:
            self._core.receive(peer, message)
        except StorageError as error:
            # The two histories contradict each other. Nothing was changed here, and the other
            # members continue.
            if self._throttle.is_due(str(peer), error.message):
                logger.error("metadata_histories_differ", peer=peer, reason=error.message)
            self.links.drop(peer, error.message)

    def _cluster_digest(self) -> bytes:
        group = self._group_file.group
        return cluster_digest(group.cluster_id, group.recoveries)

    def _superseded_digests(self) -> list[bytes]:
        group = self._group_file.group
        return [
            cluster_digest(group.cluster_id, group.recoveries[:count])
            for count in range(len(group.recoveries))
        ]

    # Compaction

    def _compact_if_due(self) -> None:
        due = (
            len(self._journal) > self._config.compact_after_entries
            or self._journal.size_bytes > self._config.compact_after_bytes
        )
        base = self._core.applied_entries() if due and not self._compacting else ()
        if len(base) < 2 or base[-1].index <= self._journal.snapshot_index:
            return
        self._compacting = True
        image = self.machine.registry.capture()
        task = asyncio.create_task(self._compact(image, base))
        task.add_done_callback(self._compacted)

    async def _compact(self, image: StateImage, base: tuple[Entry, ...]) -> None:
        """Encode the state on another thread, then make it the new start of the log."""
        data = await asyncio.get_running_loop().run_in_executor(None, image.encode)
        if not self.failure:
            snapshot = self._core.snapshot(data, base)
            self._arrive(partial(self._install, snapshot, base[0].index))

    def _install(self, snapshot: Snapshot, keep_from: int) -> None:
        self._compacting = False
        if self._journal.snapshot_index < snapshot.index:
            self._journal.install(snapshot, keep_from=keep_from)
            self._core.compacted()

    def _compacted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error.message if isinstance(error, JetstreamError) else repr(error))

    def loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler: a bug here must not go unnoticed."""
        error = context.get("exception")
        logger.error("metadata_thread_error", message=context["message"], exc_info=error)
        self.fail(f"internal error: {error!r}")
