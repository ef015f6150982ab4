"""Appends what NATS delivers for one led stream, and answers its publishers.

    delivery ─> take apart ─> admit ─> demands ─> encode ─┐
                    └── batches ─> open ─> sequence ──────┴> append ─> pending ─(committed)─> acks

Invariants.
* **safety** An ack of level `all` is written only for records below the high watermark of the same
  leadership, and only while the node's session lease holds; when the leadership ends, its pending
  acks are dropped without an answer.
* **safety** A duplicate is answered once its original is below the high watermark, whatever the ack
  level: it waits in the same queue after everything appended.
* Pending acks are limited over all streams together (`Bounds`): beyond the limit, messages that ask
  for an ack are refused, and messages that do not are still stored.

pending_acks.py sends the answers and holds those that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jetstream_protocol import batch as batches
from jetstream_protocol.envelope import NO_EXPECTATION, BatchEnvelope
from jetstream_protocol.errors import (
    JetstreamError,
    MessageTooLargeError,
    PermissionDeniedError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.record_sizes import above_limit_error, check_record_sizes
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy, Replies
from jetstream_server.ingest.stream.acks import Answer, Direct
from jetstream_server.ingest.stream.admission import (
    NOTHING_OPENED,
    Admitted,
    Opened,
    Precondition,
    Rules,
    admit,
    no_rollup_error,
)
from jetstream_server.ingest.stream.commit_spans import CommitSpans, SpanSource
from jetstream_server.ingest.stream.envelopes import ArrivedBatch, holds_envelopes, split_delivery
from jetstream_server.ingest.stream.keyed_batches import keyed_by_subject
from jetstream_server.ingest.stream.pending_acks import Bounds, PendingAck, PendingAcks, Write
from jetstream_server.ingest.stream.unpacking import (
    STREAM_BYTES_PER_SECOND,
    USUAL_RATIO,
    Unpacking,
)
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.subjects import expected_end

__all__ = ["Bounds", "StreamIngest"]

NO_REPLIES: Final = Replies([])

UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit for compressed batches in one delivery: a few kilobytes can expand to more than the loop
may spend on one read. Further batches are refused, and their publishers send them again."""


