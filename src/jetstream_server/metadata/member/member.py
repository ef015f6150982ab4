"""One member of the metadata group, on its own thread.

The thread has its own event loop, so that a busy server never costs the group a term, and a slow
disk never blocks the server. Other threads call `propose` and get changes through a listener, whose
methods are called on this thread. member_loop.py is what runs on the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import structlog
import uvloop

from jetstream_protocol.errors import (
    InternalError,
    JetstreamError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.clocks import LOOP_SECONDS
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.extension import RaftThreadExtension
from jetstream_server.metadata.member.member_loop import Listener, MemberLoop
from jetstream_server.metadata.member.unsafe_recovery import must_begin_anew
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.handshake import Identity
from jetstream_server.metadata.raft.joining import ask, ask_one
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.snapshot_file import read_snapshot
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.raft.voter_change import Verdict

logger = structlog.get_logger(__name__)

ID_CHECK_SECONDS = 3.0
"""Longer than a peer needs to notice that this node's previous run has ended."""
HAND_OVER_SECONDS_MAX = 0.5
STOPPING = "this server is stopping"

T = TypeVar("T")


class MemberListener(Listener, Protocol):
    def member_started(self, error: JetstreamError | None) -> None:
        """Note that the member takes part, or could not start."""


class Member:
    """`start` begins the thread. `stop` ends it, also while it starts, and waits for its end."""

    def __init__(self, config: MemberConfig, listener: MemberListener) -> None:
        self._config = config
        self._listener = listener
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="metadata-raft", daemon=True)
        self._stopping = asyncio.Event()
        self._member_loop: MemberLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._extension: RaftThreadExtension | None = None

    @property
    def status(self) -> MetadataStatus:
        member_loop = self._member_loop
        if member_loop is None:
            return MetadataStatus.absent(self._config.node_id, tuple(sorted(self._config.voters)))
        return member_loop.status

    def attach(self, extension: RaftThreadExtension) -> None:
        """Run an extension on this thread. Call it before the start."""
        assert self._member_loop is None, "extensions are attached before the start"
        self._extension = extension

    def start(self) -> None:
        self._thread.start()

    def propose(self, texts: list[str], patience: float, term: int | None) -> None:
        """Propose commands; each gets an outcome within `patience` seconds. With a term they enter
        the log while this node leads in that term, or not at all."""
        assert self._member_loop is not None, "the member has started"
        self._call(self._member_loop.propose, texts, patience, term)

    def change_voters(
        self, wanted: tuple[NodeId, ...], done: Callable[[Verdict, str], None]
    ) -> None:
        """As metadata leader, change the voters. done: called on this thread with what was
        decided, and why."""
        assert self._member_loop is not None, "the member has started"
        self._call(self._member_loop.change_voters, wanted, done)

    def stop(self) -> None:
        """End the thread in good order; a leader hands over first. Blocks."""
        if self._thread.is_alive():
            self._call(self._stopping.set)
            self._thread.join()

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop has closed meanwhile; `stop` ends everything that still waits.
            assert self._loop.is_closed(), "the only reason not to take a call"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except Exception as error:
            # A bug: who waits for the start must not wait for ever.
            self._listener.member_started(
                InternalError(f"the metadata thread has ended: {error!r}")
            )
            raise
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _live(self) -> None:
        try:
            group_file = await self._open_group_file()
            journal = self._open_journal(group_file.group)
        except JetstreamError as error:
            self._listener.member_started(error)
            return
        try:
            await self._take_part(journal, group_file)
        finally:
            journal.close()

    async def _open_group_file(self) -> GroupFile:
        config = self._config
        group = Group(config.node_id, tuple(sorted(config.voters.items())))
        if config.join and not GroupFile.exists(config.directory):
            identity = Identity(config.node_id, os.urandom(16), config.secret)
            asking = ask(config.join, identity, config.certificates)
            group = await self._unless_stopped(asking)
            logger.info("joined", cluster_id=group.cluster_id, voters=group.voters)
        file = GroupFile.open(config.directory, group, accept_voters=config.accept_voters)
        if config.is_alone and file.group.voters != group.voters:
            raise PreconditionFailedError(
                f"this node's metadata was agreed on by the voters {list(file.group.voters)}, but "
                "its configuration names no other node: list them, or keep the key `join`"
            )
        if file.group.voters != group.voters and not config.join:
            logger.warning(
                "configured_voters_ignored", configured=group.voters, voters=file.group.voters
            )
        return file

    def _open_journal(self, group: Group) -> Journal:
        """Open the journal, and record this run in it before anything else."""
        config = self._config
        expected = ""
        if config.cluster_id:
            expected = (
                f"the data folder belongs to cluster {config.cluster_id}, "
                "and its metadata folder is empty"
            )
        is_only_voter = group.voters == (config.node_id,)
        journal = Journal.open(config.directory, alone=is_only_voter, expected=expected)
        try:
            if must_begin_anew(group, journal):
                logger.warning("metadata_begins_anew", snapshot_index=journal.snapshot_index)
                journal.begin_anew()
            standing = journal.standing.with_run(config.session)
            if config.accept_voters:
                standing = standing.vouched_for()
            journal.save_standing(standing)
            journal.sync()
        except JetstreamError:
            journal.close()
            raise
        if journal.cut_bytes:
            logger.warning("metadata_tail_cut", bytes=journal.cut_bytes, lost=journal.lost)
        if journal.synced.damage or (journal.lost and is_only_voter):
            instead = (
                "the readable part of the journal is trusted" if is_only_voter or not journal.lost
                else "the node is a learner until the others have taken it back"
            )  # fmt: skip
            logger.warning(
                "state_file_damaged",
                file=journal.synced.path,
                reason=journal.synced.damage or journal.lost,
                instead=instead,
            )
        return journal

    async def _take_part(self, journal: Journal, group_file: GroupFile) -> None:
        member_loop = self._member_loop = MemberLoop(
            self._config,
            journal,
            group_file,
            self._listener,
            self._extension,
            ask_group=ask_one,
            on_turn_ended=self._plan_turn,
        )
        self._loop.set_exception_handler(member_loop.loop_error)
        try:
            snapshot = read_snapshot(self._config.directory)
            if snapshot is not None:
                member_loop.machine.registry.restore(snapshot.data)
            await self._unless_stopped(self._join(member_loop))
        except JetstreamError as error:
            await member_loop.close()
            self._listener.member_started(error)
            return
        member_loop.turn()
        self._listener.member_started(None)
        await self._stopping.wait()
        try:
            if member_loop.hand_over():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HAND_OVER_SECONDS_MAX):
                        await member_loop.not_leading.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await member_loop.close()
            member_loop.abandon(member_loop.failure or STOPPING)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a part of the start that may take long. Raises UnavailableError once `stop` is
        called."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise UnavailableError(STOPPING)
            return working.result()
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _join(self, member_loop: MemberLoop) -> None:
        """Connect to the others. A group of one opens no port."""
        if not member_loop.is_alone:
            await member_loop.links.listen(self._config.listen)
            await member_loop.links.check_id_is_free(ID_CHECK_SECONDS)
            member_loop.links.start()

    def _plan_turn(self) -> None:
        """See that a turn takes place once one is due. One that is due later than before is only
        found out when the timer ends: a cheaper way than a new timer for each turn."""
        member_loop, timer = self._member_loop, self._timer
        assert member_loop is not None, "a turn has ended"
        due = member_loop.next_turn_at
        if timer is not None and due < timer.when():
            timer.cancel()
            timer = None
        if timer is None:
            pause = max(due - self._loop.time(), LOOP_SECONDS)
            self._timer = self._loop.call_later(pause, self._turn_if_due)

    def _turn_if_due(self) -> None:
        self._timer = None
        member_loop = self._member_loop
        assert member_loop is not None, "there is a timer"
        if member_loop.next_turn_at <= self._loop.time() + LOOP_SECONDS:
            member_loop.turn()
        else:
            self._plan_turn()
