"""Batches in flight: which to send when, without I/O. Batches are stored in order, each once. The
server takes the batches of a producer in the order of their sequence and recognises the last five
(docs/protocol.md, "Duplicates"). So at most five are in flight. After any failure, all
unacknowledged batches are sent again, in order, under the same producer id and sequence: the server
recognises those that it has stored, and stores the others in their place.

`InFlightBatches` decides; its driver sends what `due` returns and passes in answers and the time.
Terms:

* *Attempt*: each sending has its own token. A refusal counts only for the last attempt of its
  batch; an acknowledgement counts for any attempt.
* *Doubtful*: an attempt got no answer before the next one, so the batch may be stored already.
* *Set back*: after a refusal, everything in flight waits a while until it is sent again.
* *Producer*: an id with its sequences and the streams that answer. It is *retired* when a
  batch fails, because the next sequence would never be taken, or somebody else uses the id; when
  the server no longer knows it; and when other streams are to answer. The batches that are left go
  on under a new producer.

Moments follow from the batches in flight and are not kept beside them: each batch knows when it is
to be sent (`Batch.send_at`), so nothing waits for the turn of a batch that has left.

**safety** A batch is sent under a new producer id only if it cannot be stored under the old one:
otherwise it would be stored twice. A batch that may be stored fails as unknown instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from jetstream_client.publishing.ack import OF_OTHERS, Ack, parse_ack
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_client.publishing.subject_routes import Expectation
from jetstream_client.transport.retries import backoff
from jetstream_protocol import bounded_json
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    NotFoundError,
    OutOfSequenceError,
    PermissionDeniedError,
    PreconditionFailedError,
    SequenceTakenError,
    StorageError,
    StorageFullError,
    StreamPausedError,
    StreamReadonlyError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX

SEQUENCE_MAX = 2**31 - 1
ANSWER_SECONDS = 1.0
"""After so long without an answer everything in flight is sent again, the next time after twice as
long. Repeating is harmless; a failover takes about two seconds."""
_ANSWER_SECONDS_MAX = 8.0
_BACKOFF_FIRST = 0.02
_BACKOFF_MAX = 1.0

_FINAL = (
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    PermissionDeniedError,
    StreamPausedError,
    StreamReadonlyError,
    UnauthenticatedError,
    CorruptBatchError,
)
"""Errors with which the batch would be refused again. Any other error may go away by itself."""


_SHOWN_AS_CAUSE: tuple[type[JetstreamError], ...] = (
    NotEnoughReplicasError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
"""Errors with which a batch may fail that was refused until its time was over."""


class Sending(NamedTuple):
    """An attempt to be made."""

    token: str
    batch: Batch
    producer_id: int
    sequence: int


class Done(NamedTuple):
    """A batch with its outcome: its `acks` where `error` is None."""

    batch: Batch
    error: JetstreamError | None


class InFlightBatches:
    """Belongs to one thread. new_id: draws a producer id; None: `producer_id` is the only one.

    expected: the streams that are to acknowledge each batch; one_is_enough: the first that does.
    known: the names of all streams on the subject. stale: a stream that is not among them has
    answered.
    """

    def __init__(
        self,
        expected: tuple[Expectation, ...],
        *,
        one_is_enough: bool,
        producer_id: int,
        sequence: int = 0,
        new_id: Callable[[], int] | None = None,
    ) -> None:
        self.known: frozenset[str] = frozenset().union(*expected)
        self.cluster = ""
        """The mark of all answers that count; "": any."""
        self._of_others = False
        self.stale = False
        self.failure: JetstreamError | None = None
        self._expected = expected
        self._one_is_enough = one_is_enough
        self._producer_id = producer_id
        self._next_sequence = sequence
        self._acknowledged_to = 0
        """After the highest sequence of this producer that a stream has acknowledged."""
        self._new_id = new_id
        self._flight: list[Batch] = []
        self._held: list[Batch] = []
        self._retiring = False
        self._tokens: dict[str, tuple[Batch, int]] = {}
        self._token = 0
        self._setbacks = 0
        self._sent_at = 0.0
        self._last_refusal: JetstreamError | None = None

    @property
    def trouble(self) -> str:
        """Why the batches in flight are sent again; "": they are not."""
        if not self._setbacks:
            return ""
        if self._last_refusal is not None:
            return self._last_refusal.message
        return "no acknowledgement in time" + (f", but {OF_OTHERS}" if self._of_others else "")

    @property
    def batches(self) -> list[Batch]:
        """The batches without an outcome, in order."""
        return [*self._flight, *self._held]

    def is_first(self, batch: Batch) -> bool:
        """Whether nothing before it waits for its answer."""
        return bool(self._flight) and self._flight[0] is batch

    @property
    def has_room(self) -> bool:
        """Whether a further batch may be added now."""
        if self._retiring or self._resend_at is not None or self.failure is not None:
            return False
        return not self._held and self._has_sequence

    @property
    def _has_sequence(self) -> bool:
        """Whether the server would still recognise the first batch in flight after one more."""
        flight = self._flight
        return not flight or self._next_sequence - flight[0].sequence < BATCHES_IN_FLIGHT_MAX

    def add(self, batch: Batch) -> None:
        """Put a batch after the others. Only while there is room."""
        assert self.has_room
        self._enter(batch)
        if self._next_sequence > SEQUENCE_MAX:
            self._retiring = True

    def _enter(self, batch: Batch) -> None:
        batch.sequence = self._next_sequence
        batch.missing, batch.acks, batch.doubtful = self._expected, (), False
        batch.send_at = 0.0
        self._next_sequence += 1
        self._flight.append(batch)

    @property
    def _resend_at(self) -> float | None:
        """When to send what was set back; None: nothing in flight was."""
        return max((each.send_at for each in self._flight if each.send_at), default=None)

    @property
    def _answer_by(self) -> float:
        """The time by which an answer must have arrived."""
        longer: int = 2 ** max(0, min(self._setbacks, 10) - 1)
        return self._sent_at + min(_ANSWER_SECONDS_MAX, ANSWER_SECONDS * longer)

    @property
    def deadline(self) -> float:
        """When the first batch in flight fails, if it is not acknowledged by then. Only while there
        is one."""
        return self._flight[0].deadline

    def next_time(self) -> float | None:
        """When `due` or `expire` will have something to do even without an answer."""
        if not self._flight:
            return None
        is_quiet = self.failure is not None or all(each.send_at is None for each in self._flight)
        moment = self._answer_by if is_quiet else self._resend_at or 0.0
        return min(moment, self._flight[0].deadline)

    def due(self, now: float) -> list[Sending]:
        """What to send now, in this order."""
        if self.failure is not None or now < (self._resend_at or 0.0):
            return []
        outgoing = [batch for batch in self._flight if batch.send_at is not None]
        is_silent = len(outgoing) < len(self._flight) and now >= self._answer_by
        if is_silent:
            self._setbacks += 1
            outgoing = list(self._flight)
        if outgoing:
            self._sent_at = now
        return [self._attempted(batch) for batch in outgoing]

    def _attempted(self, batch: Batch) -> Sending:
        batch.send_at = None
        if batch.attempt and batch.unanswered:
            batch.doubtful = True
        batch.attempt += 1
        batch.unanswered = batch.missing
        self._token += 1
        token = f"{self._token:x}"
        batch.tokens.append(token)
        self._tokens[token] = batch, batch.attempt
        return Sending(token, batch, self._producer_id, batch.sequence)

    def wants(self, sending: Sending) -> bool:
        """Whether the attempt is still to be made: an answer may have come meanwhile."""
        batch, attempt = self._tokens.get(sending.token, (None, 0))
        return batch is not None and attempt == batch.attempt

    # Answers.

    def answered(self, token: str, payload: bytes, now: float, chance: float) -> list[Done]:
        """Take in what a stream says on NATS. chance: in [0, 1), spreads repetitions."""
        if token not in self._tokens:
            return self._fail_answered()
        answer = parse_ack(payload, self.cluster)
        if answer is None:
            self._of_others = True
            return self._fail_answered()
        count = count_of(payload) if isinstance(answer, Ack) else 0
        return self.answer_received(token, answer, count, now, chance)

    def answer_received(
        self,
        token: str,
        answer: Ack | tuple[str, JetstreamError],
        count: int,
        now: float,
        chance: float,
    ) -> list[Done]:
        """Take in what a stream says: an ack, and of how many records, or its name and the reason
        why it refused."""
        return self._take_answer(token, answer, count, now, chance) + self._fail_answered()

    def _take_answer(
        self,
        token: str,
        answer: Ack | tuple[str, JetstreamError],
        count: int,
        now: float,
        chance: float,
    ) -> list[Done]:
        batch, attempt = self._tokens.get(token, (None, 0))
        if batch is None:
            return []
        if isinstance(answer, Ack):
            return self._acknowledged(batch, answer, count)
        stream, error = answer
        expectation = _find(batch.missing, stream)
        if expectation is None:
            # Of a stream that has it already, or that is younger than our knowledge.
            self.stale = self.stale or stream not in self.known
            return []
        if attempt != batch.attempt:
            return []
        return self._refused(batch, expectation, error, now, chance)

    def _acknowledged(self, batch: Batch, ack: Ack, count: int) -> list[Done]:
        expectation = _find(batch.missing, ack.stream)
        if expectation is None:
            self.stale = self.stale or ack.stream not in self.known
            return []
        self._setbacks = 0
        self._last_refusal, self._of_others = None, False
        batch.missing = tuple(each for each in batch.missing if each is not expectation)
        batch.unanswered = tuple(each for each in batch.unanswered if each is not expectation)
        if count != len(batch):
            wrong = unknown_outcome_error(
                f"stream {ack.stream!r} acknowledged another: does it know envelopes?"
            )
            return self._give_up(batch, wrong, certain=False)
        first = Ack(ack.stream, ack.offset - len(batch) + 1, ack.duplicate)
        batch.acks = (*batch.acks, first)
        self._acknowledged_to = max(self._acknowledged_to, batch.sequence + 1)
        if batch.missing and not self._one_is_enough:
            return []
        self._leave(batch)
        return [Done(batch, None), *self._renew()]

    def _refused(
        self,
        batch: Batch,
        expectation: Expectation,
        error: JetstreamError,
        now: float,
        chance: float,
    ) -> list[Done]:
        if self._last_refusal is None or not isinstance(error, OutOfSequenceError):
            self._last_refusal = error  # Else a consequence: a batch before this one was refused.
        batch.unanswered = tuple(each for each in batch.unanswered if each is not expectation)
        if self._one_is_enough and batch.unanswered:
            return []  # Another one may take it.
        if isinstance(error, OutOfSequenceError):
            first = next(each for each in self._flight if expectation in each.missing)
            # One that has missed an earlier batch says nothing of whether another takes this one.
            waits = self._one_is_enough and not isinstance(self._last_refusal, OutOfSequenceError)
            if batch is first and not waits:
                # Everything before it is stored, and still it is not the next one.
                return self._passed_over(batch, error)
        elif isinstance(error, SequenceTakenError):
            return self._taken(batch, error)
        elif isinstance(error, _FINAL):
            certain = not batch.doubtful and not batch.acks and len(self._expected) == 1
            return self._give_up(batch, _final_error(batch, error), certain=certain)
        elif isinstance(error, UnknownOutcomeError):
            batch.doubtful = True
        self._set_back(now, chance)
        return []

    def not_sent(self, token: str, error: JetstreamError, now: float, chance: float) -> list[Done]:
        """The attempt has reached no stream, because of `error`."""
        done = self._not_sent(token, error, now, chance)
        return done + self._fail_answered()

    def _not_sent(self, token: str, error: JetstreamError, now: float, chance: float) -> list[Done]:
        batch, attempt = self._tokens.get(token, (None, 0))
        if batch is None or attempt != batch.attempt:
            return []
        self._last_refusal = error
        batch.unanswered = ()
        certain = not batch.doubtful and not batch.acks
        if isinstance(error, MessageTooLargeError) and certain and self._may_split(batch):
            return self._split(batch)
        if isinstance(error, _FINAL):
            return self._give_up(batch, _final_error(batch, error), certain=certain)
        self._set_back(now, chance)
        return []

    def _may_split(self, batch: Batch) -> bool:
        """A program that chose the producer id repeats calls, and relies on the same batches."""
        return len(batch) > 1 and self._new_id is not None

    def _split(self, batch: Batch) -> list[Done]:
        """NATS takes less in one message than when the batch was made. It is surely not stored, so
        its records go on in two batches, under the next producer."""
        self._hold(self._flight.index(batch))
        self._held[:1] = batch.split()
        return self._renew()

    def _set_back(self, now: float, chance: float) -> None:
        """Everything in flight will be sent again, after a while."""
        if self._resend_at is None:
            self._setbacks += 1
            wait = backoff(_BACKOFF_FIRST, _BACKOFF_MAX, self._setbacks, chance)
            for batch in self._flight:
                batch.send_at = now + wait

    # Endings.

    def expire(self, now: float, lost: str = "") -> list[Done]:
        """Give up what has not been acknowledged by its deadline, and after a failure what is not
        answered in time. lost: why no answer can come now; "": one can."""
        if self.failure is not None and now >= self._answer_by:
            return self.end(self.failure)
        done: list[Done] = []
        while self._flight and self._flight[0].deadline <= now:
            batch = self._flight[0]
            certain = not _is_perhaps_stored(batch)
            done += self._give_up(batch, self._too_late_error(certain, lost), certain=certain)
        return done + self._fail_answered()

    def _too_late_error(self, certain: bool, lost: str) -> JetstreamError:
        """The error has the class of its cause, for example StorageFullError."""
        why = ""
        cls: type[JetstreamError] = UnavailableError
        if lost:
            why = f": {lost}"
        elif self._of_others and self._last_refusal is None:
            why = f": {OF_OTHERS}"
        elif self._last_refusal is not None:
            why, cls = f": {self._last_refusal.message}", type(self._last_refusal)
        if not certain:
            return unknown_outcome_error(f"not acknowledged in time{why}")
        if cls not in _SHOWN_AS_CAUSE:
            cls = UnavailableError
        return cls(f"the batch was not stored in time{why}")

    def adopt(self, expected: tuple[Expectation, ...]) -> list[Done]:
        """From now on these streams are expected to answer, and no longer those that are gone. With
        a fixed producer id, further streams are left out, because only the first ones know the
        producer.
        """
        self.stale = False
        if self._new_id is None:
            expected = tuple(each for each in expected if each in self._expected)
        if expected == self._expected:
            return []
        done = []
        for batch in list(self._flight):
            batch.missing = tuple(each for each in batch.missing if each in expected)
            batch.unanswered = tuple(each for each in batch.unanswered if each in expected)
            if not batch.missing:
                self._leave(batch)
                done.append(
                    Done(batch, None if batch.acks else unknown_outcome_error("its stream is gone"))
                )
        self._expected = expected
        self._retiring = True
        return done + self._renew()

    def fail(self, error: JetstreamError) -> list[Done]:
        """Send nothing more. A batch fails as with `end`, but only once its last attempt is
        answered, or is late: until then it may turn out to be stored, or not to be."""
        self.failure = error
        return self._fail_answered()

    def _fail_answered(self) -> list[Done]:
        """After a failure: the end of the batches that wait for no answer."""
        if self.failure is None:
            return []
        over = [batch for batch in self.batches if not (batch.attempt and batch.unanswered)]
        for batch in over:
            if batch in self._flight:
                self._leave(batch)
        self._held = []
        return [_failed(batch, self.failure) for batch in over]

    def end(self, error: JetstreamError) -> list[Done]:
        """Stop for good: batches that are not stored fail with `error`, the rest with
        UnknownOutcomeError."""
        self.failure = error
        done = [_failed(batch, error) for batch in self.batches]
        self._flight, self._held = [], []
        self._tokens.clear()
        return done

    def begin_anew(self, expected: tuple[Expectation, ...]) -> None:
        """After a failure, and once all have their outcome: under another producer. Not with a
        fixed producer id."""
        assert not self.batches
        assert self._new_id is not None
        self.failure = self._last_refusal = None
        self.stale = False
        self._expected, self._setbacks = expected, 0
        self._retiring = True
        self._renew()

    def _passed_over(self, batch: Batch, error: JetstreamError) -> list[Done]:
        """The server has forgotten this producer, or somebody else has used the batch's number and
        some after it."""
        if batch.sequence < self._acknowledged_to:
            return self._taken(batch, error)
        alone = len(self._expected) == 1
        if alone and not batch.doubtful and self._new_id is not None:
            self._hold(self._flight.index(batch))
            return self._renew()
        if batch.doubtful or not alone:
            error = _noted_error(unknown_outcome_error(error.message), batch)
        return self._give_up(batch, error, certain=alone and not batch.doubtful)

    def _taken(self, batch: Batch, error: JetstreamError) -> list[Done]:
        """The batch fails: somebody else has used its number. **safety** Later batches keep theirs,
        because the server may have stored them after the other one's."""
        if self._new_id is None:
            self.failure = error
        self._leave(batch)
        self._retiring = True
        return [Done(batch, _noted_error(_final_error(batch, error), batch)), *self._renew()]

    def _give_up(self, batch: Batch, error: JetstreamError, *, certain: bool) -> list[Done]:
        """The batch fails with `error`, and its producer is retired. certain: it is surely not
        stored, and then no later batch of this producer is stored either. Otherwise later batches
        may be stored, and their outcome is unknown, too."""
        at = self._flight.index(batch)
        done = [Done(batch, _noted_error(error, batch))]
        later = self._flight[at + 1 :]
        if not certain:
            lost = [each for each in later if each.attempt]
            why = "a batch before it was given up"
            done += [Done(each, _noted_error(unknown_outcome_error(why), each)) for each in lost]
            for each in lost:
                self._leave(each)
        self._leave(batch)
        self._hold(at)
        if self._new_id is None:
            self.failure = error
            done += [Done(each, error) for each in self._held]
            self._held = []
        return done + self._renew()

    def _hold(self, at: int) -> None:
        """Batches in flight from there on wait for the next producer."""
        held = self._flight[at:]
        for batch in held:
            self._leave(batch)
            batch.attempt = 0
        self._held = held + self._held
        self._retiring = True

    def _leave(self, batch: Batch) -> None:
        self._flight.remove(batch)
        batch.send_at = None
        for token in batch.tokens:
            self._tokens.pop(token, None)
        batch.tokens.clear()

    def _renew(self) -> list[Done]:
        """Begin with the next producer, once nothing of this one is in flight. **safety** Batches
        that were split may be more than may be in flight: the others follow as soon as they may."""
        if self._retiring and not self._flight:
            if self._new_id is not None:
                self._producer_id, self._next_sequence = self._new_id(), 0
                self._acknowledged_to = 0
            elif self._next_sequence > SEQUENCE_MAX:
                self.failure = InvalidRequestError("the producer id has no sequence left")
            self._retiring = False
        while self._held and not self._retiring and self._has_sequence:
            self._enter(self._held.pop(0))
        return []


