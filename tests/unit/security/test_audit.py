"""The audit log has every kind of event, and nobody fills a disk with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from jetstream_server.log_throttle import MESSAGES_MAX, REPEAT_SECONDS, LogThrottle
from jetstream_server.security.audit import Audit
from jetstream_server.security.identity import Identity

ANN, BOB = Identity("user:ann", "10.0.0.1:5"), Identity("user:bob", "10.0.0.2:5")


class House:
    def __init__(self) -> None:
        self.now = 0.0
        self.audit = Audit(lambda: LogThrottle(lambda: self.now))


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as found:
        yield found


def test_one_call_with_any_number_of_cursors_writes_so_many_lines_and_counts_the_rest(
    house: House, lines: list[Any]
) -> None:
    for number in range(10_000):
        house.audit.moved(ANN, "CommitCursors", f"c{number} in orders", number)
    assert len(lines) == MESSAGES_MAX
    house.audit.moved(BOB, "CommitCursors", "c1 in orders", 1)
    assert lines[-1]["principal"] == "user:bob", "another one has lines of its own"
    house.now = REPEAT_SECONDS
    house.audit.moved(ANN, "CommitCursors", "c1 in orders", 1)
    assert lines[-1]["repeated"] == 10_000 - MESSAGES_MAX


def test_moving_the_same_cursors_in_turn_writes_no_more(house: House, lines: list[Any]) -> None:
    for number in range(10 * MESSAGES_MAX):
        house.audit.moved(ANN, "CommitCursors", f"c{number % (MESSAGES_MAX + 1)}", number)
    assert len(lines) == MESSAGES_MAX


def test_strangers_from_any_number_of_addresses_write_so_many_lines(
    house: House, lines: list[Any]
) -> None:
    for number in range(5000):
        house.audit.unknown(f"10.1.{number // 250}.{number % 250}:7", "Hello", "who?")
        house.audit.unknown(f"ipv6:%5Bfd00::{number:x}%5D:7", "Hello", "who?")
    assert len(lines) == MESSAGES_MAX
    assert house.audit.authentication_failures == 10_000
    house.now = REPEAT_SECONDS
    house.audit.unknown("10.2.0.1:7", "Hello", "who?")
    logged = sum(1 + line["repeated"] for line in lines)
    in_one_network = 5000 - 1  # Counted by the next line of that network.
    assert logged == 10_000 + 1 - in_one_network


def test_what_a_principal_with_a_right_does_always_has_a_line(
    house: House, lines: list[Any]
) -> None:
    for number in range(2 * MESSAGES_MAX):
        house.audit.done(ANN, "DeleteStream", f"s{number}")
    assert len(lines) == 2 * MESSAGES_MAX


def test_a_principal_that_asks_again_and_again_writes_one_line_and_all_are_counted(
    house: House, lines: list[Any]
) -> None:
    for _ in range(10_000):
        house.audit.refused(ANN, "read", "orders", "no right")
    house.audit.refused(BOB, "read", "orders", "no right")
    house.audit.refused(ANN, "delete", "orders", "no right")
    elsewhere = Identity(ANN.principal, "10.9.9.9:5")
    house.audit.refused(elsewhere, "read", "orders", "no right")
    found = [(line["principal"], line["operation"], line["peer"]) for line in lines]
    assert found == [
        ("user:ann", "read", ANN.peer),
        ("user:bob", "read", BOB.peer),
        ("user:ann", "delete", ANN.peer),
        ("user:ann", "read", elsewhere.peer),
    ]
    assert house.audit.authorization_failures == 10_003
    house.now = REPEAT_SECONDS
    house.audit.refused(ANN, "read", "orders", "no right", repeated=2)
    assert lines[-1]["repeated"] == 10_000 - 1 + 2


def test_refusals_for_any_number_of_names_write_so_many_lines_and_are_counted(
    house: House, lines: list[Any]
) -> None:
    for number in range(10_000):
        house.audit.refused(ANN, "read", f"s{number}", "no right", repeated=1)
    assert len(lines) == MESSAGES_MAX
    house.now = REPEAT_SECONDS
    house.audit.refused(ANN, "read", "s1", "no right")
    assert sum(1 + line["repeated"] for line in lines) == 20_001
