"""What a log remembers against duplicates: the last five batches of a producer, message ids."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import EncodedBatch, decode_header, encode
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import OutOfSequenceError, SequenceTakenError, UnknownOutcomeError
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from jetstream_server.log import producers as module
from jetstream_server.log.producers import (
    IDLE_US,
    UNKNOWN_CRC,
    Producers,
    StoredBatch,
    concerns,
    message_ids,
)
from tests.support.log_producers import OTHER_CRC, crc_of

P, Q = 2**62 + 1, 7


def batch_of(
    producer_id: int = -1, sequence: int = -1, *, records: int = 1, ids: list[bytes] | None = None
) -> EncodedBatch:
    blocks = None
    if ids is not None:
        records = len(ids)
        blocks = [b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % i if i else b"" for i in ids]
    return encode(
        [b"x"] * records, b"s",
        header_blocks=blocks, producer_id=producer_id, producer_sequence=sequence,
    )  # fmt: skip


class Log:
    """As much of a log as its memory is a function of."""

    def __init__(self, window_us: int = 100) -> None:
        self.known = Producers(window_us)
        self.end_offset = 0

    def append(self, batch: EncodedBatch, timestamp: int = 0) -> int:
        base = self.end_offset
        batch.stamp(base, 0, timestamp)
        if concerns(batch.header):
            self.known.note(decode_header(batch.header), batch.body, timestamp)
        self.end_offset = base + batch.last_offset_delta + 1
        return base

    def produce(self, producer_id: int, sequences: range, records: int = 1, at: int = 0) -> None:
        for sequence in sequences:
            self.append(batch_of(producer_id, sequence, records=records), at)

    def truncate(self, end_offset: int) -> None:
        self.known.truncate(end_offset)
        self.end_offset = end_offset


@pytest.fixture
def log() -> Log:
    return Log()


def stored(sequence: int, base_offset: int, next_offset: int) -> StoredBatch:
    """A batch of these offsets, as `Log.produce` appends it."""
    crc = crc_of(batch_of(P, sequence, records=next_offset - base_offset))
    return StoredBatch(sequence, base_offset, next_offset, crc)


def check(
    known: Producers, producer_id: int, sequence: int, records: int = 1
) -> StoredBatch | None:
    batch = batch_of(producer_id, sequence, records=records)
    return known.check(producer_id, sequence, crc_of(batch))


def refused(known: Producers, producer_id: int, sequence: int) -> str:
    with pytest.raises(OutOfSequenceError) as refusal:
        check(known, producer_id, sequence)
    return refusal.value.message


def test_the_next_batch_is_appended_and_each_of_the_last_five_is_a_duplicate(log: Log) -> None:
    log.produce(P, range(8), records=10)
    assert check(log.known, P, 8) is None
    for sequence in range(3, 8):
        original = stored(sequence, sequence * 10, sequence * 10 + 10)
        assert check(log.known, P, sequence, records=10) == original


def test_a_batch_that_skips_one_or_is_older_than_the_last_five_is_refused(log: Log) -> None:
    log.produce(P, range(8))
    assert "send 8 next" in refused(log.known, P, 9)
    assert "send 8 next" in refused(log.known, P, 2)


def test_a_producer_that_is_not_known_begins_with_its_first_batch(log: Log) -> None:
    """Any other may have one before it that is still on its way, or is to be repeated: of five in
    flight the later ones must not be taken where the earlier ones were not."""
    assert check(log.known, P, 0) is None
    for sequence in (1, BATCHES_IN_FLIGHT_MAX - 1, BATCHES_IN_FLIGHT_MAX, 1_000):
        assert "begin with sequence 0" in refused(log.known, P, sequence)


def test_a_producer_goes_on_where_the_log_says_wherever_that_begins(log: Log) -> None:
    """Retention has removed the batches before: a replica that was filled since never saw them."""
    log.produce(P, range(57, 60))
    assert check(log.known, P, 60) is None
    assert check(log.known, P, 57) == stored(57, 0, 1)
    refused(log.known, P, 61)
    refused(log.known, P, 56)
    log.truncate(0)
    assert check(log.known, P, 57) is None
    refused(log.known, P, 58)


def test_producers_do_not_concern_each_other_nor_do_plain_batches(log: Log) -> None:
    log.produce(P, range(3))
    log.append(batch_of())
    log.produce(Q, range(1))
    log.append(batch_of())
    log.produce(P, range(3, 4))
    assert check(log.known, P, 2) == stored(2, 2, 3)
    assert check(log.known, P, 3) == stored(3, 6, 7)
    assert check(log.known, Q, 0) == stored(0, 4, 5)


def test_a_truncation_forgets_what_it_cut_off(log: Log) -> None:
    log.produce(P, range(5), records=10)
    log.truncate(30)
    assert check(log.known, P, 3) is None
    assert check(log.known, P, 2, records=10) == stored(2, 20, 30)
    assert "send 3 next" in refused(log.known, P, 4)


def test_a_producer_cut_off_whole_goes_on_where_it_was_and_skips_nothing(log: Log) -> None:
    log.produce(P, range(9))
    log.truncate(4)
    assert check(log.known, P, 4) is None
    assert "send 4 next" in refused(log.known, P, 5)
    log.produce(P, range(4, 5))
    assert check(log.known, P, 5) is None
    assert check(log.known, P, 4) == stored(4, 4, 5)


@pytest.mark.parametrize("ends", [(3,), (4, 3), (9, 7, 4, 3)])
def test_a_producer_of_which_more_went_than_was_remembered_must_begin_anew(
    log: Log, ends: tuple[int, ...]
) -> None:
    """Whichever it sent next, it would be a duplicate or leave a gap for all one knows."""
    log.produce(P, range(9))
    for end in ends:
        log.truncate(end)
    for sequence in range(10):
        assert "begin with sequence 0, under a new id" in refused(log.known, P, sequence)


def test_a_producer_whose_first_batch_is_cut_off_is_unknown_again(log: Log) -> None:
    log.produce(P, range(3))
    log.truncate(0)
    assert check(log.known, P, 0) is None
    refused(log.known, P, 1)
    assert not log.known


def test_a_producer_that_begins_anew_forgets_its_batches_of_before(log: Log) -> None:
    log.produce(P, range(4))
    log.produce(P, range(1))
    assert check(log.known, P, 0) == stored(0, 4, 5)
    assert check(log.known, P, 1) is None
    refused(log.known, P, 3)


def test_a_producer_silent_for_a_day_is_forgotten_and_one_that_spoke_is_not(log: Log) -> None:
    log.produce(P, range(1))
    log.produce(Q, range(1), at=1)
    log.produce(Q, range(1, 2), at=IDLE_US)
    assert check(log.known, P, 0) is not None
    log.produce(Q, range(2, 3), at=IDLE_US + 1)
    refused(log.known, P, 1)
    assert check(log.known, Q, 2) is not None


def test_beyond_the_bound_the_producer_silent_longest_is_forgotten(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    for producer_id in range(3):
        log.produce(producer_id, range(1))
    log.produce(0, range(1, 2))
    log.produce(3, range(1))
    refused(log.known, 1, 1)
    for producer_id, sequence in ((0, 1), (2, 0), (3, 0)):
        assert check(log.known, producer_id, sequence) is not None


def test_a_number_that_is_taken_is_a_duplicate_only_with_the_same_content(log: Log) -> None:
    """Whoever reads a batch knows its producer's id and number."""
    log.produce(P, range(8))
    for sequence in range(3, 8):
        assert check(log.known, P, sequence) == stored(sequence, sequence, sequence + 1)
        with pytest.raises(SequenceTakenError, match=f"another batch .* at offset {sequence}"):
            log.known.check(P, sequence, OTHER_CRC)
    assert log.known.check(P, 8, OTHER_CRC) is None


