"""Two producers of one log: their next batches, and what the log must remember of them."""

from __future__ import annotations

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import OutOfSequenceError, SequenceTakenError, UnknownOutcomeError
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.producers import LOST, UNKNOWN_CRC, StoredBatch, sent_crc
from tests.support.log_batches import read_all

OTHER_CRC = 0x7E57
"""Of no body in these tests."""


def next_of(log: CommitLog, producer_id: int) -> dict[str, int]:
    """What makes a batch that producer's next one; nothing where none of its batches is taken."""
    known = dict(log.producers.image()[0]).get(producer_id)
    if known is not None and known.last_sequence == LOST:
        return {}
    sequence = 0 if known is None else known.last_sequence + 1
    return {"producer_id": producer_id, "producer_sequence": sequence}


def check_producers(log: CommitLog) -> None:
    """None of the last five of a producer would be stored again, none after a gap, and nothing
    else is taken for one of them."""
    headers = [found.header for found in read_all(log)]
    known = dict(log.producers.image()[0])
    for producer_id in (0, 1):
        of_it = [header for header in headers if header.producer_id == producer_id]
        stored = [
            StoredBatch(h.producer_sequence, h.base_offset, h.next_offset, sent_crc(h))
            for h in of_it
        ]
        crcs = {each.base_offset: each.body_crc for each in stored}
        remembered = known[producer_id].batches if producer_id in known else ()
        in_the_log = [each for each in remembered if each.next_offset > log.log_start_offset]
        # Of what compaction has made shorter, the memory may know more than the log.
        as_stored = [
            each._replace(body_crc=UNKNOWN_CRC)
            if crcs.get(each.base_offset) == UNKNOWN_CRC
            else each
            for each in in_the_log
        ]
        assert set(as_stored) <= set(stored), "remembers what is not there"
        # Of what retention has removed, the memory may know more than the log.
        last_known = known[producer_id].last_sequence if producer_id in known else -1
        last = stored[-1].sequence if stored else last_known
        for sequence in range(max(0, last + 1 - min(BATCHES_IN_FLIGHT_MAX, len(stored))), last + 1):
            assert not lets_in(log, producer_id, sequence), "would be stored twice"
        for each in in_the_log:
            if each.body_crc == UNKNOWN_CRC:
                continue
            assert log.producers.check(producer_id, each.sequence, each.body_crc) == each
        for sequence in range(last + 2, last + 2 + BATCHES_IN_FLIGHT_MAX):
            assert not lets_in(log, producer_id, sequence), "would leave a gap"


def lets_in(log: CommitLog, producer_id: int, sequence: int) -> bool:
    """Whether the log takes a batch that it does not hold under that number."""
    try:
        return log.producers.check(producer_id, sequence, OTHER_CRC) is None
    except (OutOfSequenceError, SequenceTakenError, UnknownOutcomeError):
        return False


def crc_of(batch: EncodedBatch) -> int:
    """Of the batch's body."""
    return int.from_bytes(batch.header[12:16], "little")
