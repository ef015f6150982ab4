from __future__ import annotations

import pytest

from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.subscriptions import (
    PermissionsViolation,
    Subscription,
    Subscriptions,
    parse_permissions_violation,
    unsub_lines,
)


def ignore(delivery: Delivery) -> None:
    pass


def add(table: Subscriptions, subject: str, group: str = "") -> Subscription:
    return table.add(subject, group, ignore, None)


def test_lines_are_those_of_the_protocol() -> None:
    table = Subscriptions()
    both = [add(table, "a.>"), add(table, "b", "workers")]
    assert b"".join(each.sub_line() for each in both) == b"SUB a.> 1\r\nSUB b workers 2\r\n"
    assert unsub_lines(both) == b"UNSUB 1\r\nUNSUB 2\r\n"


def test_a_sid_is_never_used_again() -> None:
    table = Subscriptions()
    first = add(table, "a")
    table.remove(first.sid)
    table.clear()
    assert add(table, "a").sid == first.sid + 1


def test_a_draining_subscription_still_receives_but_is_not_restored() -> None:
    table = Subscriptions()
    draining, active = add(table, "a"), add(table, "b")
    draining.draining = True
    assert table.get(draining.sid) is draining
    assert table.active() == [active]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'Permissions Violation for Subscription to "a.>"',
            PermissionsViolation(True, "a.>", None),
        ),
        (
            'Permissions Violation for Subscription to "a" using queue "q"',
            PermissionsViolation(True, "a", "q"),
        ),
        ('Permissions Violation for Publish to "a"', PermissionsViolation(False, "a", None)),
        (
            r'Permissions Violation for Subscription to "a\"\\b"',
            PermissionsViolation(True, r'a"\b', None),
        ),
        ("maximum subscriptions exceeded", PermissionsViolation(True, None, None)),
        ("Authorization Violation", None),
        ("Stale Connection", None),
        ("", None),
    ],
)
def test_errors_that_concern_subjects_are_told_from_those_that_end_the_connection(
    text: str, complaint: PermissionsViolation | None
) -> None:
    assert parse_permissions_violation(text) == complaint


def test_a_complaint_concerns_the_subscriptions_of_its_subject_and_group() -> None:
    table = Subscriptions()
    plain, grouped, other = add(table, "a"), add(table, "a", "q"), add(table, "b")
    by_subject = PermissionsViolation(True, "a", None)
    assert table.concerned_by(by_subject, 1) == [plain, grouped]
    assert table.concerned_by(PermissionsViolation(True, "a", "q"), 1) == [grouped]
    assert table.concerned_by(PermissionsViolation(False, "a", None), 1) == []
    # A limit is hit by whatever the server has not confirmed yet.
    other.ping_number = 3
    assert table.concerned_by(PermissionsViolation(True, None, None), 3) == [other]
