"""One member's turns: the fixed order in which Raft, the journal and the links are driven.

    sync the journal → let Raft decide, commit, apply → sync what that wrote → send → tell

after every message and at least each tick. So no entry counts, no vote is cast and no
acknowledgement leaves before it is durable, and all messages of a turn share one flush.

Fail-stop: an I/O error, an entry written by newer software, or a mistake in here ends this node's
part in the group, and only that: what was promised is in the journal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.carriage import Carriage
from jetstream_server.metadata.changes import Change
from jetstream_server.metadata.group_file import GroupFile
from jetstream_server.metadata.handshake import Identity, cluster_digest
from jetstream_server.metadata.journal import Journal
from jetstream_server.metadata.machine import Machine
from jetstream_server.metadata.member_config import MemberConfig
from jetstream_server.metadata.passenger import Passenger, is_passengers
from jetstream_server.metadata.proposals import Outcome, Proposals
from jetstream_server.metadata.raft_core import SURELY_NOT_APPLIED, RaftCore
from jetstream_server.metadata.raft_messages import decode, encode
from jetstream_server.metadata.state_image import StateImage
from jetstream_server.metadata.status import MetadataStatus
from jetstream_server.metadata.transport import PeerLinks

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """What a turn brought: changes up to `revision`, and how proposals ended."""

    changes: list[Change]
    revision: int
    outcomes: list[tuple[str, Outcome]]


class Listener(Protocol):
    """Who wants to know; called on the member's thread."""

    def member_news(self, news: News) -> None: ...

    def member_status(self, status: MetadataStatus) -> None:
        """Leader, role, term or controller epoch is another one than before."""

    def member_failed(self, reason: str) -> None: ...