def test_what_cannot_be_compared_is_neither_a_duplicate_nor_refused_for_certain(log: Log) -> None:
    """Compaction has removed rows before this log was copied, and its CRC with them."""
    compacted = encode(
        [b"x"], b"s",
        offset_deltas=[1], last_offset_delta=2, producer_id=P, producer_sequence=0,
    )  # fmt: skip
    log.append(compacted)
    for crc in (crc_of(compacted), OTHER_CRC):
        with pytest.raises(UnknownOutcomeError, match="may be stored already"):
            log.known.check(P, 0, crc)
    assert log.known.unknown_contents() == [0]
    assert check(log.known, P, 1) is None


def test_a_content_that_was_not_known_is_learned_from_the_batch(log: Log) -> None:
    log.produce(P, range(2))
    (known,) = log.known.image()[0]
    blind = tuple(each._replace(body_crc=UNKNOWN_CRC) for each in known[1].batches)
    again = Producers(100, ((P, known[1]._replace(batches=blind)),))
    assert again.unknown_contents() == [0, 1]
    batch = batch_of(P, 1)
    batch.stamp(1, 0, 0)
    again.learn_content(decode_header(batch.header))
    assert again.unknown_contents() == [0]
    assert check(again, P, 1) == stored(1, 1, 2)


