"""Decisions about batches in flight; their sum is in tests/property/test_in_flight.py."""

from __future__ import annotations

import json

import pytest

from jetstream_client import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    OutOfSequenceError,
    SequenceTakenError,
    StorageFullError,
    StreamPausedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.publishing.in_flight import Done, InFlightBatches, Sending
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_protocol.errors import CODES

ORDERS = frozenset(("orders",))
AUDIT = frozenset(("audit",))


def batch(deadline: float = 100.0) -> Batch:
    made = Batch(0.0, deadline)
    made.extend([b"a", b"b"], None)
    return made


def in_flight(
    *expected: frozenset[str], fixed: bool = False, one_is_enough: bool = False, sequence: int = 0
) -> InFlightBatches:
    ids = iter(range(100, 200))
    return InFlightBatches(
        expected or (ORDERS,),
        one_is_enough=one_is_enough,
        producer_id=7,
        sequence=sequence,
        new_id=None if fixed else lambda: next(ids),
    )


def ack(seq: int, stream: str = "orders", **more: object) -> bytes:
    return json.dumps({"stream": stream, "seq": seq, "count": 2, **more}).encode()


def nack(error: JetstreamError, stream: str = "orders") -> bytes:
    said = {"code": 0, "err_code": CODES[type(error)].nats_err_code, "description": error.message}
    return json.dumps({"error": said, "stream": stream, "seq": 0}).encode()


def added(made: InFlightBatches, count: int, deadline: float = 100.0) -> list[Sending]:
    for _ in range(count):
        made.add(batch(deadline))
    return made.due(0.0)


def answered(
    made: InFlightBatches, sending: Sending, payload: bytes, now: float = 0.0
) -> list[Done]:
    return made.answered(sending.token, payload, now, 0.5)


def test_answers_of_another_cluster_count_for_nothing_and_are_told() -> None:
    made = in_flight()
    made.cluster = "3f9a12c07be4"
    (sent,) = added(made, 1, deadline=5.0)
    assert answered(made, sent, ack(2)) == []
    assert answered(made, sent, nack(InvalidRequestError("never"))) == []
    made.due(1.0)
    assert "another cluster" in made.trouble
    ((_, error),) = made.expire(5.0)
    assert isinstance(error, UnknownOutcomeError)
    assert "another cluster" in error.message


def test_an_answer_of_the_own_cluster_counts() -> None:
    made = in_flight()
    made.cluster = "3f9a12c07be4"
    (sent,) = added(made, 1)
    ((_, error),) = answered(made, sent, ack(2, cluster="3f9a12c07be4"))
    assert error is None


def test_five_batches_are_in_flight_and_no_more() -> None:
    made = in_flight()
    sent = added(made, 5)
    assert [each.sequence for each in sent] == [0, 1, 2, 3, 4]
    assert not made.has_room
    answered(made, sent[1], ack(4))
    assert not made.has_room  # The oldest is not among the last five otherwise.
    answered(made, sent[0], ack(2))
    assert made.has_room


def test_an_acknowledgement_tells_the_first_offset() -> None:
    made = in_flight()
    (sent,) = added(made, 1)
    ((done, error),) = answered(made, sent, ack(12, duplicate=True))
    assert error is None
    assert [(a.stream, a.offset, a.duplicate) for a in done.acks] == [("orders", 10, True)]
    assert made.batches == []


def test_a_refusal_that_may_pass_sends_all_in_flight_again_in_order() -> None:
    made = in_flight()
    sent = added(made, 3)
    answered(made, sent[0], nack(UnavailableError("not now")))
    answered(made, sent[1], nack(OutOfSequenceError("not the next")))
    assert made.due(0.0) == []
    again = made.due(1.0)
    assert [(each.sequence, each.producer_id) for each in again] == [(0, 7), (1, 7), (2, 7)]
    assert [each.batch for each in again] == [each.batch for each in sent]


