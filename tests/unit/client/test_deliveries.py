"""Which failures of batches count as seen: those that `flush` does not raise again."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from jetstream_client.publishing.deliveries import Delivery, ManyDelivery
from jetstream_client.publishing.outcome import Outcome
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from tests.support.loops import on_loop
from tests.unit.client.test_handing_out import Interrupts

PATIENCE_SECONDS = 60.0


class EndsAsItIsGivenUp(Outcome[Any]):
    """The batch fails just after its caller's time is up."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self.set_exception(UnavailableError("too late"))
            raise TimeoutError
        return super().exception(timeout)


def delivered() -> tuple[Batch, Delivery]:
    batch = Batch(0.0, 0.0)
    return batch, Delivery(batch, "orders.x", 0)


def test_who_gives_up_takes_nothing_from_a_callback() -> None:
    batch, delivery = delivered()
    delivery.add_done_callback(lambda _: None)
    with pytest.raises(TimeoutError):
        delivery.result(0.001)
    assert batch.asked


def test_a_delivery_shows_its_outcome() -> None:
    batch, delivery = delivered()
    assert repr(delivery) == "<Delivery to 'orders.x': not acknowledged yet>"
    batch.finish(UnavailableError("too late"))
    assert repr(delivery) == "<Delivery to 'orders.x': UnavailableError: too late>"
    assert not batch.is_seen
    assert repr(ManyDelivery([])) == "<ManyDelivery of 0 batches: all known>"


@on_loop
async def test_who_is_cancelled_takes_nothing_from_a_callback() -> None:
    batch, delivery = delivered()
    delivery.add_done_callback(lambda _: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await delivery
    assert batch.asked


def test_a_failure_that_comes_just_after_the_time_is_up_is_unseen() -> None:
    batch, delivery = delivered()
    batch.future = EndsAsItIsGivenUp()
    with pytest.raises(TimeoutError):
        delivery.result(0.001)
    assert not batch.asked


@on_loop
async def test_a_failure_that_two_waited_for_is_unseen_once_both_have_given_up() -> None:
    batch, delivery = delivered()

    async def wait() -> None:
        await delivery

    waiting = [asyncio.create_task(wait()) for _ in range(2)]
    for task in waiting:
        await asyncio.sleep(0)
        assert batch.asked
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not batch.asked


def test_a_failure_is_seen_by_who_waits_though_another_thread_gives_up() -> None:
    batch, delivery = delivered()
    seen: list[BaseException | None] = []
    waits = threading.Thread(target=lambda: seen.append(delivery.exception(PATIENCE_SECONDS)))
    waits.start()
    with pytest.raises(TimeoutError):
        delivery.result(0.001)
    batch.future.set_exception(UnavailableError("no leader"))
    waits.join(PATIENCE_SECONDS)
    assert len(seen) == 1
    assert batch.asked


@on_loop
async def test_who_would_wait_in_the_thread_that_sends_is_told_so() -> None:
    batch, delivery = delivered()
    batch.thread = threading.get_ident()
    with pytest.raises(InvalidRequestError, match="await the delivery"):
        delivery.result()
    assert not batch.asked
    asyncio.get_running_loop().call_soon(batch.future.set_exception, UnavailableError("no leader"))
    with pytest.raises(UnavailableError):
        await delivery
    assert isinstance(delivery.exception(), UnavailableError)


@on_loop
async def test_who_awaits_a_failure_has_seen_it() -> None:
    batch, delivery = delivered()
    asyncio.get_running_loop().call_soon(batch.future.set_exception, UnavailableError("no leader"))
    with pytest.raises(UnavailableError):
        await delivery
    assert batch.asked


@pytest.mark.parametrize("is_late", [True, False])
def test_whose_wait_a_signal_handler_ends_has_seen_nothing(is_late: bool) -> None:
    """Wherever it raises: also once the time is up, or the outcome is known."""
    interrupts = 0
    for number in range(1, 60):
        batch, delivery = delivered()
        if not is_late:
            batch.future.set_exception(UnavailableError("no leader"))
        sys.setprofile(Interrupts(number, "exception"))
        try:
            delivery.exception(0.001)
        except KeyboardInterrupt:
            interrupts += 1
            sys.setprofile(None)
            assert not batch.asked
        except TimeoutError:
            break
        else:
            break
        finally:
            sys.setprofile(None)
    assert interrupts > 8
    assert batch.asked != is_late


@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_callback_that_ends_the_program_takes_the_outcome_from_nobody(
    exits: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It would end the client's thread in the middle of telling of several batches."""
    batch, delivery = delivered()
    called: list[Delivery] = []

    def ends(_: Delivery) -> None:
        raise exits

    delivery.add_done_callback(ends)
    delivery.watch(ends)
    delivery.add_done_callback(called.append)
    batch.future.set_exception(UnavailableError("no leader"))
    assert called == [delivery]
    assert exits.__name__ in caplog.text
