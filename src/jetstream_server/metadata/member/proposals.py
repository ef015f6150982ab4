"""Commands of this node that were not applied yet: batched, retried, and ended at their deadline.

A command's text contains its id, so the text is the key: when it is applied on this node, by any
attempt, the proposal is resolved. A failed or unanswered attempt is repeated with the same text,
and the registry recognises duplicates. Once an attempt may have taken effect, the proposal is *in
doubt*: it ends when the command is applied here, or with an unknown outcome.

Sans-IO: callers pass times, in seconds of one monotonic clock, and collect the outcomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jetstream_protocol.errors import JetstreamError, UnavailableError, UnknownOutcomeError

BATCH_COMMANDS_MAX = 256
BATCH_BYTES_MAX = 1024 * 1024
BATCHES_MAX = 4
"""Batches pending at once. The next batch collects commands while the log works on these."""
SILENCE_SECONDS_MAX = 1.0
"""An unanswered attempt is repeated after this time: an election may have lost it."""
BATCH_HEADER = b'{"v":1}'
"""First line of a batch. One line per command follows."""

Outcome = dict[str, Any] | JetstreamError


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
        """Add a command. term: it may enter the log only while this node leads in that term."""
        proposal = _Proposal(text, deadline, term)
        self._by_text[text] = proposal
        self._queue.append(proposal)

    def next_batch(
        self, now: float, leading: int | None = None
    ) -> tuple[int, bytes, int | None] | None:
        """The batch to submit, if one is due: its number, its bytes, and the term it is bound to.

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
        """Note a failed attempt. surely: it certainly had no effect."""
        batch = self._batches.pop(number, None)
        if batch is not None:
            self._requeue(batch, in_doubt=not surely)

    def applied(self, text: str, result: dict[str, Any]) -> None:
        """Resolve the proposal of a command that was applied on this node."""
        if self._by_text.pop(text, None) is None:
            return
        self._outcomes.append((text, result))
        for number, batch in tuple(self._batches.items()):
            if text in batch.open:
                batch.open.remove(text)
                if not batch.open:
                    del self._batches[number]

    def pass_time(self, now: float) -> None:
        """Repeat unanswered attempts, and end proposals that are past their deadline."""
        for number, batch in tuple(self._batches.items()):
            if now - batch.sent_at > SILENCE_SECONDS_MAX:
                del self._batches[number]
                self._requeue(batch, in_doubt=True)
        expired = [item for item in self._by_text.values() if item.deadline < now]
        if expired:
            self._give_up(expired, "the metadata group did not answer in time")
            self._drop_ended()

    def without_leader(self, reason: str) -> None:
        """Refuse all proposals that are not in doubt, because there is no leader."""
        self._give_up([item for item in self._queue if not item.in_doubt], reason)
        self._drop_ended()

    def abandon(self, reason: str) -> None:
        """End all proposals, because this node takes no further part."""
        self._give_up(list(self._by_text.values()), reason)

    def take_outcomes(self) -> list[tuple[str, Outcome]]:
        """The texts of proposals that have ended, with their results or errors."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _drop_ended(self) -> None:
        """Drop proposals that have ended from the queue: nothing takes them out of it while there
        is no leader."""
        self._queue = deque(item for item in self._queue if item.text in self._by_text)

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