def test_compaction_is_told_the_last_batches_of_every_producer(log: Log) -> None:
    log.produce(P, range(7), records=2)
    log.append(batch_of())
    log.produce(Q, range(2))
    assert log.known.kept_base_offsets() == {4, 6, 8, 10, 12, 15, 16}


# Message ids


def test_an_id_is_known_for_the_window_and_not_longer(log: Log) -> None:
    log.append(batch_of(ids=[b"a", b"", b"b"]), 1000)
    assert log.known.offset_of(b"s", b"a", 1100) == 0
    assert log.known.offset_of(b"s", b"b", 1100) == 2
    assert log.known.offset_of(b"s", b"c", 1100) is None
    assert log.known.offset_of(b"s", b"a", 1101) is None
    log.known.expire(1100)
    assert log.known.holds_message_ids
    log.known.expire(1101)
    assert not log.known


def test_an_id_belongs_to_its_subject(log: Log) -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"
    subjects = [b"s.1", b"s.2", b"s"]
    log.append(encode([b"x"] * 3, subjects, header_blocks=[block % i for i in (b"a", b"a", b"b")]))
    assert [log.known.offset_of(subject, b"a", 0) for subject in subjects] == [0, 1, None]
    assert [log.known.offset_of(subject, b"b", 0) for subject in subjects] == [None, None, 2]


def test_no_id_passes_for_another_one_that_is_remembered_by_its_digest(log: Log) -> None:
    long = b"x" * 1_000
    log.append(batch_of(ids=[long]))
    ((_, _, known_by),) = log.known.image()[1]
    assert log.known.offset_of(b"s", known_by, 0) is None
    assert log.known.offset_of(b"s", known_by[1:], 0) is None
    assert log.known.offset_of(b"s.x", long, 0) is None


def test_without_a_window_no_id_is_remembered(log: Log) -> None:
    log.known.window_us = 0
    log.append(batch_of(ids=[b"a"]), 1000)
    assert log.known.offset_of(b"s", b"a", 1000) is None


def test_an_id_used_again_after_the_window_names_the_later_record(log: Log) -> None:
    log.append(batch_of(ids=[b"a"]), 0)
    log.append(batch_of(ids=[b"a"]), 101)
    assert log.known.offset_of(b"s", b"a", 201) == 1


def test_a_truncation_forgets_ids_too(log: Log) -> None:
    log.append(batch_of(ids=[b"a", b"b"]))
    log.append(batch_of(ids=[b"c"]))
    log.truncate(2)
    assert log.known.offset_of(b"s", b"b", 0) == 1
    assert log.known.offset_of(b"s", b"c", 0) is None


