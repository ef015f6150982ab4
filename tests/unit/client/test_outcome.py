"""The outcome of a batch: all who wait hear of it, and nobody can keep it from being set."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from jetstream_client import UnavailableError
from jetstream_client.publishing.deliveries import Delivery
from jetstream_client.publishing.outcome import Outcome
from jetstream_client.publishing.record_accumulator import Batch
from tests.support.loops import on_loop

ERROR = UnavailableError("no leader")


def test_an_interrupt_as_a_lock_is_taken_keeps_no_outcome_from_being_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python runs the handlers of signals between the taking of a lock and what releases it."""
    real, me = threading.Condition.__enter__, threading.get_ident()

    def taken(self: threading.Condition) -> bool:
        found = real(self)
        if threading.get_ident() == me:
            raise KeyboardInterrupt
        return found

    batch = Batch(0.0, 0.0)
    delivery = Delivery(batch, "orders.x", 0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", taken)
        for use in (delivery.done, lambda: delivery.exception(0), lambda: delivery.exception(0.01)):
            with suppress(KeyboardInterrupt, TimeoutError):
                use()
    setting = threading.Thread(target=batch.future.set_exception, args=(ERROR,), daemon=True)
    setting.start()
    setting.join(60)
    assert not setting.is_alive(), "the client's thread waits for ever"
    assert delivery.exception(0) is ERROR


def test_threads_that_wait_and_callbacks_hear_of_it_however_they_come() -> None:
    for _ in range(200):
        outcome: Outcome[int] = Outcome()
        heard: list[Any] = []

        def wait(outcome: Outcome[int] = outcome, heard: list[Any] = heard) -> None:
            outcome.add_done_callback(lambda it: heard.append(it.result()))
            heard.append(outcome.exception(30) or outcome.result())

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for each in threads[:2]:
            each.start()
        outcome.set_result(7)
        threads[2].start()
        for each in threads:
            each.join(60)
        assert heard == [7] * 6
        assert not outcome._sleepers


def test_who_waits_gives_up_in_time_and_is_forgotten() -> None:
    outcome: Outcome[int] = Outcome()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        outcome.exception(0.05)
    assert time.monotonic() - began >= 0.05
    assert not outcome._sleepers


def test_a_callback_that_fails_keeps_it_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    outcome: Outcome[int] = Outcome()
    heard: list[int] = []
    outcome.add_done_callback(lambda _: [][0])
    outcome.add_done_callback(lambda it: heard.append(it.result()))
    outcome.set_result(7)
    assert heard == [7]
    assert "exception calling callback" in caplog.text


@on_loop
async def test_a_task_that_is_cancelled_as_it_waits_cancels_nothing_else() -> None:
    outcome: Outcome[int] = Outcome()
    first, second = outcome.awaited(), outcome.awaited()
    first.cancel()
    outcome.set_exception(ERROR)
    async with asyncio.timeout(60):
        await second
    assert first.cancelled()
    with pytest.raises(UnavailableError):
        outcome.result()
