"""Which streams a list has, and in which order."""

from __future__ import annotations

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.http.stream_listing import Wanted, states_of


def stream(name: str, leader: int, isr: int, replicas: int = 3, least: int = 2) -> pb.Stream:
    return pb.Stream(
        name=name,
        subject=f"{name}.>",
        leader=leader,
        isr=range(isr),
        replicas=range(replicas),
        config=pb.StreamConfig(min_insync_replicas=least),
    )


GOOD, LAGS, FEW, LOST = (
    stream("good", 0, 3), stream("lags", 0, 2), stream("few", 0, 1), stream("lost", -1, 2, 2),
)  # fmt: skip
ALL = [GOOD, LAGS, FEW, LOST]


def test_a_stream_counts_in_every_state_that_it_is_in() -> None:
    assert states_of(ALL) == {
        "all": 4, "leaderless": 1, "below_minimum": 1, "under_replicated": 2,
    }  # fmt: skip


def test_a_list_has_the_streams_of_a_state_whose_name_or_subject_matches() -> None:
    def names(**wanted: str) -> list[str]:
        return [each.name for each in ALL if Wanted(**wanted).takes(each)]  # type: ignore[arg-type]

    assert names(state="under-replicated") == ["lags", "few"]
    assert names(state="leaderless") == ["lost"]
    assert names(match="L") == ["lags", "lost"]
    assert names(match="FEW.>", state="below-minimum") == ["few"]


def test_streams_of_which_nothing_is_known_count_as_the_least() -> None:
    described = [
        pb.StreamDescription(stream=GOOD, state="online", size_bytes=5, high_watermark=9),
        pb.StreamDescription(stream=LOST),
        pb.StreamDescription(stream=FEW, state="online", size_bytes=0, high_watermark=99),
        pb.StreamDescription(stream=LAGS, state="online", size_bytes=5, high_watermark=1),
    ]

    def names(sort: str, descends: bool = False) -> list[str]:
        found = Wanted(sort=sort, descends=descends).ordered(described)
        return [each.stream.name for each in found]

    assert names("name") == ["few", "good", "lags", "lost"]
    assert names("size") == ["lost", "few", "good", "lags"]
    assert names("size", descends=True) == ["good", "lags", "few", "lost"]
    assert names("records", descends=True) == ["few", "good", "lags", "lost"]
    assert names("in_sync") == ["few", "lags", "good", "lost"]
