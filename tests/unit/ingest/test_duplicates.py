"""What comes again at a stream's ingest, by producer and sequence or by message id: it is stored
once, and told so once its original is committed. What only looks like it is no duplicate."""

from __future__ import annotations

from pathlib import Path

from jetstream_protocol.envelope import encode_batch
from jetstream_server.metadata.state.commands import AlterStream
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import (
    PRODUCER,
    SUBJECT,
    batch,
    deliver,
    produced,
    with_headers,
    with_id,
)
from tests.unit.ingest.streams import INBOX, stream_on

OUT_OF_SEQUENCE = 20017
SEQUENCE_TAKEN = 20022


# From a producer.


@on_loop
async def test_a_producers_batches_are_stored_in_sequence_and_once(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(0, b"0"), produced(1, b"1"), produced(0, b"0"), produced(1, b"1"))
    stream.node.flushes.run()
    assert [(a["seq"], a["count"], a.get("duplicate")) for _, a in stream.answers()] == [
        (1, 1, None),
        (2, 1, None),
        (1, 1, True),
        (2, 1, True),
    ]
    deliver(stream, produced(3, b"3"), produced(2, b"2"), produced(3, b"3"))
    (_, refusal) = stream.answers()[0]
    assert refusal["error"]["err_code"] == OUT_OF_SEQUENCE
    assert stream.values() == [b"0", b"1", b"2", b"3"]


@on_loop
async def test_an_unknown_producer_begins_with_its_first_batch(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(1), produced(4), produced(5), produced(1_000))
    assert stream.nacked() == [("_INBOX.a", OUT_OF_SEQUENCE)] * 4
    deliver(stream, produced(0, b"0"), produced(2), produced(1, b"1"))
    assert stream.nacked() == [("_INBOX.a", OUT_OF_SEQUENCE)]
    assert stream.values() == [b"0", b"1"]


@on_loop
async def test_a_duplicate_is_answered_when_its_original_is_committed_and_not_before(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    early = encode_batch(
        batch(b"0", producer_id=PRODUCER, producer_sequence=0),
        ack_inbox=b"_INBOX.d",
        ack_leader=True,
    )
    deliver(stream, produced(0, b"0"))
    deliver(stream, produced(0, b"0"), early)
    assert stream.written == []
    assert stream.bounds.pending_acks == 3
    stream.node.flushes.run()
    assert [(reply, a.get("duplicate")) for reply, a in stream.answers()] == [
        ("_INBOX.a", None),
        ("_INBOX.a", True),
        ("_INBOX.d", True),
    ]
    deliver(stream, produced(0, b"0"))
    assert [a["duplicate"] for _, a in stream.answers()] == [True]
    assert stream.bounds.pending_acks == 0


@on_loop
async def test_a_new_leader_answers_a_duplicate_once_it_has_committed_the_original(
    tmp_path: Path,
) -> None:
    """It has the original in its log, from its predecessor, and nothing pending."""
    stream = stream_on(tmp_path)
    deliver(stream, produced(0, b"0"), produced(1, b"1"))
    stream.lead_anew()
    deliver(stream, produced(0, b"0"), produced(1, b"1"))
    assert stream.written == []
    stream.node.flushes.run()
    stream.ingest.committed()
    assert [(a["seq"], a["duplicate"]) for _, a in stream.answers()] == [(1, True), (2, True)]


@on_loop
async def test_pending_duplicates_are_dropped_in_silence_when_the_leadership_ends(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(0), produced(0))
    stream.ingest.drop()
    stream.node.flushes.run()
    assert stream.written == []
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)


@on_loop
async def test_another_batch_under_a_number_that_is_taken_is_refused_and_never_said_to_be_stored(
    tmp_path: Path,
) -> None:
    """Whoever reads the stream knows the producer's id, and may send its next number first."""
    stream = stream_on(tmp_path)
    deliver(stream, produced(0, b"0"), produced(1, b"a stranger's"))
    stream.node.flushes.run()
    stream.answers()
    early = encode_batch(
        batch(b"1", producer_id=PRODUCER, producer_sequence=1),
        ack_inbox=b"_INBOX.e",
        ack_leader=True,
    )
    deliver(stream, produced(1, b"1"), early, produced(0, b"0"), produced(1, b"a stranger's"))
    refused, refused_early, *duplicates = [answer for _, answer in stream.answers()]
    for refusal in (refused, refused_early):
        assert refusal["error"]["err_code"] == SEQUENCE_TAKEN
        assert "another batch is stored" in refusal["error"]["description"]
    assert [(a["seq"], a["duplicate"]) for a in duplicates] == [(1, True), (2, True)]
    assert stream.values() == [b"0", b"a stranger's"]


# By message id.


