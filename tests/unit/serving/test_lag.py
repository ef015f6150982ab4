"""How far readers are behind: what the leader of a stream answers, and what is made of it."""

from __future__ import annotations

from pathlib import Path

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import NotLeaderError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import WallUs
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.lag import Lag, appended_us, lag_of, lags_in, request_for
from tests.support.loops import on_loop
from tests.support.node import Node

NOW_US = WallUs(50_000_000)


def test_a_lag_counts_what_the_log_still_holds_and_never_less_than_nothing() -> None:
    assert lag_of(4, 0, 10, WallUs(20_000_000), NOW_US) == Lag(0, 10, 6, 30.0)
    assert lag_of(4, 7, 10, WallUs(20_000_000), NOW_US) == Lag(7, 10, 3, 30.0)
    assert lag_of(10, 0, 10, None, NOW_US) == Lag(0, 10, 0, 0.0)
    assert lag_of(12, 0, 10, None, NOW_US) == Lag(0, 10, 0, 0.0)
    # Appended after the end was asked for; by a clock that is ahead.
    assert lag_of(10, 0, 10, WallUs(49_000_000), NOW_US).seconds == 0.0
    assert lag_of(4, 0, 10, WallUs(51_000_000), NOW_US).seconds == 0.0


@on_loop
async def test_the_time_is_that_of_the_appending_and_not_a_record_s_own(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    times = []
    for value in (b"a", b"b"):
        node.clocks.advance(5_000_000)
        times.append(node.clocks.wall())
        assert _append(node, replica, value, value) in (0, 2)
    assert [appended_us(replica, at) for at in range(5)] == [times[0]] * 2 + [times[1]] * 2 + [None]
    replica.log.begin_advance(2)
    assert appended_us(replica, 0) == times[1], "what is gone is not waited for"


def _append(node: Node, replica: Replica, *values: bytes) -> int:
    """Records that say that they are of 1970."""
    encoded = encode(list(values), b"a.b", timestamps=[1] * len(values))
    offset = replica.append(encoded)
    node.flushes.run()
    return offset


def test_places_of_one_stream_share_its_bounds() -> None:
    places = [(7, 2), (7, 9), (8, 0)]
    asked = [each.WhichOneof("position") for each in request_for(places).queries]
    assert asked == ["earliest"] * 2 + ["latest"] * 2 + ["offset"] * 3
    refused = NotLeaderError("not led here").to_proto()
    answer = pb.ListOffsetsResponse()
    for offset in (1, 0, 9):
        answer.results.add(offset=offset)
    answer.results.add(error=refused)
    answer.results.add(offset=2, append_timestamp=20_000_000)
    answer.results.add(offset=9)
    answer.results.add(error=refused)
    assert lags_in(places, answer, NOW_US) == {
        (7, 2): Lag(1, 9, 7, 30.0),
        (7, 9): Lag(1, 9, 0, 0.0),
    }


def test_a_node_that_does_not_know_the_question_tells_records_and_no_seconds() -> None:
    answer = pb.ListOffsetsResponse()
    answer.results.add(offset=0)
    answer.results.add(offset=9)
    answer.results.add(error=NotLeaderError("an older version says something else").to_proto())
    assert lags_in([(7, 2)], answer, NOW_US) == {(7, 2): Lag(0, 9, 7, None)}


def test_an_answer_to_something_else_tells_nothing() -> None:
    """The history of each node asks in the background: a node ends whose task fails."""
    answer = pb.ListOffsetsResponse()
    for results in range(6):
        found = lags_in([(7, 2), (8, 2)], answer, NOW_US)
        assert found == {}, results
        answer.results.add(offset=0)
