"""What `jetstream stream describe` shows of compaction, also when facts are unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jetstream_client import CompactionInfo, ConsumerDescription
from jetstream_client.cli.commands.consumer import _draw
from jetstream_client.cli.commands.stream_views import _compaction_fields, _in_lake_text
from jetstream_client.transport.wire import description_of
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.times import to_datetime


def test_a_stream_that_was_never_compacted_shows_nothing() -> None:
    assert description_of(pb.StreamDescription(stream=pb.Stream())).compaction is None
    assert _compaction_fields(None) == {}


def test_a_pass_is_shown_in_seconds_and_as_part_of_the_whole() -> None:
    description = pb.StreamDescription(
        stream=pb.Stream(),
        compaction=pb.Compaction(
            cleaned_to=900, dirty_bytes=1, clean_bytes=3, ended_at_us=5_000_000,
            duration_us=1_500_000, bytes_before=8, bytes_after=4, records_removed=2, tombstones=1,
        ),
    )  # fmt: skip
    found = description_of(description).compaction
    assert found == CompactionInfo(900, 0.25, to_datetime(5_000_000), 1.5, 8, 4, 2, 1)
    fields = _compaction_fields(dataclasses.asdict(found))
    assert fields["compaction_cleaned_to"] == 900
    assert fields["compaction_dirty_ratio"] == "0.25"
    assert fields["compaction_ended_at"] == to_datetime(5_000_000)


def test_before_the_first_pass_there_is_no_time() -> None:
    description = pb.StreamDescription(stream=pb.Stream(), compaction=pb.Compaction())
    found = description_of(description).compaction
    assert found is not None
    assert (found.ended_at, found.dirty_ratio) == (None, 0.0)
    assert _compaction_fields(dataclasses.asdict(found))["compaction_ended_at"] == "-"


def test_what_only_a_leader_knows_is_none_without_one() -> None:
    description = pb.StreamDescription(
        stream=pb.Stream(name="orders", leader=-1, isr=[2]), state="offline: nobody may lead"
    )
    found = description_of(description)
    assert (found.isr, found.state) == ((2,), "offline: nobody may lead")
    unknown = (found.log_start_offset, found.high_watermark, found.size_bytes, found.hand_over_gap)
    assert unknown == (None, None, None, None)


def test_a_new_leader_that_does_not_know_the_end_of_what_is_committed_names_none() -> None:
    known = {"stream": pb.Stream(), "log_start_offset": 3, "high_watermark": 3}
    found = description_of(pb.StreamDescription(**known, log_end_offset=9, end_unknown=True))
    assert (found.log_start_offset, found.high_watermark, found.log_end_offset) == (3, None, 9)
    assert description_of(pb.StreamDescription(**known)).high_watermark == 3


def test_where_nothing_is_in_the_lake_the_command_that_says_why_is_named() -> None:
    def shown(**fields: Any) -> str:
        return _in_lake_text(description_of(pb.StreamDescription(stream=pb.Stream(**fields))))

    config = pb.StreamConfig(lake=True)
    assert shown(name="orders") == ""
    assert shown(name="orders", config=config) == "nothing yet: see jetstream lake status orders"
    assert shown(config=config, lake_start_offset=2, lake_end_offset=5) == "3, offsets 2 to 4"


def test_a_consumer_is_described_in_times_and_durations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _draw(
        ConsumerDescription(
            name="mailers", stream="jobs@jobs.>", stream_id=1, created_us=5_000_000,
            is_durable=True, is_push=False, ack_policy="explicit", description="", filters=(),
            ack_wait=30.0, backoff=(1.0, 90.0), max_deliver=5, dead_letter=None,
            max_ack_pending=1000, paused_until=10.0, position=0, ack_floor=0, pending=0,
            ack_pending=0, redelivered=0, waiting=0, oldest_unacknowledged=61.04, redeliveries=0,
            given_up=0,
        )
    )  # fmt: skip
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["created"] == "1970-01-01T00:00:05.000000Z"
    assert (shown["is_durable"], shown["is_push"]) == ("yes", "no")
    assert (shown["ack_wait"], shown["backoff"]) == ("30s", "1s, 1m30s")
    assert shown["paused_until"] == "1970-01-01T00:00:10.000000Z"
    assert shown["oldest_unacknowledged"] == "1m1s"
