"""The metadata log on a Raft group: the side that the rest of the server uses. A proposer gets the
result of its command once it is durable and applied here. A watcher gets every change, in order.

`RaftMetadataLog` runs on the server's event loop; its member runs on its own thread (member.py).
The registry here is a copy that follows the member's changes. The values are shared, nothing is
locked, and code on the loop always sees whole revisions.

Every command gets an id of this process, so that repeating it is harmless; proposals.py says how a
proposal ends. Its outcome stays unknown while a copy of the command may be in flight. Callers that
need the outcome propose the same command again (replication/core/pending_isr.py). A second command
with equal fields would be a different one: both could be applied. A process must register first.
Before that it may only propose commands that can be repeated without harm (operations.REPEATABLE).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.client.sequences import Sequences
from jetstream_server.metadata.client.watchers import Watcher, Watchers
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.member.extension import RaftThreadExtension
from jetstream_server.metadata.member.member import STOPPING, Member, MemberListener
from jetstream_server.metadata.member.member_loop import News
from jetstream_server.metadata.member.proposals import Outcome
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.raft.voter_change import Verdict
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import (
    MADE_AT_LEVEL,
    VOTERS_LEVEL,
    Barrier,
    RegisterNode,
)
from jetstream_server.metadata.state.operations import REPEATABLE, check_feature
from jetstream_server.metadata.state.registry import Registry, check_result

NOT_STARTED = "the metadata log has not started"
PATIENCE_SECONDS = 5.0
"""How long a proposal waits by default. An election takes about one; two in a row are rare."""
REACH_SECONDS = 1.0
"""Less than what any caller waits for an answer."""


class Proposal:
    """A command and its id, until its outcome is known. Made by `RaftMetadataLog.prepare`.

    text: the command with its id, as it was first proposed; "" before. term: for a controller's
    decision, the term in which it was made; it enters the log in that term or not at all.
    controller_epoch: the claim under which it was made; made_at: when its caller sent it, 0: it has
    none (both: registry.py). is_void: no copy of it can
    take effect any more, although one may have: this process has proposed so much since that the
    group has forgotten the id. The effect of such a copy is applied here by then.
    """

    def __init__(
        self,
        command: Command,
        submit: Callable[[Proposal, float], Awaitable[dict[str, Any]]],
        term: int | None = None,
        controller_epoch: int | None = None,
        made_at: int = 0,
    ) -> None:
        self.text = ""
        self.term = term
        self.is_void = False
        self._command = command
        self._controller_epoch = controller_epoch
        self._made_at = made_at
        self._submit = submit

    def number(self, incarnation: int | str, sequence: int) -> None:
        """Give the command its id."""
        assert not self.text, "a command has one id"
        self.text = encode_command(
            self._command,
            controller_epoch=self._controller_epoch,
            made_at=self._made_at,
            command_id=(incarnation, sequence),
        )

    async def submit(self, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Propose the command, and return its result, whichever copy was applied. Raises the errors
        of `RaftMetadataLog.propose`. May be called again after it has ended."""
        result = await self._submit(self, patience)
        try:
            return check_result(result)
        except UnknownOutcomeError:
            # This is the answer of the log itself (results.py): every later copy gets the same.
            self.is_void = True
            raise