def test_a_batch_whose_number_is_taken_fails_and_those_after_it_keep_theirs() -> None:
    """A stranger has used the id. After the stranger's batch the others may be stored."""
    made = in_flight()
    sent = added(made, 3)
    ((failed, error),) = answered(made, sent[0], nack(SequenceTakenError("another batch is there")))
    assert failed is sent[0].batch
    assert isinstance(error, SequenceTakenError)
    assert not made.has_room
    assert [each.batch for each in made.due(1.0)] == [sent[1].batch, sent[2].batch]
    ((done, error),) = answered(made, sent[1], ack(4))
    assert (done, error) == (sent[1].batch, None)
    answered(made, sent[2], ack(6))
    (following,) = added(made, 1)
    assert (following.producer_id, following.sequence) == (100, 0)


def test_a_batch_that_a_stranger_has_passed_over_is_not_stored_after_later_ones() -> None:
    """The stranger has used so many numbers that the server does not know this one any more."""
    made = in_flight()
    sent = added(made, 2)
    answered(made, sent[0], nack(UnavailableError("not now")))
    answered(made, sent[1], ack(4))
    (again,) = made.due(1.0)
    ((failed, error),) = answered(made, again, nack(OutOfSequenceError("send 9 next")))
    assert failed is sent[0].batch
    assert isinstance(error, OutOfSequenceError)
    assert made.batches == []


def test_a_number_that_is_taken_leaves_open_what_became_of_an_attempt_without_an_answer() -> None:
    made = in_flight()
    added(made, 1)
    (again,) = made.due(1.0)
    ((_, error),) = answered(made, again, nack(SequenceTakenError("another batch is there")))
    assert isinstance(error, UnknownOutcomeError)


def test_with_a_fixed_id_whose_number_is_taken_nothing_more_is_sent() -> None:
    """Another program has the same id: all that follows would be refused, too."""
    made = in_flight(fixed=True)
    sent = added(made, 2)
    ((failed, _),) = answered(made, sent[0], nack(SequenceTakenError("another batch is there")))
    assert failed is sent[0].batch
    assert isinstance(made.failure, SequenceTakenError)
    ((done, error),) = answered(made, sent[1], ack(4))
    assert (done, error) == (sent[1].batch, None)
    assert not made.has_room


def test_what_is_told_at_the_end_is_the_cause_and_not_that_later_batches_were_refused_too() -> None:
    made = in_flight()
    sent = added(made, 3, deadline=5.0)
    answered(made, sent[0], nack(StorageFullError("the disk is full")))
    answered(made, sent[1], nack(OutOfSequenceError("not the next")))
    answered(made, sent[2], nack(OutOfSequenceError("not the next")))
    assert made.trouble == "the disk is full"
    for _, error in made.expire(5.0):
        assert isinstance(error, StorageFullError)
        assert "the disk is full" in error.message


def test_a_lost_connection_is_told_and_not_what_was_heard_before() -> None:
    made = in_flight()
    (sent,) = added(made, 1, deadline=5.0)
    answered(made, sent, nack(StorageFullError("the disk is full")))
    ((_, error),) = made.expire(5.0, "the connection is lost")
    assert type(error) is UnavailableError
    assert error.message == "the batch was not stored in time: the connection is lost"


def test_a_refusal_of_an_earlier_attempt_is_old_news_and_its_acknowledgement_is_not() -> None:
    made = in_flight()
    (first,) = added(made, 1)
    answered(made, first, nack(UnavailableError("not now")))
    (second,) = made.due(1.0)
    assert answered(made, first, nack(InvalidRequestError("never"))) == []
    assert made.wants(second)
    assert not made.wants(first)
    assert [done.error for done in answered(made, first, ack(2))] == [None]


def test_silence_sends_all_in_flight_again() -> None:
    made = in_flight()
    added(made, 2)
    assert made.due(0.9) == []
    assert [each.sequence for each in made.due(1.0)] == [0, 1]
    assert made.due(1.9) == []
    assert [each.sequence for each in made.due(2.0)] == [0, 1]
    assert made.due(3.9) == []
    assert len(made.due(4.0)) == 2