def unknown_outcome_error(why: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the outcome of the batch is unknown: {why}; it may or may not have been stored"
    )


def count_of(payload: bytes) -> int:
    """The number of records that an acknowledgement is for; -1: it is not for a batch."""
    count = bounded_json.loads(payload).get("count")
    return count if isinstance(count, int) else -1


def _is_perhaps_stored(batch: Batch) -> bool:
    return batch.doubtful or bool(batch.acks) or bool(batch.attempt and batch.unanswered)


def _final_error(batch: Batch, refusal: JetstreamError) -> JetstreamError:
    """What a final refusal says of a batch that an earlier attempt may have stored."""
    if not batch.doubtful:
        return refusal
    return unknown_outcome_error(f"unanswered first, then refused: {refusal.message}")


def _failed(batch: Batch, error: JetstreamError) -> Done:
    perhaps = _is_perhaps_stored(batch)
    return Done(
        batch, _noted_error(unknown_outcome_error(error.message), batch) if perhaps else error
    )


def _find(expectations: Iterable[Expectation], stream: str) -> Expectation | None:
    return next((each for each in expectations if stream in each), None)


def _noted_error(error: JetstreamError, batch: Batch) -> JetstreamError:
    for ack in batch.acks:
        error.add_note(f"stream {ack.stream!r} has stored the batch, from offset {ack.offset} on")
    return error
