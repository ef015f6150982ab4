"""What is kept by stream and key: all of one stream, and the oldest of all, at once."""

from __future__ import annotations

from collections import OrderedDict

from jetstream_protocol.types import StreamId
from jetstream_server.jetstream_api.by_stream import ByStream

ONE, TWO, OTHER = StreamId(1), StreamId(2), StreamId(3)


def test_the_oldest_goes_first_and_what_is_put_again_is_new() -> None:
    kept: ByStream[str, int] = ByStream()
    for number, (stream_id, key) in enumerate([(ONE, "a"), (TWO, "a"), (ONE, "b"), (ONE, "a")]):
        kept.put(stream_id, key, number)
    assert [kept.pop_oldest() for _ in range(4)] == [1, 2, 3, None]
    assert len(kept) == 0


def test_a_stream_s_are_taken_without_a_look_at_others_and_leave_nothing() -> None:
    kept: ByStream[str, int] = ByStream()
    for stream_id in (ONE, TWO):
        for key in "abc":
            kept.put(stream_id, key, ord(key))
    kept.put(ONE, "a", 1)

    class Whole(OrderedDict):  # type: ignore[type-arg]
        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("it looks at those of all streams")

    kept._oldest_first = Whole.fromkeys(list(kept._oldest_first))
    assert kept.pop_all(OTHER) == []
    assert kept.pop(TWO, "b") == ord("b")
    assert kept.pop(TWO, "b") is None
    assert kept.pop_all(ONE) == [ord("b"), ord("c"), 1]
    assert kept.pop_all(TWO) == [ord("a"), ord("c")]
    assert (len(kept), kept._values) == (0, {})
