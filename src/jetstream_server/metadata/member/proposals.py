"""Commands of this node that are not applied yet: batched, retried, and ended at their deadline.

A command's text holds its id, so the text is the key: when it is applied on this node, by any
attempt, the proposal is resolved. A failed or unanswered attempt is repeated with the same text;
the registry recognises duplicates. Once an attempt may have taken effect the proposal is *in
doubt*: it ends when it is seen applied, or as unknown.

Sans-IO: times are given, in seconds of one monotonic clock; outcomes are collected for the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from jetstream_protocol.errors import JetstreamError, UnavailableError, UnknownOutcomeError

BATCH_COMMANDS_MAX = 256
BATCH_BYTES_MAX = 1024 * 1024
BATCHES_MAX = 4
"""Pending at once: the next batch collects while the log is busy with these."""
SILENCE_SECONDS_MAX = 1.0
"""An attempt without an answer is repeated after this time: an election may have lost it."""
BATCH_HEADER = b'{"v":1}'
"""First line of a batch; one line per command follows."""

Outcome = str | JetstreamError


@dataclass(slots=True)
class _Proposal:
    text: str
    deadline: float
    term: int | None = None
    in_doubt: bool = False
    queued: bool = True


@dataclass(slots=True)
class _Batch:
    proposals: list[_Proposal]
    sent_at: float
    open: set[str] = field(default_factory=set)


class Proposals:
    """See the module."""

    def __init__(self) -> None:
        self._by_text: dict[str, _Proposal] = {}
        self._queue: deque[_Proposal] = deque()
        self._batches: dict[int, _Batch] = {}
        self._next_batch = 0
        self._outcomes: list[tuple[str, Outcome]] = []

    def __len__(self) -> int:
        return len(self._by_text)

    def add(self, text: str, deadline: float, term: int | None = None) -> None:
        """term: the command may enter the log only while this node leads in that term."""
        proposal = _Proposal(text, deadline, term)
        self._by_text[text] = proposal
        self._queue.append(proposal)

    def next_batch(
        self, now: float, leading: int | None = None
    ) -> tuple[int, bytes, int | None] | None:
        """The batch to submit now, if one is due: its number, and the term that it is bound to.

        leading: the term in which this node leads.
        """
        proposals: list[_Proposal] = []
        size = 0
        if len(self._batches) >= BATCHES_MAX:
            return None
        while self._queue and len(proposals) < BATCH_COMMANDS_MAX:
            proposal = self._queue[0]
            if proposal.term not in (None, leading):
                self._give_up([proposal], "this node is no longer the controller of that term")
            if proposal.text in self._by_text:
                size += len(proposal.text)
                if proposals and (size > BATCH_BYTES_MAX or proposal.term != proposals[0].term):
                    break
                proposals.append(proposal)
                proposal.queued = False
            self._queue.popleft()
        if not proposals:
            return None
        self._next_batch += 1
        texts = [proposal.text for proposal in proposals]
        self._batches[self._next_batch] = _Batch(proposals, now, set(texts))
        data = b"\n".join([BATCH_HEADER, *(text.encode() for text in texts)])
        return self._next_batch, data, proposals[0].term

    def failed(self, number: int, *, surely: bool) -> None:
        """An attempt has failed, surely without effect or perhaps with one."""
        batch = self._batches.pop(number, None)
        if batch is not None:
            self._requeue(batch, in_doubt=not surely)

    def applied(self, text: str, result: str) -> None:
        """A command was applied on this node."""
        if self._by_text.pop(text, None) is None:
            return
        self._outcomes.append((text, result))
        for number, batch in tuple(self._batches.items()):
            if text in batch.open:
                batch.open.remove(text)
                if not batch.open:
                    del self._batches[number]

    def pass_time(self, now: float) -> None:
        """Repeat attempts without an answer; end proposals that are past their deadline."""
        for number, batch in tuple(self._batches.items()):
            if now - batch.sent_at > SILENCE_SECONDS_MAX:
                del self._batches[number]
                self._requeue(batch, in_doubt=True)
        expired = [item for item in self._by_text.values() if item.deadline < now]
        self._give_up(expired, "the metadata group did not answer in time")

    def without_leader(self, reason: str) -> None:
        """There is no leader: refuse at once what is not in doubt."""
        self._give_up([item for item in self._queue if not item.in_doubt], reason)

    def abandon(self, reason: str) -> None:
        """This node no longer takes part."""
        self._give_up(list(self._by_text.values()), reason)

    def take_outcomes(self) -> list[tuple[str, Outcome]]:
        """The texts of proposals that have ended, with their results or errors."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _requeue(self, batch: _Batch, *, in_doubt: bool) -> None:
        for proposal in batch.proposals:
            if proposal.text in self._by_text:
                proposal.in_doubt = proposal.in_doubt or in_doubt
                if not proposal.queued:
                    proposal.queued = True
                    self._queue.append(proposal)

    def _give_up(self, proposals: Iterable[_Proposal], reason: str) -> None:
        for proposal in proposals:
            if self._by_text.pop(proposal.text, None) is None:
                continue
            in_flight = not proposal.queued
            error: JetstreamError
            if proposal.in_doubt or in_flight:
                error = UnknownOutcomeError(
                    f"the metadata change may or may not have happened: {reason}"
                )
            else:
                error = UnavailableError(f"the metadata cannot change now: {reason}; try again")
            self._outcomes.append((proposal.text, error))
