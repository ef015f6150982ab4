"""Clients at work (client_work.py): no seed breaks a promise, and each rule is needed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from jetstream_client import AsyncClient
from jetstream_client.processing import processor, queue
from jetstream_client.processing.processor import Processor
from jetstream_client.processing.queue import AsyncQueue, AsyncQueueMessage
from jetstream_client.processing.schedule import Schedule
from jetstream_client.publishing import ack, in_flight, plain_publisher
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.subject_routes import SubjectRoute
from jetstream_client.reading import cursor
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.fetch_buffer import Course
from jetstream_client.reading.group_consumer import AsyncGroupConsumer
from jetstream_client.reading.membership import Membership
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.transport.follow import Follow, Following
from jetstream_server.consumers.manager import Consumers
from jetstream_server.cursors.coordinator import Heartbeat
from tests.simulation import client_work
from tests.simulation.runner import CLIENTS, Totals, run_clients, run_seeds, story

SEEDS = range(7)
MUTANT_SEEDS = 1_000

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with capture_logs():
        yield
    logging.disable(logging.NOTSET)


def test_no_seed_breaks_a_promise() -> None:
    totals = Totals()
    failure = run_seeds(SEEDS, totals, kind=CLIENTS)
    assert failure is None, story(failure)
    assert totals.counts["handed out"] > 100 * len(SEEDS)


def test_a_seed_replays_exactly() -> None:
    first, again = (client_work.run(3, tracing=True) for _ in range(2))
    assert first.world.trace == again.world.trace
    assert first.world.events == again.world.events


def batches_come_without_a_look_at_the_session(patch: Patch) -> None:
    async def next_messages(
        self: AsyncGroupConsumer, max_records: int | None = None
    ) -> tuple[AsyncConsumer, Messages] | None:
        while await self.refill() is not None:
            part = self._current
            messages = None if part is None else part.consumer.takes_batch(max_records)
            if part is not None and messages is not None:
                return part.consumer, messages
        return None

    patch.setattr(AsyncGroupConsumer, "next_messages", next_messages)


def what_was_handed_out_last_is_done(patch: Patch) -> None:
    def done(self: Course) -> tuple[int, int]:
        return max(self.floor, self.current.end())

    patch.setattr(Course, "done", done)


def a_member_goes_on_after_its_session(patch: Patch) -> None:
    patch.setattr(Membership, "_has_lapsed", property(lambda self: False))


def it_says_that_it_holds_what_it_was_told_to(patch: Patch) -> None:
    patch.setattr(AsyncGroupConsumer, "_held", lambda self: self._membership.told)


def a_first_heartbeat_takes_a_name(patch: Patch) -> None:
    patch.setattr(Heartbeat, "must_ask_again", lambda self, group: False)


def a_commit_follows_any_other(patch: Patch) -> None:
    commit_of = cursor.commit_of

    def of_any(*arguments: Any) -> Any:
        commit = commit_of(*arguments)
        commit.ClearField("expected_revision")
        return commit

    patch.setattr(cursor, "commit_of", of_any)


def what_failed_is_committed(patch: Patch) -> None:
    close = AsyncConsumer.aclose

    async def aclose(self: AsyncConsumer) -> None:
        self.buffer.mark_handed_out_done()
        await close(self)

    patch.setattr(AsyncConsumer, "aclose", aclose)


def a_processing_is_done_with_what_it_has_read(patch: Patch) -> None:
    patch.setattr(Schedule, "checkpoint", lambda self, stream: self._readings[stream].next)


def what_was_not_acknowledged_was_not_stored(patch: Patch) -> None:
    patch.setattr(in_flight, "_is_perhaps_stored", lambda batch: False)


def a_reader_is_done_with_what_it_has_begun(patch: Patch) -> None:
    begun = AsyncConsumer.__anext__

    async def anext_done(self: AsyncConsumer) -> Message:
        message = await begun(self)
        self.buffer.mark_handed_out_done()
        return message

    patch.setattr(AsyncConsumer, "__anext__", anext_done)


def a_commit_waits_for_the_calls_before_it(patch: Patch) -> None:
    patch.setattr(cursor, "_GRACE_SHARE", 100.0)


def what_was_doubtful_was_refused(patch: Patch) -> None:
    patch.setattr(plain_publisher, "doubtful_error", lambda subject, error: error)


def a_message_without_an_id_is_sent_again(patch: Patch) -> None:
    again = PlainPublisher._again
    patch.setattr(
        PlainPublisher, "_again", lambda self, *arguments: again(self, *arguments[:-1], True)
    )


def ids_are_remembered_for_ever(patch: Patch) -> None:
    patch.setattr(SubjectRoute, "recognises_ids", lambda self, seconds: True)


def the_answer_of_another_cluster_counts(patch: Patch) -> None:
    parse = ack.parse_ack
    patch.setattr(ack, "parse_ack", lambda payload, cluster="": parse(payload))


def an_output_is_not_waited_for(patch: Patch) -> None:
    publish = Processor._publish_output

    beside = set[asyncio.Future[None]]()

    async def at_last(self: Processor, *output: Any) -> None:
        beside.add(asyncio.ensure_future(publish(self, *output)))

    patch.setattr(Processor, "_publish_output", at_last)


def a_dead_letter_is_not_waited_for(patch: Patch) -> None:
    async def not_at_all(self: Processor, work: Any, error: BaseException) -> None: ...

    patch.setattr(Processor, "_publish_dead_letter", not_at_all)


def each_try_has_an_id_of_its_own(patch: Patch) -> None:
    named, numbers = processor.message_id, itertools.count()
    patch.setattr(processor, "message_id", lambda *place: f"{named(*place)}-{next(numbers)}")


def a_silent_server_is_waited_for(patch: Patch) -> None:
    patient = Follow.next
    patch.setattr(Follow, "next", lambda self, wait, patience: patient(self, wait, 1e6))


def only_the_newest_that_has_come_is_taken(patch: Patch) -> None:
    take = Follow._take

    def newest(self: Follow) -> Any:
        self._tails = self._tails[-1:]
        return take(self)

    patch.setattr(Follow, "_take", newest)


def a_follow_is_read_wherever_it_stands(patch: Patch) -> None:
    patch.setattr(Following, "at", lambda self, request: self._follow)


def a_dead_letter_of_a_queue_is_not_waited_for(patch: Patch) -> None:
    async def not_at_all(publish: Any) -> None: ...

    patch.setattr(queue, "as_it_fits", not_at_all)


def what_waits_in_a_reader_is_not_extended(patch: Patch) -> None:
    async def never(self: AsyncQueue, about: Any) -> None: ...

    patch.setattr(AsyncQueue, "_extend_buffered", never)


def an_ack_is_answered_before_it_is_kept(patch: Patch) -> None:
    async def at_once(self: Consumers, *_: Any) -> None: ...

    patch.setattr(Consumers, "until_stored", at_once)


def what_the_leader_does_not_know_was_heard(patch: Patch) -> None:
    ack = AsyncQueueMessage.ack

    async def heard(self: AsyncQueueMessage) -> bool:
        await ack(self)
        return True

    patch.setattr(AsyncQueueMessage, "ack", heard)


def latest_is_for_all_streams(patch: Patch) -> None:
    async def newest(self: AsyncClient, group: str, source: str) -> int:
        return max((each.id for each in await self.list_streams()), default=0)

    patch.setattr(AsyncClient, "_newest_stream", newest)


class Mutant(NamedTuple):
    """seed: the recorded one, in which it dies, tried first. why: what it then breaks."""

    apply: Callable[[Patch], None]
    seed: int
    why: str


NO_SESSION = "reads without a session"

MUTANTS = [
    Mutant(batches_come_without_a_look_at_the_session, 89, NO_SESSION),
    Mutant(what_was_handed_out_last_is_done, 0, "are passed over"),
    Mutant(a_member_goes_on_after_its_session, 0, NO_SESSION),
    Mutant(it_says_that_it_holds_what_it_was_told_to, 0, "says that it holds"),
    Mutant(a_first_heartbeat_takes_a_name, 5, "takes the name"),
    Mutant(a_commit_follows_any_other, 3, "a position goes back"),
    Mutant(a_commit_follows_any_other, 12, "alone: who was replaced commits"),
    Mutant(a_reader_is_done_with_what_it_has_begun, 4, "alone: records .* are passed over"),
    Mutant(what_failed_is_committed, 4, "are passed over"),
    Mutant(a_processing_is_done_with_what_it_has_read, 6, "are passed over"),
    Mutant(what_was_not_acknowledged_was_not_stored, 0, "stored twice"),
    Mutant(a_commit_waits_for_the_calls_before_it, 32, "has closed its client"),
    Mutant(what_was_doubtful_was_refused, 8, "was refused, and is stored"),
    Mutant(a_message_without_an_id_is_sent_again, 7, "a message is stored twice"),
    Mutant(ids_are_remembered_for_ever, 20, "a message is stored twice"),
    Mutant(the_answer_of_another_cluster_counts, 5, "acknowledged, and not stored"),
    Mutant(an_output_is_not_waited_for, 33, "are passed over"),
    Mutant(a_dead_letter_is_not_waited_for, 17, "are passed over"),
    Mutant(each_try_has_an_id_of_its_own, 17, "' is stored twice"),
    Mutant(a_silent_server_is_waited_for, 26, "never handled"),
    Mutant(only_the_newest_that_has_come_is_taken, 22, "goes on at|passed over"),
    Mutant(a_follow_is_read_wherever_it_stands, 11, "goes on at|passed over"),
    Mutant(a_dead_letter_of_a_queue_is_not_waited_for, 1, "is ended"),
    Mutant(what_waits_in_a_reader_is_not_extended, 31, "which waits in"),
    Mutant(an_ack_is_answered_before_it_is_kept, 25, "comes again, and was done"),
    Mutant(what_the_leader_does_not_know_was_heard, 48, "comes again, and was done"),
    Mutant(latest_is_for_all_streams, 14, "are passed over"),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.apply.__name__)
def test_mutant_dies(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the recorded seed, or, once a change has moved what happens in it, by another."""
    mutant.apply(monkeypatch)
    for seed in (mutant.seed, *range(MUTANT_SEEDS)):
        _, reason = run_clients(seed, Totals())
        if re.search(mutant.why, reason):
            return
    raise AssertionError("it lives")
