"""Clients at work (client_work.py): no seed breaks a promise, and each rule is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from jetstream_client.publishing import in_flight
from jetstream_client.reading import cursor
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.fetch_buffer import Course
from jetstream_client.reading.group_consumer import AsyncGroupConsumer
from jetstream_client.reading.membership import Membership
from tests.simulation import client_work
from tests.simulation.runner import CLIENTS, Totals, run_seeds, story

SEEDS = 15
MUTANT_SEEDS = 150

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with capture_logs():
        yield
    logging.disable(logging.NOTSET)


def test_no_seed_breaks_a_promise() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=CLIENTS)
    assert failure is None, story(failure)
    assert totals.counts["handed out"] > 100 * SEEDS


def test_a_seed_replays_exactly() -> None:
    first, again = (client_work.run(3, tracing=True) for _ in range(2))
    assert first.world.trace == again.world.trace
    assert first.world.events == again.world.events


def what_was_handed_out_last_is_done(patch: Patch) -> None:
    def done(self: Course) -> tuple[int, int]:
        return max(self.floor, self.current.end())

    patch.setattr(Course, "done", done)


def a_member_goes_on_after_its_session(patch: Patch) -> None:
    patch.setattr(Membership, "_has_lapsed", property(lambda self: False))


def it_says_that_it_holds_what_it_was_told_to(patch: Patch) -> None:
    patch.setattr(AsyncGroupConsumer, "_held", lambda self: self._membership.told)


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
        self.buffer.asks()
        await close(self)

    patch.setattr(AsyncConsumer, "aclose", aclose)


def what_was_not_acknowledged_was_not_stored(patch: Patch) -> None:
    patch.setattr(in_flight, "_is_perhaps_stored", lambda batch: False)


MUTANTS: Collection[Callable[[Patch], None]] = [
    what_was_handed_out_last_is_done,
    a_member_goes_on_after_its_session,
    it_says_that_it_holds_what_it_was_told_to,
    a_commit_follows_any_other,
    what_failed_is_committed,
    what_was_not_acknowledged_was_not_stored,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    totals = Totals()
    failure = run_seeds(range(MUTANT_SEEDS), totals, kind=CLIENTS)
    while failure is not None and not failure.is_violation:
        failure = run_seeds(range(failure.seed + 1, MUTANT_SEEDS), totals, kind=CLIENTS)
    assert failure is not None, "it lives"
