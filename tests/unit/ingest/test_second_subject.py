"""A subscription with a second subject: both begin and end together, and sound alike."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import encode
from jetstream_server.ingest.nats.compiled import compiled, why_pure
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.parser import NatsParser
from jetstream_server.ingest.nats.subscriptions import (
    Subscriptions,
    parse_permissions_violation,
    unsub_lines,
)


def test_both_subjects_are_subscribed_and_unsubscribed_together() -> None:
    subscriptions = Subscriptions()
    plain = subscriptions.add("a.>", "", lambda _: None, None)
    keyed = subscriptions.add("b.>", "g", lambda _: None, None, "_INGEST.g.3.")
    last = subscriptions.add("c", "", lambda _: None, None)
    assert b"".join(each.sub_line() for each in subscriptions.active()) == (
        b"SUB a.> 1\r\nSUB b.> g 2\r\nSUB _INGEST.g.3.b.> 3\r\nSUB c 4\r\n"
    )
    assert unsub_lines([keyed]) == b"UNSUB 2\r\nUNSUB 3\r\n"
    assert [subscriptions.get(sid) for sid in (1, 2, 3, 4)] == [plain, keyed, keyed, last]
    assert len(subscriptions) == 3
    assert subscriptions.remove(2) is keyed
    assert [subscriptions.get(sid) for sid in (1, 2, 3, 4)] == [plain, None, None, last]
    subscriptions.add("b.>", "g", lambda _: None, None, "_INGEST.g.3.")
    subscriptions.clear()
    assert subscriptions.get(5) is subscriptions.get(6) is None


def test_messages_of_the_second_subject_come_under_the_first() -> None:
    heard: list[Delivery] = []
    keyed = Subscriptions().add("b.>", "g", heard.append, None, "_INGEST.gé.3.")
    plain = Delivery(1, [b"b.x"], [b"r"], [b"v"])
    keyed.deliver(plain)
    blocks = [b"NATS/1.0\r\n\r\n", b""]
    subjects = ["_INGEST.gé.3.b.x".encode(), "_INGEST.gé.3.b.y.z".encode()]
    keyed.deliver(Delivery(2, subjects, [b"r", b""], [b"v", b"w"], blocks))
    assert heard[0] is plain
    assert heard[1] == Delivery(2, [b"b.x", b"b.y.z"], [b"r", b""], [b"v", b"w"], blocks)


@pytest.mark.skipif(compiled is None, reason=why_pure or "it is there")
def test_messages_of_the_second_subject_stay_compiled() -> None:
    assert compiled is not None
    heard: list[Delivery] = []
    keyed = Subscriptions().add("b.>", "g", heard.append, None, "_INGEST.g.3.")
    wire = b"MSG _INGEST.g.3.b.x 2 r 1\r\nv\r\nMSG _INGEST.g.3.b.x 2 r 1\r\nw\r\n"
    [delivery] = NatsParser(compiled.Gathering).feed(wire)
    assert isinstance(delivery, compiled.Columns)
    keyed.deliver(delivery)
    assert heard == [delivery]
    assert heard[0] is delivery
    assert delivery.encode().to_bytes() == encode([b"v", b"w"], [b"b.x", b"b.x"]).to_bytes()


def test_a_refusal_of_either_subject_concerns_it() -> None:
    subscriptions = Subscriptions()
    keyed = subscriptions.add("b.>", "g", lambda _: None, None, "_INGEST.g.3.")
    subscriptions.add("b.>", "", lambda _: None, None)
    for text in (
        'Permissions Violation for Subscription to "_INGEST.g.3.b.>"',
        'Permissions Violation for Subscription to "b.>" using queue "g"',
    ):
        complaint = parse_permissions_violation(text)
        assert complaint is not None
        assert subscriptions.concerned_by(complaint, 0) == [keyed]
