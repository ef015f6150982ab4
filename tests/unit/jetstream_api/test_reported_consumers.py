"""What the copies of a stream are told of the consumers that only its leader knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.types import StreamId
from jetstream_server.consumers.config import AckPolicy, ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.kept import Kept
from jetstream_server.jetstream_api import reported_consumers
from jetstream_server.jetstream_api.reported_consumers import (
    SEQUENCE_BEHIND_A_GAP,
    ReportedConsumers,
    is_reported,
    reports,
)

ONE, TWO = StreamId(1), StreamId(2)


def consumer(name: str, first_offset: int = 0, **fields: object) -> Consumer:
    config = ConsumerConfig(**{"name": name, "ack_policy": AckPolicy.NONE, **fields})  # type: ignore[arg-type]
    found = SimpleNamespace(config=config, first_offset=first_offset, created_us=9)
    return cast(Consumer, found)


def tell(told: ReportedConsumers, stream_id: StreamId, *begun: Consumer, ended: str = "") -> None:
    for each in reports(begun, filter(None, [ended])):
        told.take(stream_id, each)


def names(kept: list[Kept]) -> list[str]:
    return [each.config.name for each in kept]


def test_a_later_leader_has_it_go_on_where_it_began_after_a_gap() -> None:
    told = ReportedConsumers()
    given = consumer("c", 7, filters=("a.*",), deliver_subject=b"_INBOX.1", heartbeat_us=5)
    tell(told, ONE, given)
    (found,) = told.forget(ONE, 3)
    assert found.config == given.config
    assert (found.position, found.rest, found.last_offset) == (7, 7, 6)
    assert found.sequence == SEQUENCE_BEHIND_A_GAP
    assert (found.epoch, found.created_us) == (3, 9)
    assert told.forget(ONE) == []


def test_what_has_ended_is_forgotten_and_streams_are_kept_apart() -> None:
    told = ReportedConsumers()
    tell(told, ONE, consumer("a"), consumer("b"))
    tell(told, TWO, consumer("a"))
    tell(told, ONE, ended="a")
    tell(told, ONE, ended="unknown")
    assert names(told.forget(ONE)) == ["b"]
    assert names(told.forget(TWO)) == ["a"]
    assert len(told) == 0


def test_many_are_told_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_consumers, "MESSAGE_BYTES", 100)
    messages = list(reports([consumer(f"c{at}") for at in range(10)], ["gone"]))
    assert len(messages) > 2
    told = ReportedConsumers()
    for each in messages:
        told.take(ONE, each)
    assert len(told) == 10
    assert list(reports([], [])) == []


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_consumers, "REPORTED_MAX", 2)
    told = ReportedConsumers()
    tell(told, ONE, *(consumer(each) for each in "abc"), consumer("b"))
    assert names(told.forget(ONE)) == ["c", "b"]
    monkeypatch.setattr(reported_consumers, "REPORTED_BYTES_MAX", 250)
    tell(told, ONE, *(consumer(each, description="x" * 100) for each in "abc"))
    assert names(told.forget(ONE)) == ["c"]


@pytest.mark.parametrize(
    "report",
    [b"[]", b"{}", b'{"begun":[[1,2,3]],"ended":[]}', b'{"begun":[["{}",0,0]],"ended":[]}'],
)
def test_what_is_no_news_is_refused(report: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ReportedConsumers().take(ONE, report)
    ReportedConsumers().take(ONE, b"")  # Of an older version.


def test_only_of_those_that_are_lost_with_their_leader_and_are_not_acknowledged() -> None:
    assert is_reported(consumer("c"))
    assert not is_reported(consumer("c", is_durable=True))
    assert not is_reported(consumer("c", ack_policy=AckPolicy.EXPLICIT))
