"""What `bench` and `top` make of what they have seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jetstream_client.cli.commands.bench import Measured, percentiles
from jetstream_client.cli.commands.top import Look, Past, number_text, past_of, rates, sparkline
from jetstream_client.transport.wire import description_of
from jetstream_client.values.types import History, HistorySeries
from jetstream_protocol.generated import api_pb2 as pb


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(each) for each in range(1, 1001)]
    assert percentiles(values, (50, 90, 99, 99.9, 100)) == [500, 900, 990, 999, 1000]
    assert percentiles([7.0], (50, 99.9)) == [7.0, 7.0]
    assert percentiles([], (50,)) == []


def test_a_measurement_is_told_in_rates_and_microseconds() -> None:
    row = Measured(1000, 4000, 2.0, 0.5, [0.001, 0.002]).row()
    assert (row["messages_per_second"], row["bytes_per_second"]) == (500.0, 2000.0)
    assert (row["p50_us"], row["max_us"]) == (1000.0, 2000.0)
    assert "p50_us" not in Measured(1, 1, 1.0, 0.0).row()


def described(stream_id: int, high_watermark: int, lags: tuple[int, ...] = ()) -> object:
    return description_of(
        pb.StreamDescription(
            stream=pb.Stream(id=stream_id, name=f"s{stream_id}", observers=[9]),
            high_watermark=high_watermark,
            log_end_offset=high_watermark,
            progress=[
                pb.ReplicaProgress(node_id=at, offset=high_watermark - lag)
                for at, lag in enumerate(lags)
            ]
            + [pb.ReplicaProgress(node_id=9, offset=high_watermark - 90)],
        )
    )


def look(at: float, *streams: object) -> Look:
    return Look(at, streams)  # type: ignore[arg-type]


def test_the_busiest_streams_come_first_and_what_is_not_known_is_not_made_up() -> None:
    before = look(10.0, described(1, 100), described(2, 100), described(3, 50))
    now = look(
        12.0, described(1, 110), described(2, 300, (0, 7)), described(3, 20), described(4, 9)
    )
    found = rates(before, now)
    assert [(each.stream.name, each.rate, each.lag) for each in found] == [
        ("s2", 100.0, 7), ("s1", 5.0, None), ("s3", 0.0, None), ("s4", None, None),
    ]  # fmt: skip
    assert {each.rate for each in rates(None, now)} == {None}


def history(*values: float | None) -> History:
    start = datetime(2026, 1, 31, tzinfo=UTC)
    times = tuple(start + timedelta(seconds=15 * at) for at in range(len(values)))
    return History(0, times, (HistorySeries("records", None, values),))


def test_the_last_hour_is_the_sum_of_the_nodes_by_the_age_of_samples() -> None:
    found = past_of([history(None, 1.0, 2.0, 3.0), history(None, 10.0)])
    assert found == Past([None, 1.0, 2.0, 13.0], 1.0)
    assert past_of([]) is None


def test_a_line_has_one_block_for_the_largest_of_several_values() -> None:
    assert sparkline([0.0, 7.0, None, 8.0], 10) == "▁█ █"
    assert sparkline([1.0, 0.0, 4.0, 2.0], 2) == "▃█"
    assert sparkline([None, 0.0], 2) == " ▁"
    assert sparkline([], 5) == ""


def test_a_slow_stream_has_a_rate_that_is_not_0() -> None:
    assert [number_text(each) for each in (0.0, 0.066, 1.0, 12_345.6)] == [
        "0", "0.066", "1", "12,346",
    ]  # fmt: skip
