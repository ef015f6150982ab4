"""Storing once what publishers repeat."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import OutOfSequenceError
from jetstream_server.ingest.stream.acks import Answer
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from jetstream_server.log import producers
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.producers import Producers, StoredBatch
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import Swaps


@mutant()
def acknowledges_duplicates_early(patches: Patches) -> None:
    """A duplicate is acknowledged although its original is not committed yet."""

    def at_once(self: StreamIngest, answer: Answer) -> None:
        self._answers.answer(answer)

    patches.set(StreamIngest, "_answer_duplicate", at_once)


@mutant()
def accepts_gaps(patches: Patches) -> None:
    """A batch is appended although the ones before it were not."""
    check = Producers.check

    def lenient(
        self: Producers, producer_id: int, sequence: int, body_crc: int
    ) -> StoredBatch | None:
        try:
            return check(self, producer_id, sequence, body_crc)
        except OutOfSequenceError:
            return None

    patches.set(Producers, "check", lenient)


@mutant()
def begins_anywhere(patches: Patches) -> None:
    """A producer that is not known may begin with any sequence."""
    check = Producers.check

    def lenient(
        self: Producers, producer_id: int, sequence: int, body_crc: int
    ) -> StoredBatch | None:
        is_known = producer_id in self._producers
        return check(self, producer_id, sequence, body_crc) if is_known else None

    patches.set(Producers, "check", lenient)


@mutant()
def followers_note_nothing(patches: Patches) -> None:
    """Followers do not remember the batches they append."""
    patches.set(Producers, "note_all", lambda self, *arguments: None)


@mutant(Swaps)
def remembers_what_was_truncated(patches: Patches) -> None:
    """Truncation leaves in memory what it takes out of the log."""
    patches.set(Producers, "truncate", lambda self, log_end_offset: None)


@mutant()
def forgets_producers_at_a_restart(patches: Patches) -> None:
    """A log that is opened again knows nobody."""
    open_ = CommitLog.open

    def forgetful(*arguments: Any, **rest: Any) -> CommitLog:
        log = open_(*arguments, **rest)
        log.producers.clear()
        return log

    patches.set(CommitLog, "open", forgetful)


@mutant()
def forgets_message_ids(patches: Patches) -> None:
    """A repeated message is stored again."""
    patches.set(Producers, "offset_of", lambda self, subject, message_id, now_us: None)


@mutant()
def takes_any_batch_of_a_number_for_the_same(patches: Patches) -> None:
    """A batch is a duplicate by its producer's id and number alone."""
    patches.set(producers, "_check_content", lambda stored, producer_id, body_crc: None)


@mutant()
def takes_an_id_for_the_same_on_any_subject(patches: Patches) -> None:
    """A message is a duplicate by its id alone."""
    patches.set(producers, "known_by", lambda subject, message_id: message_id)