@on_loop
async def test_a_message_id_is_stored_once_and_its_repetitions_are_told_where(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    ids = [with_id(b"a"), b"", with_id(b"a"), with_id(b"b"), with_id(b"a"), with_id(b"b")]
    messages = [(b"%d" % i, b"_INBOX.%d" % i) for i in range(6)]
    stream.deliver(*messages, headers=ids, subject=SUBJECT)
    assert stream.written == []
    stream.node.flushes.run()
    assert sorted((reply, a["seq"], a.get("duplicate")) for reply, a in stream.answers()) == [
        ("_INBOX.0", 1, None),
        ("_INBOX.1", 2, None),
        ("_INBOX.2", 1, True),
        ("_INBOX.3", 3, None),
        ("_INBOX.4", 1, True),
        ("_INBOX.5", 3, True),
    ]
    assert stream.values() == [b"0", b"1", b"3"]


@on_loop
async def test_an_id_used_on_another_subject_before_hides_no_message(tmp_path: Path) -> None:
    """A publisher that may not publish on a subject must not make its messages duplicates."""
    stream = stream_on(tmp_path)
    stream.deliver((b"a stranger's", INBOX), headers=[with_id(b"a")], subject=b"orders.theirs")
    stream.deliver(
        (b"ours", INBOX), (b"again", INBOX), headers=[with_id(b"a")] * 2, subject=SUBJECT
    )
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"b")] * 2)
    stream.node.flushes.run()
    answers = [(a["seq"], a.get("duplicate")) for _, a in stream.answers()]
    assert answers == [(1, None), (2, None), (2, True), (3, None), (4, None)]
    assert stream.values() == [b"a stranger's", b"ours", b"1", b"2"]


@on_loop
async def test_a_repetition_within_the_window_is_a_duplicate_and_after_it_a_message(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, duplicate_window_us=1_000_000)
    node = stream.node
    stream.deliver((b"1", INBOX), headers=[with_id(b"a")])
    node.clocks.advance(1_000_000)
    stream.deliver((b"2", INBOX), headers=[with_id(b"a")])
    node.clocks.advance(1)
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")])
    node.flushes.run()
    assert [(a["seq"], a.get("duplicate")) for _, a in stream.answers()] == [
        (1, None),
        (1, True),
        (2, None),
    ]


@on_loop
async def test_the_window_is_altered_while_the_stream_is_led(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX), headers=[with_id(b"a")])
    before = stream.replica.stream
    stream.node.cluster.do(
        AlterStream(
            stream_id=before.id,
            stream_epoch=before.stream_epoch,
            config={"duplicate_window_us": 1_000_000},
        )
    )
    stream.node.apply()
    stream.node.clocks.advance(1_000_001)
    stream.deliver((b"2", INBOX), headers=[with_id(b"a")])
    assert stream.values() == [b"1", b"2"]


@on_loop
async def test_a_window_of_0_turns_it_off(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, duplicate_window_us=0)
    ids = [with_id(b"a")] * 2
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=ids, subject=SUBJECT)
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")], subject=SUBJECT)
    assert stream.values() == [b"1", b"2", b"3"]


@on_loop
async def test_an_empty_message_id_is_none(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"")] * 2, subject=SUBJECT)
    assert stream.values() == [b"1", b"2"]


@on_loop
async def test_duplicates_follow_their_ack_level_but_never_come_before_the_commit(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    blocks = [
        with_headers(b"Nats-Msg-Id: a", b"Jetstream-Ack: " + level)
        for level in (b"all", b"leader", b"none")
    ]
    stream.deliver(*[(b"x", b"_INBOX.%d" % i) for i in range(3)], headers=blocks, subject=SUBJECT)
    assert stream.written == []
    stream.node.flushes.run()
    assert [(reply, a.get("duplicate")) for reply, a in stream.answers()] == [
        ("_INBOX.0", None),
        ("_INBOX.1", True),
    ]


@on_loop
async def test_duplicates_that_wait_are_bounded_too(tmp_path: Path) -> None:
    """Also of level `leader`, which usually wait for nothing."""
    stream = stream_on(tmp_path)
    early = with_headers(b"Nats-Msg-Id: a", b"Jetstream-Ack: leader")
    stream.deliver((b"1", b""), headers=[early], subject=SUBJECT)
    stream.bounds.pending_acks_max = 2
    messages = [(b"1", b"_INBOX.%d" % i) for i in range(4)]
    stream.deliver(*messages, headers=[early] * 4, subject=SUBJECT)
    assert stream.nacked() == [("_INBOX.2", 10008), ("_INBOX.3", 10008)]
    assert stream.bounds.pending_acks == 2
    stream.node.flushes.run()
    assert [(reply, a["duplicate"]) for reply, a in stream.answers()] == [
        ("_INBOX.0", True),
        ("_INBOX.1", True),
    ]


@on_loop
async def test_the_original_of_a_refused_message_is_not_taken_for_stored(tmp_path: Path) -> None:
    """Refused for the bounds: its id must not make the next attempt a duplicate."""
    stream = stream_on(tmp_path)
    stream.bounds.pending_acks_max = 0
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"a")] * 2, subject=SUBJECT)
    assert stream.nacked() == [("_INBOX.a", 10008)] * 2
    stream.bounds.pending_acks_max = 1
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")])
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 1)]