class RaftMetadataLog:
    """The replicated log of metadata commands, and the registry it builds. on_failure: called with
    the reason if this node must stop taking part (fail-stop): the server must then stop too.

    registry: the state applied on this node; it may lag behind the leader's (see `barrier`).
    incarnation: set once this process has registered. seen_revision: the revision up to which
    watchers have been called; both may be read on any thread. controller_epoch: set while this node
    is the controller (controller_context.py).
    """

    def __init__(
        self,
        config: MemberConfig,
        session: str,
        on_failure: Callable[[str], None] | None = None,
        make_member: Callable[[MemberConfig, MemberListener], Member] = Member,
    ) -> None:
        self.registry = Registry()
        self.incarnation: int | None = None
        self.controller_epoch: int | None = None
        self.seen_revision = 0
        self._config = config
        self._session = session
        self._on_failure = on_failure
        self._member = make_member(replace(config, session=session), self)
        self._status = self._member.status
        self._watchers = Watchers()
        self._leadership_watchers: list[Callable[[MetadataStatus], None]] = []
        self._sequences = Sequences()
        self._outcomes: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._reaching: set[asyncio.Future[None]] = set()
        self._unsent: dict[tuple[float, int | None], list[str]] = {}
        self._closed = NOT_STARTED

    @property
    def leader(self) -> NodeId:
        """The metadata leader as far as this node knows; NO_NODE: there is none."""
        return self._status.leader

    def status(self) -> MetadataStatus:
        return self._member.status

    @property
    def is_alone(self) -> bool:
        voters = self._member.status.voters
        return self._config.is_alone and voters == (self._config.node_id,)

    def attach(self, extension: RaftThreadExtension) -> None:
        """Run an extension on the member's thread. Call it before the start."""
        self._member.attach(extension)

    async def start(self) -> None:
        """Recover, and take part. Raises StorageError if the metadata on disk is damaged."""
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._member.start()
        await self._started
        if self._closed == NOT_STARTED:  # Otherwise the member's first turn has already failed.
            self._closed = ""
        self._check_open()
        if self.is_alone:
            await self.wait_for_leader(PATIENCE_SECONDS)
            await self.barrier()

    async def wait_for_leader(self, patience: float) -> None:
        """Return once there is a metadata leader. Raises UnavailableError after `patience` s."""
        changed = asyncio.Event()
        stop = self.watch_leadership(lambda _: changed.set())
        try:
            async with asyncio.timeout(patience):
                while not self._has_leader() and not self._closed:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise UnavailableError(f"no metadata leader was elected in {patience} s") from None
        finally:
            stop()
        self._check_open()

    async def close(self) -> None:
        """Stop taking part. Pending proposals fail with UnknownOutcomeError."""
        if self._closed in ("", NOT_STARTED):
            self._closed = STOPPING
        await asyncio.get_running_loop().run_in_executor(None, self._member.stop)
        await asyncio.sleep(0)  # The member's last changes are in the loop's queue.
        for future in self._outcomes.values():
            if not future.done():
                future.set_exception(UnknownOutcomeError("this server stopped before the answer"))

    async def propose(
        self,
        command: Command,
        *,
        as_controller: bool = False,
        patience: float = PATIENCE_SECONDS,
        made_at: int = 0,
    ) -> dict[str, Any]:
        """Propose a command. Returns its result, once it has been applied on this node.

        made_at: the revision at which the caller sent it (last_changes.py); 0: unknown.
        as_controller: propose only while this node is the controller, under its epoch; otherwise
        raises NotLeaderError. Raises the JetstreamError of a refused command, UnavailableError when
        there is no leader (nothing was done), UnknownOutcomeError when the command may or may not
        be applied.
        """
        proposal = self.prepare(command, as_controller=as_controller, made_at=made_at)
        result = await proposal.submit(patience)
        if isinstance(command, RegisterNode) and command.session == self._session:
            self.incarnation = result["incarnation"]
        return result

    def prepare(
        self, command: Command, *, as_controller: bool = False, made_at: int = 0
    ) -> Proposal:
        """A proposal of the command, for callers that must know its outcome. as_controller,
        made_at: see `propose`."""
        term = epoch = None
        if as_controller:
            if self.controller_epoch is None:
                raise NotLeaderError("this node is not the controller")
            epoch, term = self.controller_epoch, self._status.term
        if self.incarnation is None and command.op not in REPEATABLE:
            raise PreconditionFailedError(f"this process must register before {command.op!r}")
        check_feature(self.registry, command.needed_level, command.op)
        if self.registry.settings.feature_level < MADE_AT_LEVEL:
            made_at = 0
        return Proposal(command, self._submit, term, epoch, made_at)

    async def change_voters(self, wanted: tuple[NodeId, ...]) -> tuple[Verdict, str]:
        """Ask this node, as metadata leader, for these voters: what it decides, and why. Raises
        PreconditionFailedError while a node runs software that cannot read the change, and
        UnavailableError."""
        check_feature(self.registry, VOTERS_LEVEL, "a change of the voters")
        self._check_open()
        decided: asyncio.Future[tuple[Verdict, str]] = self._loop.create_future()

        def done(verdict: Verdict, reason: str) -> None:
            self._loop.call_soon_threadsafe(resolve, (verdict, reason))

        def resolve(outcome: tuple[Verdict, str]) -> None:
            if not decided.done():
                decided.set_result(outcome)

        self._member.change_voters(wanted, done)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await decided

    async def barrier(self) -> int:
        """Wait until everything committed before this call is applied here; return its revision.

        Raises UnavailableError when there is no leader to ask.
        """
        return int((await self.prepare(Barrier()).submit())["revision"])

    async def reach(self, revision: int) -> None:
        """Return once the registry is at that revision, which another node has told; after
        REACH_SECONDS in any case, and at once without a leader, who would tell the rest."""
        if revision <= self.registry.revision or self.leader == NO_NODE:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_SECONDS):
                while self.registry.revision < revision:
                    news = self._loop.create_future()
                    self._reaching.add(news)
                    try:
                        await news
                    finally:
                        self._reaching.discard(news)

    async def note_change(self, what: str, made_at: int) -> int:
        """Note that a caller is about to change `what`, which is not in the registry, and return
        the revision of that. made_at: see `propose`. **safety** Raises UnavailableError for a late
        copy of a call: it would undo a later change."""
        if self.registry.settings.feature_level < MADE_AT_LEVEL:
            return 0
        return int((await self.propose(Barrier(about=what), made_at=made_at))["revision"])

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Call back on the event loop for every later change, in order. Returns a function that
        ends it."""
        return self._watchers.add(callback)

    def watch_leadership(self, callback: Callable[[MetadataStatus], None]) -> Callable[[], None]:
        """Call back on the loop when leader, role, term or controller epoch change. Returns a
        function that ends it."""
        self._leadership_watchers.append(callback)
        return lambda: self._leadership_watchers.remove(callback)

    async def _submit(self, proposal: Proposal, patience: float) -> dict[str, Any]:
        self._check_open()
        if proposal.text:
            return await self._outcome(proposal, patience)
        sequence = await self._sequences.take()
        try:
            self._check_open()  # It may have waited.
            proposal.number(
                self._session if self.incarnation is None else self.incarnation, sequence
            )
            return await self._outcome(proposal, patience)
        finally:
            self._sequences.give_back(sequence)

    async def _outcome(self, proposal: Proposal, patience: float) -> dict[str, Any]:
        text = proposal.text
        outcome: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._outcomes[text] = outcome
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.setdefault((patience, proposal.term), []).append(text)
        try:
            return await outcome
        finally:
            del self._outcomes[text]

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(f"metadata cannot change: {self._closed}")

    def _send(self) -> None:
        """Pass on everything that tasks of the loop have proposed since the last call."""
        unsent, self._unsent = self._unsent, {}
        for (patience, term), texts in unsent.items():
            self._member.propose(texts, patience, term)

    def _has_leader(self) -> bool:
        return self._status.leader != NO_NODE

    # On the member's thread

    def member_started(self, error: JetstreamError | None) -> None:
        self._loop.call_soon_threadsafe(self._on_started, error)

    def member_news(self, news: News) -> None:
        self._loop.call_soon_threadsafe(self._on_news, news)

    def member_status(self, status: MetadataStatus) -> None:
        self._loop.call_soon_threadsafe(self._on_status, status)

    def member_failed(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._on_failed, reason)

    # On the server's loop

    def _on_started(self, error: JetstreamError | None) -> None:
        if self._started.done():
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)

    def _on_news(self, news: News) -> None:
        self.registry.follow(news.changes, news.revision)
        self._watchers.notify(news.changes)
        for waiting in self._reaching:
            if not waiting.done():
                waiting.set_result(None)
        for text, outcome in news.outcomes:
            self._resolve(text, outcome)
        # After the watchers' own callbacks in the loop's queue.
        self._loop.call_soon(self._seen, news.revision)

    def _seen(self, revision: int) -> None:
        self.seen_revision = revision

    def _resolve(self, text: str, outcome: Outcome) -> None:
        future = self._outcomes.get(text)
        if future is None or future.done():
            return
        if isinstance(outcome, JetstreamError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _on_status(self, status: MetadataStatus) -> None:
        self._status = status
        self.controller_epoch = status.controller_epoch
        for callback in tuple(self._leadership_watchers):
            callback(status)

    def _on_failed(self, reason: str) -> None:
        self._closed = reason
        for callback in tuple(self._leadership_watchers):
            callback(self._member.status)
        if self._on_failure is not None:
            self._on_failure(reason)