def test_what_the_disk_lost_in_front_is_no_duplicate_and_the_rest_still_is(log: Log) -> None:
    log.produce(P, range(4))
    log.append(batch_of(ids=[b"a"]))
    log.append(batch_of(ids=[b"b"]))
    log.known.forget_before(2)
    assert check(log.known, P, 2) == stored(2, 2, 3)
    assert check(log.known, P, 4) is None
    refused(log.known, P, 1)
    log.known.forget_before(5)
    assert check(log.known, P, 0) is None
    refused(log.known, P, 3)
    assert (log.known.offset_of(b"s", b"a", 0), log.known.offset_of(b"s", b"b", 0)) == (None, 5)


def test_only_so_many_ids_are_remembered_and_the_oldest_go(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MESSAGE_IDS_MAX", 3)
    log.append(batch_of(ids=[b"a", b"b", b"c", b"d"]))
    assert [log.known.offset_of(b"s", i, 0) for i in (b"a", b"b", b"c", b"d")] == [None, 1, 2, 3]


def test_long_ids_are_told_apart_and_cost_no_more_than_short_ones(log: Log) -> None:
    long, other = b"x" * 100_000, b"x" * 99_999 + b"y"
    log.append(batch_of(ids=[long]))
    assert log.known.offset_of(b"s", long, 0) == 0
    assert log.known.offset_of(b"s", other, 0) is None
    ((_, _, known_by),) = log.known.image()[1]
    assert len(known_by) == 33


def ids_in(blocks: list[bytes], **options: int) -> list[tuple[int, bytes, bytes]]:
    batch = encode([b"x"] * len(blocks), b"s", header_blocks=blocks, **options)  # type: ignore[arg-type]
    batch.stamp(100, 0, 0)
    return message_ids(decode_header(batch.header), batch.body)


def test_ids_are_found_wherever_in_a_block_they_stand() -> None:
    blocks = [
        b"NATS/1.0\r\nX: y\r\nNats-Msg-Id: a b \t\r\nZ: z\r\n\r\n",
        b"",
        b"NATS/1.0\r\nNats-Msg-Id:c\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Ids: d\r\nx-Nats-Msg-Id: e\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id \t: f\xff\r\n\r\n",
    ]
    assert ids_in(blocks) == [(100, b"s", b"a b"), (102, b"s", b"c"), (105, b"s", b"f\xff")]


def test_a_compressed_batch_is_a_producers_and_is_not_searched(log: Log) -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
    log.append(encode([b"x"], b"s", header_blocks=[block], compression=Flags.LZ4))
    assert log.known.offset_of(b"s", b"a", 0) is None
    log.append(encode([b"x"], b"s", header_blocks=[block]))
    assert log.known.offset_of(b"s", b"a", 0) == 1


def test_two_blocks_that_only_together_read_like_the_header_carry_no_id() -> None:
    assert ids_in([b"NATS/1.0\r\nNats-Msg", b"-Id: a\r\n\r\n"]) == []
    assert ids_in([b"NATS/1.0\r\nNats-Msg-Id: a", b"b\r\n\r\n"]) == []


def test_records_that_compaction_left_keep_their_ids_at_their_offsets() -> None:
    blocks = [b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: b\r\n\r\n"]
    compacted = encode(
        [b"x", b"x"], b"s", header_blocks=blocks, offset_deltas=[2, 6], last_offset_delta=9
    )
    compacted.stamp(100, 0, 0)
    found = message_ids(decode_header(compacted.header), compacted.body)
    assert found == [(102, b"s", b"a"), (106, b"s", b"b")]


def test_a_body_that_is_no_batch_carries_no_ids() -> None:
    batch = batch_of(ids=[b"a"])
    batch.stamp(0, 0, 0)
    assert message_ids(decode_header(batch.header), b"") == []
