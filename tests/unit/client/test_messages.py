"""Messages are cut out of whole batches: trimmed at both ends, in order, nothing twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jetstream_client import CorruptBatchError, Message
from jetstream_client.reading.messages import MessageCollector
from jetstream_protocol.record_filter import RecordFilter
from tests.unit.client.batches import batch_bytes, messages_of, numbered


def cut(
    data: bytes, offset: int = 0, end: int | None = None, count: int | None = None
) -> MessageCollector:
    collector = MessageCollector("orders", offset, end=end, count_max=count)
    collector.add(data)
    return collector


def test_records_below_the_offset_asked_for_are_left_out() -> None:
    messages = messages_of(numbered(5), offset=3)
    assert messages.offsets() == [3, 4]
    assert messages.values() == [b"3", b"4"]


def test_whole_batches_below_the_offset_are_left_out() -> None:
    assert messages_of(numbered(5) + numbered(5, 5), offset=7).offsets() == [7, 8, 9]


def test_no_more_records_than_wanted() -> None:
    collector = cut(numbered(5) + numbered(5, 5), offset=1, count=6)
    assert collector.messages().offsets() == [1, 2, 3, 4, 5, 6]
    assert collector.full
    assert collector.next_offset == 7


def test_no_record_at_or_after_the_end() -> None:
    collector = cut(numbered(5) + numbered(5, 5), end=6)
    assert collector.messages().offsets() == [0, 1, 2, 3, 4, 5]
    assert collector.full
    assert collector.next_offset == 6


def test_an_end_between_batches_is_reached_by_the_first() -> None:
    collector = cut(numbered(5), end=5)
    assert collector.full
    assert collector.next_offset == 5


def test_fetching_goes_on_after_what_compaction_removed() -> None:
    data = batch_bytes([b"a", b"b"], 10, offset_deltas=[1, 3], last_offset_delta=6)
    messages = messages_of(data, offset=12)
    assert messages.offsets() == [13]
    assert messages.next_offset == 17


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    data = batch_bytes([], 10, offset_deltas=[], last_offset_delta=4)
    messages = messages_of(data, offset=10)
    assert len(messages) == 0
    assert messages.next_offset == 15


def test_a_limit_within_a_compacted_batch_goes_on_at_its_next_record() -> None:
    data = batch_bytes([b"a", b"b"], 10, offset_deltas=[1, 3], last_offset_delta=6)
    assert cut(data, offset=10, count=1).next_offset == 13


def test_the_last_epoch_is_that_of_the_last_record() -> None:
    data = numbered(2, 0, leader_epoch=3) + numbered(2, 2, leader_epoch=7)
    assert cut(data, count=2).last_epoch == 3
    assert cut(data, count=3).last_epoch == 7


def test_batches_that_overlap_are_refused() -> None:
    with pytest.raises(CorruptBatchError, match="before the previous one ends"):
        cut(numbered(5) + numbered(5, 4))


def test_a_flipped_byte_is_refused() -> None:
    data = bytearray(numbered(5))
    data[100] ^= 1
    with pytest.raises(CorruptBatchError):
        cut(bytes(data))


def test_a_message_has_all_that_was_published() -> None:
    block = b"NATS/1.0\r\nsource: web\r\n\r\n"
    data = batch_bytes(
        [b"v", None], 4, keys=[b"k", None], header_blocks=[block, b""], subjects=[b"a.x", b"a.y"]
    )
    first, second = messages_of(data, offset=4)
    assert first == Message("orders", 4, 1_700_000_000_000_004, "a.x", b"k", b"v", block)
    assert first.headers["source"] == "web"
    assert first.timestamp == datetime(2023, 11, 14, 22, 13, 20, 4, UTC)
    assert (second.key, second.value, second.subject, second.headers) == (None, None, "a.y", {})


def test_a_producers_timestamps_come_before_the_append_timestamp() -> None:
    messages = messages_of(batch_bytes([b"a", b"b"], timestamps=[1, 2]))
    assert [message.timestamp_us for message in messages] == [1, 2]


@pytest.mark.parametrize("timestamp", [-(2**63), 2**63 - 1])
def test_a_timestamp_no_datetime_can_hold_does_not_fail(timestamp: int) -> None:
    (message,) = messages_of(batch_bytes([b"a"], timestamps=[timestamp]))
    assert message.timestamp.tzinfo is UTC
    assert message.timestamp_us == timestamp


def test_messages_are_a_sequence() -> None:
    messages = messages_of(numbered(3) + numbered(3, 3), offset=1)
    everything = list(messages)
    assert len(messages) == 5
    assert [messages[index] for index in range(5)] == everything
    assert messages[-1] == everything[-1]
    assert messages[1:4] == everything[1:4]
    assert messages[::-2] == everything[::-2]
    assert everything[2] in messages
    with pytest.raises(IndexError):
        messages[5]


def test_no_messages_are_false() -> None:
    assert not messages_of(b"")
    assert messages_of(numbered(1))


def test_a_long_value_is_shown_shortened() -> None:
    (message,) = messages_of(batch_bytes([b"x" * 1000]))
    assert "1000 bytes" in repr(message)
    assert len(repr(message)) < 200


def test_a_notebook_shows_the_first_records_and_what_is_in_them_is_no_markup() -> None:
    keys = [None, b"k", *([None] * 21)]
    values = [b"<script>&", None, b"\xff" + bytes(300), *([b"x"] * 20)]
    shown = messages_of(batch_bytes(values, keys=keys))._repr_html_()
    assert "23 records of" in shown
    assert "of which 10 are shown" in shown
    assert shown.count("<tr>") == 11
    assert "<td>&lt;script&gt;&amp;</td>" in shown
    assert "<i>tombstone</i>" in shown
    assert "<td>\\xff" in shown
    assert len(shown) < 3_000


def test_of_a_server_that_knows_no_filter_only_what_is_wanted_is_taken() -> None:
    collector = MessageCollector("orders", 1, count_max=2, wanted=RecordFilter("eu"))
    collector.add(numbered(3) + batch_bytes([b"a", b"b", b"c"], 3, subjects=[b"eu", b"us", b"eu"]))
    assert collector.messages().offsets() == [3, 5]
    assert (collector.full, collector.next_offset) == (True, 6)


def test_what_a_server_passes_over_moves_the_position_and_its_epoch() -> None:
    collector = MessageCollector("orders", 0, wanted=RecordFilter("eu"))
    collector.add(batch_bytes([b"a", b"b"], 4, leader_epoch=3, subjects=b"eu"))
    collector.skip_to(20, 5)
    messages = collector.messages()
    assert (messages.offsets(), messages.next_offset, messages.last_epoch) == ([4, 5], 20, 5)


def test_no_server_moves_a_position_beyond_the_end_or_after_what_is_taken() -> None:
    collector = MessageCollector("orders", 0, end=10, wanted=RecordFilter("eu"))
    collector.skip_to(20, 5)
    assert (collector.next_offset, collector.last_epoch, collector.full) == (10, -1, True)
    counted = MessageCollector("orders", 0, count_max=1, wanted=RecordFilter("eu"))
    counted.add(batch_bytes([b"a", b"b"], 4, subjects=b"eu"))
    counted.skip_to(20, 5)
    assert counted.next_offset == 5