class StreamIngest:
    """The ingest of one leadership of one stream."""

    __slots__ = (
        "_answers",
        "_bounds",
        "_fitting_of",
        "_lease_held",
        "_replicas",
        "_spans",
        "_unpacking",
        "has_listened",
        "is_handed_over",
        "is_listening",
        "is_withheld",
        "refusal",
        "replica",
        "sid",
    )

    def __init__(
        self,
        replica: Replica,
        replicas: ReplicaManager,
        policy: AckPolicy,
        bounds: Bounds,
        write: Write,
        spans: SpanSource | None = None,
        cluster: str = "",
        is_of_others: Callable[[Replica, str], None] = lambda replica, mark: None,
        lease_held: Callable[[], bool] = lambda: True,
    ) -> None:
        """spans: for messages with `traceparent`; None: tracing is off. cluster, is_of_others: see
        PendingAcks. lease_held: returns whether this node's session lease holds."""
        stream = replica.stream
        self._spans = (
            None if spans is None else CommitSpans(spans, stream.name, stream.leader_epoch)
        )
        self.replica = replica
        self.sid = 0
        """The id of the last subscription, which may be drained."""
        self.is_listening = False
        """Whether there is a subscription that is to last."""
        self.has_listened = not replica.stream.config.restoring
        """Whether the stream has listened to its subject here or on other leaders: one that is
        being restored has not yet."""
        self.is_handed_over = False
        """Whether the stream is about to be handed over."""
        self.refusal: PermissionDeniedError | None = None
        """Why NATS refuses the subscription; None: it does not."""
        self.is_withheld = False
        """Whether answers to what is committed wait for the lease."""
        self._fitting_of: tuple[str, Fitting] | None = None
        self._lease_held = lease_held
        self._replicas = replicas
        self._bounds = bounds
        self._unpacking = Unpacking(STREAM_BYTES_PER_SECOND)
        self._answers = PendingAcks(replica, policy, bounds, write, cluster, is_of_others)

    @property
    def _rules(self) -> Rules:
        """By the settings of now: `compact` may have been altered."""
        config = self.replica.stream.config
        return Rules(config.is_keyed_by_subject, config.keeps_last_of_subjects)

    def deliver(self, delivery: Delivery) -> None:
        """Store one delivery, and answer it at once or after its commit. Never raises for its
        content."""
        acks = self.replica.stream.config.acks
        if holds_envelopes(delivery):
            room = UNPACKED_BYTES_MAX
            for part in split_delivery(delivery, acks):
                if isinstance(part, ArrivedBatch):
                    room -= part.unpacked_bytes
                    self._deliver_batch(part, has_room=room >= 0)
                else:
                    self._deliver_records(part.delivery, part.opened)
            return
        if acks != "reply":
            delivery.replies = [b""] * len(delivery)
        self._deliver_records(delivery, NOTHING_OPENED)

    def produce(self, batch: BatchEnvelope, subject: bytes, direct: Direct) -> None:
        """Store a batch that its producer has sent to this node itself, and answer it at once or
        after its commit. Never raises for its content."""
        self._deliver_batch(ArrivedBatch(batch, subject, direct, b""), has_room=True)

    def listens(self, sid: int) -> None:
        """Note that there is a new subscription, that NATS has not confirmed yet."""
        self.sid, self.is_listening = sid, True
        self.has_listened = True
        self._note_refusal(None)

    def listens_no_more(self) -> None:
        """Note that the subscription is over, or will be once it is drained."""
        self.is_listening = False
        self._note_refusal(None)

    def refused(self, sid: int, error: PermissionDeniedError | None) -> None:
        """Note why NATS refuses the subscription; None: it does not any more."""
        if sid == self.sid and self.is_listening:
            self._note_refusal(error)

    def _note_refusal(self, error: PermissionDeniedError | None) -> None:
        self.refusal = error
        self.replica.why_unheard = "" if error is None else error.message

    # Records.

    def _deliver_records(self, delivery: Delivery, opened: Mapping[int, Opened]) -> None:
        if not opened and delivery.is_plain and self._append_plain(delivery):
            return
        admitted = admit(delivery, self.replica.stream.name, opened, self._rules)
        for refused in admitted.refused:
            self._answers.nack([refused.reply], refused.error, refused.correlation)
        if not admitted.values:
            return
        asked = len(admitted.replies) - admitted.replies.count(b"")
        error_or_none = self._why_not_ack(asked, delivery.value_bytes)
        if error_or_none is not None:
            admitted = self._without_askers(admitted, error_or_none)
        admitted = self._without_unfit(admitted)
        if not admitted.values:
            return
        if admitted.demands:
            self._append_demanding(admitted)
        else:
            self._append(admitted)

    def _append_plain(self, delivery: Delivery) -> bool:
        """Append messages that ask for nothing but acks, without a look at each.

        Returns False, with nothing done, when each message must be looked at after all.
        """
        config = self.replica.stream.config
        limit = config.max_message_bytes
        if config.is_keyed_by_subject:
            return False
        if limit and max(map(len, delivery.values)) > limit:
            return False
        replies = self._answers.select(delivery)
        if self._why_not_ack(len(replies) + replies.refused, delivery.value_bytes) is not None:
            return False
        encoded = delivery.encode()
        if not encoded.fits:
            return False
        fitting = self._fitting
        if fitting is not None and not fitting.fits_plain(encoded.body, encoded.record_count):
            return False
        if replies.refused:
            self._answers.suppressed(replies)
        try:
            base_offset = self.replica.append(encoded)
        except JetstreamError as error:
            self._answers.nack(replies.to_list(), error)
            return True
        if config.acks != "off":
            end_offset = base_offset + encoded.record_count
            self._wait(PendingAck(end_offset, base_offset, replies, encoded.length, []))
        return True

    def _why_not_ack(self, asked: int, length: int) -> JetstreamError | None:
        """Why this number of messages with acks, with values of `length` bytes, cannot be accepted;
        None when they can."""
        if not asked:
            return None
        reason = self._bounds.reason(asked, length, self._answers.waiting)
        if reason:
            return UnavailableError(f"overloaded, try again: {reason}")
        try:
            self.replica.check_can_commit()
        except JetstreamError as error:
            return error
        return None

    def _without_askers(self, admitted: Admitted, error: JetstreamError) -> Admitted:
        """Refuse the messages that ask for level `all`, and return the others."""
        self._answers.nack_all(admitted.askers(early=False), error)
        return admitted.only([at for at, reply in enumerate(admitted.replies) if not reply])

    def _without_unfit(self, admitted: Admitted) -> Admitted:
        """Refuse the messages that the stream's settings do not allow, and return the others. One
        with an id is looked at later: it may be stored since before the settings."""
        admitted.unfit = self._unfit(admitted)
        if not admitted.unfit:
            return admitted
        kept: list[int] = []
        for position in range(len(admitted.values)):
            error, demand = admitted.unfit.get(position), admitted.demands.get(position)
            if error is None or (demand is not None and demand.message_id is not None):
                kept.append(position)
            else:
                reply, _ = admitted.reply_at(position)
                self._answers.nack([reply], error, admitted.correlation(position))
        return admitted.only(kept)

    def _unfit(self, admitted: Admitted) -> dict[int, JetstreamError]:
        """Why settings refuse messages, by position."""
        limit, fitting = self.replica.stream.config.max_message_bytes, self._fitting
        found: dict[int, JetstreamError] = {}
        if fitting is not None:
            found.update(fitting.misfits(admitted.values))
        for position in range(len(admitted.values)) if limit else ():
            size = admitted.size_at(position)
            if size > limit:
                found[position] = above_limit_error(size, limit)
        return found

    @property
    def _fitting(self) -> Fitting | None:
        """By the schema of now; None: the stream refuses nothing by it."""
        stream = self.replica.stream
        if not stream.config.refuses_mismatches or not stream.schema:
            return None
        if self._fitting_of is None or self._fitting_of[0] != stream.schema:
            self._fitting_of = stream.schema, Fitting(stream.schema)
        return self._fitting_of[1]

    def _append_demanding(self, admitted: Admitted) -> None:
        """Append messages of which some depend on earlier ones.

        A message that repeats another one of the delivery is checked after that one is stored, and
        so is one that expects a last sequence of its subject after one on that subject. An expected
        offset counts the messages before it in the delivery. A batch is stored as a whole or not at
        all, so it must not be split.
        """
        kept: list[int] = []
        ids: set[tuple[bytes, bytes | None]] = set()
        subjects: set[bytes] = set()
        is_split = admitted.size_bytes > batches.BATCH_BYTES_MAX // 2
        for position in range(len(admitted.values)):
            demand = admitted.demands.get(position)
            if demand is not None:
                is_expecting = demand.expected_offset is not None
                repeatable = admitted.subjects[position], demand.message_id
                is_after = demand.expected_subject_end is not None and repeatable[0] in subjects
                if kept and (repeatable in ids or is_after or (is_split and is_expecting)):
                    self._append(admitted.only(kept))
                    kept, ids, subjects = [], set(), set()
                next_offset = self.replica.log.log_end_offset + len(kept)
                if not self._is_wanted(admitted, position, demand, next_offset):
                    continue
                if demand.message_id is not None:
                    ids.add(repeatable)
            kept.append(position)
            subjects.add(admitted.subjects[position])
        if kept:
            self._append(admitted.only(kept))

    def _is_wanted(
        self, admitted: Admitted, position: int, demand: Precondition, next_offset: int
    ) -> bool:
        """Whether to store the message at that offset. If not, answers it.

        As in JetStream, a duplicate is recognised before its precondition is checked: storing the
        original has made the precondition false.
        """
        log = self.replica.log
        original = None
        if demand.message_id is not None:
            subject, now_us = admitted.subjects[position], self._replicas.now_us()
            original = log.producers.offset_of(subject, demand.message_id, now_us)
        if original is not None:
            reply, _ = admitted.reply_at(position)
            self._answer_duplicate(
                Answer(reply, original + 1, duplicate=True, correlation=demand.correlation)
            )
            return False
        error: JetstreamError | None = _expectation_error(demand.expected_offset, next_offset)
        if error is None:
            error = self._unexpected_of_subject(
                admitted.subjects[position], demand.expected_subject_end
            )
        error = admitted.unfit.get(position) or error
        if error is not None:
            reply, _ = admitted.reply_at(position)
            self._answers.nack([reply], error, demand.correlation)
        return error is None

    def _unexpected_of_subject(self, subject: bytes, expected: int | None) -> JetstreamError | None:
        """Why a message that expects this last sequence of its subject must not be stored next.

        **safety** What is appended and not committed counts, too: two publishers with the same
        expectation cannot both be right."""
        if expected is None:
            return None
        if self.replica.log.subjects is None:  # It is begun now, and is to be kept up to date.
            self._replicas.index_wanted(self.replica)
        try:
            found = expected_end(self.replica, subject)
        except JetstreamError as error:
            return error
        return None if found == expected else wrong_sequence_error(found)

    def _append(self, admitted: Admitted) -> None:
        encoded = batches.encode(
            admitted.values,
            admitted.subjects,
            keys=admitted.keys,
            header_blocks=admitted.header_blocks,
        )
        if not encoded.fits:
            self._append_in_halves(admitted)
            return
        try:
            base_offset = self.replica.append(encoded)
        except JetstreamError as error:
            self._answers.nack_all(admitted.askers(), error)
            return
        if self._spans is not None and admitted.header_blocks is not None:
            self._spans.appended(admitted.header_blocks, base_offset)
        if self.replica.stream.config.acks != "off":
            self._remember(admitted, base_offset, encoded.length)

    def _append_in_halves(self, admitted: Admitted) -> None:
        count = len(admitted.values)
        if count == 1:
            error = MessageTooLargeError(
                f"a message with its headers must fit into {batches.BATCH_BYTES_MAX} bytes"
            )
            self._answers.nack_all(admitted.askers(), error)
            return
        self._append(admitted.only(range(count // 2)))
        self._append(admitted.only(range(count // 2, count)))

    def _remember(self, admitted: Admitted, base_offset: int, length: int) -> None:
        """Answer level `leader` at once, and level `all` after the commit (perhaps already)."""
        answers = self._answers_with_correlation(admitted, base_offset) if admitted.demands else []
        if admitted.early:
            self._answers.ack_early(admitted.early, base_offset)
        replies = self._answers.allowed_replies(admitted)
        end_offset = base_offset + len(admitted.values)
        self._wait(PendingAck(end_offset, base_offset, replies, length, answers))

    def _answers_with_correlation(self, admitted: Admitted, base_offset: int) -> list[Answer]:
        """Remove messages with a correlation id from the ordinary ones. Answers those of level
        `leader`, and returns the answers for the others."""
        answers = []
        for position, demand in admitted.demands.items():
            if not demand.correlation:
                continue
            reply, is_early = admitted.take_reply(position)
            answer = Answer(reply, base_offset + position + 1, correlation=demand.correlation)
            if not self._answers.may_answer(reply):
                continue
            if is_early:
                self._answers.answer(answer)
            else:
                answers.append(answer)
        return answers

    # Batches.

    def _deliver_batch(self, arrived: ArrivedBatch, *, has_room: bool) -> None:
        envelope, reply = arrived.envelope, arrived.reply
        asked = 1 if reply and not envelope.ack_leader else 0
        unpacked = arrived.unpacked_bytes
        error = self._why_not_ack(asked, unpacked)
        if not has_room:
            error = UnavailableError("too many bytes to unpack at once; try again")
        try:
            if error is not None:
                raise error
            if unpacked:
                self._check_unpacking(arrived.unusual_bytes)
            self._store_batch(arrived)
        except JetstreamError as refusal:
            self._answers.refuse(reply, refusal, envelope.correlation)

    def _check_unpacking(self, length: int) -> None:
        """Raise UnavailableError if that much more must not be unpacked now (unpacking.py)."""
        if not length:
            return
        now_us, budgets = self._replicas.now_us(), (self._unpacking, self._bounds.unpacking)
        if not all(budget.has_room(length, now_us) for budget in budgets):
            raise UnavailableError(
                "too many bytes to unpack: these batches are packed more closely than "
                f"{USUAL_RATIO} to one; try again, or pack less closely"
            )
        for budget in budgets:
            budget.take(length)

    def _store_batch(self, arrived: ArrivedBatch) -> None:
        """Append a producer's batch, or recognise it as a duplicate. Raises JetstreamError when it
        is refused."""
        envelope, reply, config = arrived.envelope, arrived.reply, self.replica.stream.config
        encoded, batch, asked = arrived.open()
        if config.is_keyed_by_subject:
            encoded, batch = keyed_by_subject(encoded, batch)
        header, message_id = batch.header, asked.message_id
        if header.producer_id >= 0:
            producers = self.replica.log.producers
            original = producers.check(
                header.producer_id, header.producer_sequence, header.body_crc
            )
            if original is not None:
                count = original.next_offset - original.base_offset
                self._answer_duplicate(
                    Answer(reply, original.next_offset, count, True, envelope.correlation)
                )
                return
        elif message_id:
            now_us, producers = self._replicas.now_us(), self.replica.log.producers
            offset = producers.offset_of(arrived.subject, message_id, now_us)
            if offset is not None:
                self._answer_duplicate(Answer(reply, offset + 1, 1, True, envelope.correlation))
                return
        if asked.rollup and not self._rules.keeps_last_of_subjects:
            raise no_rollup_error()
        error = _expectation_error(
            envelope.expected_offset, self.replica.log.log_end_offset
        ) or self._unexpected_of_subject(arrived.subject, asked.expected_subject_end)
        if error is not None:
            raise error
        if config.max_message_bytes:
            check_record_sizes(batch, config.max_message_bytes)
        if (fitting := self._fitting) is not None:
            fitting.check(batch)
        base_offset = self.replica.append(encoded)
        if self._spans is not None and batch.layout.header_blocks is not None:
            self._spans.appended(batch.header_blocks(), base_offset)
        end_offset = base_offset + encoded.record_count
        answer = Answer(reply, end_offset, encoded.record_count, False, envelope.correlation)
        answers = [answer] if self._answers.may_answer(reply) else []
        if answers and envelope.ack_leader:
            self._answers.answer(answers.pop())
        if answers:
            self._wait(PendingAck(end_offset, base_offset, NO_REPLIES, encoded.length, answers))

    # Answers.

    def _answer_duplicate(self, answer: Answer) -> None:
        """Answer once the original is committed, which it is when the current log end is."""
        self.replica.counters.repeated()
        if not self._answers.may_answer(answer.reply):
            return
        if answer.end_offset <= self.replica.high_watermark:
            self._answers.answer(answer)
            return
        reason = self._bounds.reason(1, 0, self._answers.waiting)
        if reason:
            error = UnavailableError(f"overloaded, try again: {reason}")
            self._answers.refuse(answer.reply, error, answer.correlation)
            return
        end_offset = self.replica.log.log_end_offset
        self._wait(PendingAck(end_offset, end_offset, NO_REPLIES, 0, [answer]))

    def _wait(self, pending: PendingAck) -> None:
        """Add an answer that waits for its commit, which may have happened already."""
        answers, high_watermark = self._answers, self.replica.high_watermark
        is_next = pending.end_offset <= high_watermark and not answers and self._spans is None
        if is_next and self._lease_held():
            answers.give(pending)
            return
        answers.wait(pending)
        if pending.end_offset <= high_watermark or self._spans is not None:
            self.committed()

    def high_watermark_rose(self, _: Replica) -> None:
        """The replica calls it while this node leads."""
        if self._answers or self._spans is not None or self.is_withheld:
            self.committed()

    def committed(self) -> None:
        """Answer everything below the high watermark. **safety** Without its lease this node may
        have been replaced: it answers nothing then, and is called again once the lease holds."""
        if not self._answers and self._spans is None:
            self.is_withheld = False
            return
        self.is_withheld = not self._lease_held()
        if self.is_withheld:
            return
        self._answers.committed(self.replica.high_watermark)
        if self._spans is not None:
            self._spans.committed(self.replica.high_watermark)

    @property
    def pending_count(self) -> int:
        """How many batches have acknowledgements that wait for their commit."""
        return len(self._answers)

    def fail(self, error: UnknownOutcomeError) -> None:
        """Answer the waiting batches with an unknown outcome: they may never be committed."""
        self._answers.fail(error)
        if self._spans is not None:
            self._spans.dropped()

    def drop(self) -> None:
        """Drop the waiting batches without an answer, because the leadership ended."""
        self._answers.drop()
        self.listens_no_more()
        if self._spans is not None:
            self._spans.dropped()


def _expectation_error(expected_offset: int | None, next_offset: int) -> JetstreamError | None:
    """Why a message that expects that offset must not be stored next."""
    if expected_offset in (None, NO_EXPECTATION, next_offset):
        return None
    return wrong_sequence_error(next_offset)


def wrong_sequence_error(last_sequence: int) -> JetstreamError:
    """In JetStream's words, which clients compare."""
    return PreconditionFailedError(f"wrong last sequence: {last_sequence}")