def test_a_producer_that_the_server_forgot_begins_anew() -> None:
    made = in_flight()
    (first,) = added(made, 1)
    answered(made, first, ack(2))
    (second,) = added(made, 1)
    assert second.sequence == 1
    assert answered(made, second, nack(OutOfSequenceError("who?"))) == []
    (again,) = made.due(0.0)
    assert (again.batch, again.producer_id, again.sequence) == (second.batch, 100, 0)


def test_a_doubtful_batch_is_never_sent_under_another_id() -> None:
    made = in_flight()
    (first,) = added(made, 1)
    answered(made, first, ack(2))
    (second,) = added(made, 1)
    made.due(1.0)  # Unanswered: it may be stored.
    (third,) = made.due(2.0)
    ((_, error),) = answered(made, third, nack(OutOfSequenceError("who?")))
    assert isinstance(error, UnknownOutcomeError)
    assert made.batches == []
    (fresh,) = added(made, 1)
    assert (fresh.producer_id, fresh.sequence) == (100, 0)
    assert second.batch is not fresh.batch


def test_what_is_after_a_refused_batch_goes_on_under_a_new_id() -> None:
    made = in_flight()
    sent = added(made, 3)
    ((refused, error),) = answered(made, sent[1], nack(InvalidRequestError("never")))
    assert refused is sent[1].batch
    assert isinstance(error, InvalidRequestError)
    assert made.due(0.0) == []  # The first one may still be stored: the producer ends with it.
    answered(made, sent[0], ack(2))
    (again,) = made.due(0.0)
    assert (again.batch, again.producer_id, again.sequence) == (sent[2].batch, 100, 0)


def test_what_was_sent_after_an_unknown_batch_is_unknown_too() -> None:
    made = in_flight()
    added(made, 2, deadline=5.0)
    done = made.expire(5.0)
    assert [type(error) for _, error in done] == [UnknownOutcomeError] * 2
    assert made.has_room


def test_a_batch_that_nobody_took_is_known_not_to_be_stored() -> None:
    made = in_flight()
    (sent,) = added(made, 1, deadline=5.0)
    made.not_sent(sent.token, UnavailableError("nobody listens"), 4.0, 0.5)
    ((_, error),) = made.expire(5.0)
    assert type(error) is UnavailableError
    assert "nobody listens" in str(error)


def test_a_batch_that_may_be_stored_stays_unknown_where_no_attempt_is_possible_any_more() -> None:
    made = in_flight()
    added(made, 1)
    (again,) = made.due(2.0)  # Unanswered: it may be stored.
    refused = UnauthenticatedError("NATS knows you no longer")
    ((_, error),) = made.not_sent(again.token, refused, 2.0, 0.5)
    assert isinstance(error, UnknownOutcomeError)
    assert "NATS knows you no longer" in str(error)


def test_a_refusal_that_may_be_none_leaves_the_outcome_unknown() -> None:
    made = in_flight()
    (sent,) = added(made, 1, deadline=5.0)
    answered(made, sent, nack(UnknownOutcomeError("appended, not committed")), now=4.9)
    ((_, error),) = made.expire(5.0)
    assert isinstance(error, UnknownOutcomeError)


def test_every_stream_has_to_acknowledge_each_its_own_way() -> None:
    made = in_flight(ORDERS, AUDIT)
    (sent,) = added(made, 1)
    assert answered(made, sent, ack(2)) == []
    assert answered(made, sent, ack(2)) == []
    ((done, error),) = answered(made, sent, ack(12, "audit"))
    assert error is None
    assert [(a.stream, a.offset) for a in done.acks] == [("orders", 0), ("audit", 10)]


def test_a_batch_that_one_stream_has_and_another_refuses_says_so() -> None:
    made = in_flight(ORDERS, AUDIT)
    (sent,) = added(made, 1)
    answered(made, sent, ack(2))
    ((_, error),) = answered(made, sent, nack(InvalidRequestError("never"), "audit"))
    assert isinstance(error, InvalidRequestError)
    assert error.__notes__ == ["stream 'orders' has stored the batch, from offset 0 on"]


