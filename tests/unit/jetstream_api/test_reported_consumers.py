"""What the copies of a stream are told of the consumers that only its leader knows."""

from __future__ import annotations

import json
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
    config = ConsumerConfig(
        **{"name": name, "ack_policy": AckPolicy.NONE, "mem_storage": True, **fields}  # type: ignore[arg-type]
    )
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
    gone = [f"gone-{at}" for at in range(50)]
    messages = list(reports([consumer(f"c{at}") for at in range(10)], gone))
    assert len(messages) >= 6
    assert max(map(len, messages)) < 600
    told = ReportedConsumers()
    tell(told, ONE, *map(consumer, gone))
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
    "fields",
    [
        {"filters": [1]}, {"filters": "a.b"}, {"deliver_subject": ["a"]}, {"inactive_us": "5"},
        {"start_time_us": 1.5}, {"filters": ["\ud800"]}, {"name": "\ud800"},
        {"deliver_subject": "a 0\r\n\r\nPUB b"}, {"flow_control": 1}, {"is_durable": True},
        {"ack_policy": "all"},
    ],
)  # fmt: skip
def test_a_report_that_a_new_leader_would_fail_by_is_refused(fields: dict[str, object]) -> None:
    """What takes over a stream is a background task: a node ends whose task fails."""
    told = ReportedConsumers()
    text = json.dumps({"name": "c", "ack_policy": "none", **fields})
    with pytest.raises(ValueError, match=r"\w"):
        told.take(ONE, json.dumps({"begun": [[text, 0, 0]], "ended": []}).encode())
    assert told.forget(ONE) == []


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (2**63, 0), (0, 2**63)])
def test_numbers_that_no_stream_has_are_refused(numbers: tuple[int, int]) -> None:
    text = json.dumps({"name": "c", "ack_policy": "none"})
    report = json.dumps({"begun": [[text, *numbers]], "ended": []}).encode()
    with pytest.raises(ValueError, match="bounds"):
        ReportedConsumers().take(ONE, report)


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


@pytest.mark.parametrize("field", ["mem_storage", "flow_control"])
def test_only_of_those_that_libraries_call_ordered(field: str) -> None:
    """The reader of another one would take its last message for a new one."""
    plain = {"mem_storage": False, "flow_control": False}
    assert not is_reported(consumer("c", **plain))
    assert is_reported(consumer("c", **plain | {field: True}))


def test_nothing_is_kept_of_what_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_consumers, "REPORTED_MAX", 2)
    told = ReportedConsumers()
    for number in range(4):
        tell(told, StreamId(number), consumer("c"))
    tell(told, StreamId(3), ended="c")
    assert len(told) == 1
    assert names(told.forget(StreamId(2))) == ["c"]
    assert (told._bytes, len(told)) == (0, 0)