class Turns:
    """See the module. Everything is called on one event loop; the journal is open."""

    def __init__(
        self,
        config: MemberConfig,
        journal: Journal,
        group_file: GroupFile,
        listener: Listener,
        passenger: Passenger | None = None,
        *,
        make_core: Callable[..., RaftCore] = RaftCore,
        make_links: Callable[..., PeerLinks] = PeerLinks,
    ) -> None:
        """make_core, make_links: what decides and what connects; the simulation has its own."""
        self.failure = ""
        self.not_leading = asyncio.Event()
        self.proposals = Proposals()
        self.machine = Machine(self.proposals)
        voters = tuple(sorted(config.voters))
        self.status = MetadataStatus.absent(config.node_id, voters)
        self._config = config
        self._journal = journal
        self._group_file = group_file
        self._listener = listener
        self._core = make_core(config.node_id, voters, journal, self.machine, config.raft)
        identity = Identity(config.node_id, os.urandom(16), config.secret)
        self.links = make_links(
            identity,
            config.voters,
            self,
            self._cluster_digest,
            config.links,
            superseded=self._superseded_digests,
        )
        self._carriage = Carriage(
            config.node_id, voters, self._core, self.links, self.machine.registry, passenger,
            group_file.group.recoveries,
        )  # fmt: skip
        self._turn_due = False
        self._compacting = False

    def propose(self, texts: list[str], patience: float) -> None:
        deadline = asyncio.get_running_loop().time() + patience
        for text in texts:
            self.proposals.add(text, deadline)
        if self.failure:
            self.abandon(self.failure)
        else:
            self.turn_soon()

    def abandon(self, reason: str) -> None:
        """End every proposal: this node takes part no more."""
        self.proposals.abandon(reason)
        self._tell()

    def hand_over(self) -> bool:
        """Ask a follower to take over, which saves an election timeout; whether one was asked."""
        if self.failure or not self._core.hand_over():
            return False
        self.turn()
        return True

    def turn_soon(self) -> None:
        """A turn once everything that has already arrived has been taken in."""
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        self._turn_due = False
        if self.failure:
            return
        try:
            self._take_turn()
        except JetstreamError as error:
            self.fail(error.message)

    def fail(self, reason: str) -> None:
        """Take no further part."""
        if self.failure:
            return
        self.failure = reason
        _log.critical("metadata_failed", reason=reason)
        self.abandon(reason)
        self._listener.member_failed(reason)

    def _take_turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._submit_proposals(now)
        self._journal.sync()
        self._core.tick()
        self._journal.sync()
        for peer, message in self._core.take_messages():
            if not self.links.send(peer, encode(message)):
                self._core.undeliverable(message)
        if self._carriage.turn(now) or self._core.needs_turn():
            self.turn_soon()
        self.proposals.pass_time(now)
        self._learn_group()
        self._tell()
        self._compact_if_due()

    def _learn_group(self) -> None:
        """Remember which group this is where the next start finds it before it has any peers."""
        group, settings = self._group_file.group, self.machine.registry.settings
        if settings.cluster_id and group.cluster_id != settings.cluster_id:
            self._group_file.set_cluster_id(settings.cluster_id)
        if len(settings.recoveries) > len(group.recoveries):
            self._group_file.replace(replace(group, recoveries=settings.recoveries))

    def _submit_proposals(self, now: float) -> None:
        if self._core.leader_id() == NO_NODE:
            self.proposals.without_leader(self._why_no_leader())
            return
        if self._carriage.is_recovering:
            return
        while (batch := self.proposals.next_batch(now)) is not None:
            number, command = batch
            self._core.submit(command, partial(self._submission_failed, number))

    def _submission_failed(self, number: int, reason: int) -> None:
        self.proposals.failed(number, surely=reason in SURELY_NOT_APPLIED)

    def _why_no_leader(self) -> str:
        problems = [f"node {peer} {why}" for peer, why in sorted(self.links.problems.items())]
        return "there is no metadata leader" + (f" ({'; '.join(problems)})" if problems else "")

    # Telling

    def _tell(self) -> None:
        """Pass on what the turn has brought."""
        changes = self.machine.registry.take_changes()
        outcomes = self.proposals.take_outcomes()
        revision = self.machine.registry.revision
        before, self.status = self.status, self._status_now(revision)
        if changes or outcomes or revision != before.revision:
            self._listener.member_news(News(changes, revision, outcomes))
        if before.leadership != self.status.leadership:
            _log.info("metadata_leadership", **self.status.leadership._asdict())
            self._listener.member_status(self.status)
        if self.status.role != "leader":
            self.not_leading.set()
        else:
            self.not_leading.clear()

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
            voters=self.status.voters,
            connected=self.links.connected(),
            problems=tuple(sorted(self.links.problems.items())),
            failure=self.failure,
            controller_epoch=None if self.failure else self._carriage.controller_epoch,
        )

    # What the links tell

    def link_up(self, peer: NodeId) -> None:
        self._core.connected(peer)
        self.turn_soon()

    def link_down(self, peer: NodeId) -> None:
        self._core.disconnected(peer)
        self.turn_soon()

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        if is_passengers(payload):
            if not self.failure:
                self._carriage.received(peer, payload)
            return
        message = decode(payload)
        if not self.failure:
            self._core.receive(peer, message)
            self.turn_soon()

    def superseded(self, reason: str) -> None:
        self.fail(reason)

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
        """Encode the state on another thread, then make it the start of the log."""
        data = await asyncio.get_running_loop().run_in_executor(None, image.encode)
        last = base[-1]
        if not self.failure and self._journal.snapshot_index < last.index:
            snapshot = Snapshot(last.index, last.term, data, base)
            self._journal.install(snapshot, keep_from=base[0].index)
            self._core.compacted()

    def _compacted(self, task: asyncio.Task[None]) -> None:
        self._compacting = False
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error.message if isinstance(error, JetstreamError) else repr(error))

    def loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler: a mistake in here must not go unnoticed."""
        error = context.get("exception")
        _log.error("metadata_thread_error", message=context["message"], exc_info=error)
        self.fail(f"internal error: {error!r}")