def test_where_one_stream_is_enough_the_refusal_of_another_is_not_an_outcome() -> None:
    made = in_flight(ORDERS, AUDIT, one_is_enough=True)
    first, second = added(made, 2)
    answered(made, first, nack(UnavailableError("not now"), "audit"))
    assert [done.error for done in answered(made, first, ack(2))] == [None]
    assert answered(made, second, nack(OutOfSequenceError("not the next"), "audit")) == []
    assert [done.error for done in answered(made, second, ack(4))] == [None]
    assert made.has_room


@pytest.mark.parametrize("fixed", [False, True])
def test_after_its_last_sequence_a_producer_begins_anew_or_ends(fixed: bool) -> None:
    made = in_flight(fixed=fixed, sequence=2**31 - 1)
    (last,) = added(made, 1)
    assert last.sequence == 2**31 - 1
    assert not made.has_room
    answered(made, last, ack(2))
    assert made.has_room is not fixed
    assert (made.failure is not None) is fixed
    if not fixed:
        (fresh,) = added(made, 1)
        assert (fresh.producer_id, fresh.sequence) == (100, 0)


def test_a_stranger_s_answer_asks_for_a_look_at_the_registry() -> None:
    made = in_flight()
    (sent,) = added(made, 1)
    made.known |= {"known"}
    assert answered(made, sent, ack(2, "known")) == []
    assert not made.stale
    assert answered(made, sent, nack(OutOfSequenceError("who?"), "audit")) == []
    assert made.stale
    made.adopt((ORDERS, AUDIT))
    assert not made.stale
    assert not made.has_room  # What is in flight is not what the new one expects.
    answered(made, sent, ack(2))
    (fresh,) = added(made, 1)
    assert (fresh.producer_id, fresh.sequence) == (100, 0)
    assert answered(made, fresh, ack(4)) == []
    assert [done.error for done in answered(made, fresh, ack(2, "audit"))] == [None]


def test_a_stream_that_is_gone_is_waited_for_no_more() -> None:
    made = in_flight(ORDERS, AUDIT)
    (sent,) = added(made, 1)
    answered(made, sent, ack(2))
    ((done, error),) = made.adopt((ORDERS,))
    assert (done, error) == (sent.batch, None)


def test_an_id_of_ones_own_ends_with_its_first_failure() -> None:
    made = in_flight(fixed=True)
    sent = added(made, 2)
    done = answered(made, sent[0], nack(InvalidRequestError("never")))
    assert [type(error) for _, error in done] == [InvalidRequestError] * 2
    assert made.failure is not None
    assert not made.has_room


def test_an_id_of_ones_own_ends_once_what_is_before_the_failure_is_answered() -> None:
    made = in_flight(fixed=True)
    first, second = added(made, 2)
    ((failed, _),) = answered(made, second, nack(InvalidRequestError("never")))
    assert failed is second.batch
    assert [done.error for done in answered(made, first, ack(2))] == [None]
    made = in_flight(fixed=True)
    first, second = added(made, 2)
    answered(made, second, nack(InvalidRequestError("never")))
    late = made.next_time()
    assert late is not None
    ((failed, error),) = made.expire(late)
    assert failed is first.batch
    assert isinstance(error, UnknownOutcomeError)


PAUSED = StreamPausedError("it is paused")


def on_its_way_again(made: InFlightBatches) -> Sending:
    """The second attempt of a batch whose first one reached nobody."""
    (first,) = added(made, 1)
    made.not_sent(first.token, UnavailableError("nobody listens"), 0.0, 0.5)
    (second,) = made.due(1.0)
    return second


