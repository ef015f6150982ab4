"""A wait ends with the error of its check, and with nothing else's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pytest

from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.security import access_control
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.acl import AclRule
from jetstream_server.security.identity import Identity
from jetstream_server.security.limits import Quotas
from jetstream_server.security.state import SecurityState, Token
from jetstream_server.security.waits import Waits
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop


class Right:
    """What a check asks."""

    def __init__(self) -> None:
        self.error: JetstreamError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Waiter:
    """A task that waits for `woken`, which nobody sets."""

    def __init__(self, waits: Waits, right: Right) -> None:
        self.woken = asyncio.Event()
        self.task = asyncio.create_task(self._wait(waits, right))

    async def _wait(self, waits: Waits, right: Right) -> str:
        try:
            async with asyncio.timeout(60):
                with waits.begin(right.check):
                    await self.woken.wait()
        except PermissionDeniedError as error:
            return error.message
        return "woken"


@on_virtual_loop
async def test_a_wait_ends_with_the_error_of_its_check_and_others_go_on() -> None:
    waits, kept, lost = Waits(), Right(), Right()
    waiters = [Waiter(waits, right) for right in (kept, lost, lost)]
    await eventually(lambda: len(waits) == 3)
    waits.check_again()
    lost.error = PermissionDeniedError("no more")
    waits.check_again()
    waits.check_again()
    assert [await each.task for each in waiters[1:]] == ["no more"] * 2
    waiters[0].woken.set()
    assert await waiters[0].task == "woken"
    assert len(waits) == 0


@on_virtual_loop
async def test_what_is_not_allowed_does_not_begin_to_wait() -> None:
    waits, right = Waits(), Right()
    right.error = PermissionDeniedError("never")
    assert await Waiter(waits, right).task == "never"
    assert len(waits) == 0


@on_virtual_loop
async def test_who_is_woken_and_refused_at_once_is_refused() -> None:
    waits, right = Waits(), Right()
    waiter = Waiter(waits, right)
    await eventually(lambda: len(waits) == 1)
    waiter.woken.set()
    right.error = PermissionDeniedError("too late")
    waits.check_again()
    assert await waiter.task == "too late"
    assert not waiter.task.cancelling()


@on_virtual_loop
async def test_a_cancellation_from_outside_stays_one() -> None:
    waits, right = Waits(), Right()
    waiter = Waiter(waits, right)
    await eventually(lambda: len(waits) == 1)
    right.error = PermissionDeniedError("no more")
    waits.check_again()
    waiter.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter.task
    assert len(waits) == 0


@on_virtual_loop
async def test_an_error_of_what_was_waited_for_stays_that_error() -> None:
    waits, right = Waits(), Right()

    async def fail() -> None:
        with waits.begin(right.check):
            try:
                await asyncio.Event().wait()
            finally:
                raise UnavailableError("the stream has gone")

    failing = asyncio.create_task(fail())
    await eventually(lambda: len(waits) == 1)
    right.error = PermissionDeniedError("no more")
    waits.check_again()
    with pytest.raises(UnavailableError):
        await failing
    assert len(waits) == 0


def test_a_watch_is_refused_once_and_not_after_its_end() -> None:
    waits, kept, lost = Waits(), Right(), Right()
    refused: list[JetstreamError] = []
    watches = [waits.watch(right.check, refused.append) for right in (kept, lost, lost)]
    waits.check_again()
    assert (len(waits), refused) == (3, [])
    lost.error = PermissionDeniedError("no more")
    watches[2].end()
    waits.check_again()
    waits.check_again()
    assert refused == [lost.error]
    assert len(waits) == 1
    watches[0].end()
    watches[0].end()
    assert len(waits) == 0


def test_a_watch_that_ends_another_one_leaves_it_alone() -> None:
    waits, right = Waits(), Right()
    refused: list[JetstreamError] = []

    def refuse(error: JetstreamError) -> None:
        refused.append(error)
        other.end()

    waits.watch(right.check, refuse)
    other = waits.watch(right.check, refused.append)
    right.error = PermissionDeniedError("no more")
    waits.check_again()
    assert len(refused) == 1


def test_what_is_not_allowed_is_not_watched() -> None:
    waits, right = Waits(), Right()
    right.error = PermissionDeniedError("never")
    with pytest.raises(PermissionDeniedError):
        waits.watch(right.check, lambda _: None)
    assert len(waits) == 0


@dataclass(frozen=True)
class Orders:
    id: int = 1
    name: str = "orders"
    subject: str = "orders.>"


TOKEN = Token("0" * 12, "user:x", "", WallUs(0), expires_at_us=WallUs(1_000))
CALLER = Identity("user:x", token=TOKEN)
RULE = AclRule(7, "user:x", ("read",), True, "orders", ">")


class House:
    """Access control with its metadata and its clock."""

    def __init__(self, **quotas: int) -> None:
        self.state = SecurityState().with_token(TOKEN).with_rules(RULE)
        self.now = 10
        self.access = AccessControl(
            lambda: self.state,
            lambda: WallUs(self.now),
            enabled=True,
            node_id=0,
            secret=b"",
            incarnation=lambda: 1,
            quotas=Quotas(**quotas),
            monotonic_clock=lambda: MonotonicUs(0),
        )
        self.access.changed()


@on_virtual_loop
async def test_an_answer_that_waits_for_its_turn_ends_with_the_right_to_it() -> None:
    house = House(bytes_per_second=1000)
    await house.access.pace(CALLER, Orders(), 60_000)
    later = asyncio.create_task(house.access.pace(CALLER, Orders(), 1))
    await eventually(lambda: len(house.access._waits) == 1)
    house.state = house.state.without_rule(RULE.id)
    house.access.changed()
    with pytest.raises(PermissionDeniedError):
        await later


@pytest.mark.parametrize("stall_seconds", [0, 0.05])
@on_virtual_loop
async def test_the_end_of_a_token_ends_what_waits_and_then_its_connections(
    monkeypatch: pytest.MonkeyPatch, stall_seconds: float
) -> None:
    monkeypatch.setattr(access_control, "EXPIRY_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(access_control, "CLOSE_SECONDS", 0.001)
    house, happened = House(), []
    closed = asyncio.Event()

    async def wait() -> None:
        try:
            with house.access.while_allowed_to_read(CALLER, Orders()):
                await asyncio.Event().wait()
        except UnauthenticatedError:
            time.sleep(stall_seconds)  # noqa: ASYNC251  All timers of the loop are due now.
            for _ in range(3):
                await asyncio.sleep(0)  # As if others had the turn to send.
            happened.append("refused")

    def close() -> None:
        assert house.access.has_ended(CALLER)
        happened.append("closed")
        closed.set()

    waiting = asyncio.create_task(wait())
    house.access.closes(close)
    watching = asyncio.create_task(house.access.watch_expiry())
    await eventually(lambda: len(house.access._waits) == 1)
    house.now = 1_000
    async with asyncio.timeout(30):
        await closed.wait()
    await waiting
    assert happened == ["refused", "closed"]
    watching.cancel()


@on_virtual_loop
async def test_the_change_before_does_not_close_what_ends_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token ends just when the connections of one that ended before are closed."""
    monkeypatch.setattr(access_control, "CLOSE_SECONDS", 0.1)
    before = Token("1" * 12, "user:y", "", WallUs(0), expires_at_us=WallUs(0))
    house, seen = House(), asyncio.Queue[list[bool]]()
    callers = (Identity("user:y", token=before), CALLER)
    house.access.closes(lambda: seen.put_nowait([house.access.has_ended(c) for c in callers]))
    house.state = house.state.with_token(before)
    house.access.changed()
    async with asyncio.timeout(30):
        for _ in range(2):  # The changes so far.
            await seen.get()
        house.state = house.state.without_token(before.id)
        house.access.changed()
        await asyncio.sleep(0.05)
        house.state = house.state.without_token(TOKEN.id)
        house.access.changed()
        assert await seen.get() == [True, False]
        assert await seen.get() == [True, True]