def test_a_failure_waits_for_the_answer_to_what_is_on_its_way() -> None:
    made = in_flight()
    sent = on_its_way_again(made)
    assert made.fail(PAUSED) == []
    assert not made.has_room
    nobody = UnavailableError("nobody listens")
    assert made.not_sent(sent.token, nobody, 1.0, 0.5) == [Done(sent.batch, PAUSED)]
    assert (made.batches, made.next_time()) == ([], None)


def test_what_was_stored_before_a_failure_is_acknowledged() -> None:
    made = in_flight()
    sent = on_its_way_again(made)
    made.fail(PAUSED)
    assert answered(made, sent, ack(2)) == [Done(sent.batch, None)]


def test_after_a_failure_nothing_is_sent_and_silence_is_an_unknown_outcome() -> None:
    made = in_flight()
    sent = on_its_way_again(made)
    made.fail(PAUSED)
    late = made.next_time()
    assert late is not None
    assert made.expire(late - 0.001) == []
    assert made.due(late) == []
    ((failed, error),) = made.expire(late)
    assert failed is sent.batch
    assert isinstance(error, UnknownOutcomeError)


def test_what_waits_for_its_next_attempt_fails_at_once() -> None:
    made = in_flight()
    (first,) = added(made, 1)
    made.not_sent(first.token, UnavailableError("nobody listens"), 0.0, 0.5)
    assert made.fail(PAUSED) == [Done(first.batch, PAUSED)]


@pytest.mark.parametrize("payload", [b'{"stream":"orders","seq":1}', ack(3, count=1)])
def test_a_server_that_takes_an_envelope_for_a_message_is_found_out(payload: bytes) -> None:
    made = in_flight()
    (sent,) = added(made, 1)
    ((_, error),) = answered(made, sent, payload)
    assert isinstance(error, UnknownOutcomeError)
    assert "does it know envelopes" in str(error)


def test_an_answer_that_is_no_acknowledgement_does_not_count_as_one() -> None:
    made = in_flight()
    (sent,) = added(made, 1)
    assert answered(made, sent, b"thank you") == []
    assert made.batches == [sent.batch]


def test_batches_that_are_split_are_no_more_in_flight_than_the_server_recognises() -> None:
    made = in_flight()
    sent = added(made, 5)
    for sending in sent:
        sending.batch.encode(b"orders", 0)
    too_large = MessageTooLargeError("NATS takes less now")
    assert made.not_sent(sent[0].token, too_large, 0.0, 0.5) == []
    again = made.due(0.0)
    assert [each.sequence for each in again] == [0, 1, 2, 3, 4]
    assert len(made.batches) == 6
    assert not made.has_room, "the sixth comes before any other"
    for number, sending in enumerate(again[:2]):
        one = ack(number, count=1)
        assert answered(made, sending, one) == [Done(sending.batch, None)]
    (last,) = made.due(0.0)
    assert (last.sequence, last.batch) == (5, sent[4].batch)
    assert made.has_room


@pytest.mark.parametrize("missed_is_first", [True, False])
def test_one_that_has_missed_a_batch_ends_nothing_that_another_may_take(
    missed_is_first: bool,
) -> None:
    made = in_flight(ORDERS, AUDIT, one_is_enough=True)
    (first,) = added(made, 1)
    assert answered(made, first, ack(2)) == [Done(first.batch, None)]
    (second,) = added(made, 1)
    refusals = [
        nack(OutOfSequenceError("it is not the next"), "audit"),
        nack(UnavailableError("another node leads")),
    ]
    for refusal in refusals if missed_is_first else reversed(refusals):
        assert answered(made, second, refusal) == []
    (again,) = made.due(1.0)
    assert answered(made, again, ack(4)) == [Done(second.batch, None)]


def test_a_producer_that_all_have_forgotten_ends() -> None:
    made = in_flight(ORDERS, AUDIT, one_is_enough=True)
    (sent,) = added(made, 1)
    missed = OutOfSequenceError("it is not the next")
    assert answered(made, sent, nack(missed, "audit")) == []
    ((failed, error),) = answered(made, sent, nack(missed))
    assert failed is sent.batch
    assert isinstance(error, UnknownOutcomeError)
