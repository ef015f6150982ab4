"""What of a consumer's records counts as done."""

from __future__ import annotations

from jetstream_client.reading.messages import MessageCollector, Messages
from jetstream_client.reading.progress import Progress
from jetstream_protocol.batch import encode
from jetstream_protocol.types import WallUs


def fetched(*batches: tuple[int, int, int], next_offset: int = 0) -> Messages:
    """batches: number of records, first offset and leader epoch of each."""
    collector = MessageCollector("s", batches[0][1])
    for count, base_offset, epoch in batches:
        batch = encode([b""] * count, b"s")
        batch.stamp(base_offset, epoch, WallUs(0))
        collector.add(batch.to_bytes())
    collector.skip_to(next_offset, 9)
    return collector.messages()


def test_a_record_is_done_once_the_next_is_asked_for() -> None:
    progress = Progress()
    progress.begin(10)
    assert progress.done(10) == 10
    progress.gets(fetched((3, 10, 0)), by_record=True)
    assert [progress.done(position) for position in (10, 11, 12, 13)] == [10, 10, 11, 12]
    progress.asks(13)
    assert progress.done(13) == 13


def test_a_batch_is_done_once_the_next_is_asked_for() -> None:
    progress = Progress()
    progress.begin(0)
    progress.gets(fetched((3, 0, 0)), by_record=False)
    assert progress.done(3) == 0
    progress.asks(3)
    assert progress.done(3) == 3


def test_what_a_fetch_passed_over_is_done_with_it() -> None:
    progress = Progress()
    progress.begin(0)
    progress.gets(fetched((2, 0, 1), next_offset=100), by_record=True)
    assert progress.done(2) == 1
    progress.asks(2)
    assert progress.done(2) == 100
    assert progress.epoch_before(100) == 9


def test_what_is_kept_while_it_is_paused_is_not_done() -> None:
    progress = Progress()
    progress.begin(0)
    progress.gets(fetched((10, 0, 0)), by_record=True)
    progress.asks(4, exhausted=False)
    assert progress.done(4) == 4
    progress.resumes()
    assert [progress.done(position) for position in (4, 5, 6)] == [4, 4, 5]


def test_a_position_of_before_a_seek_counts_no_more() -> None:
    progress = Progress()
    progress.begin(0)
    progress.gets(fetched((10, 0, 0)), by_record=True)
    progress.begin(2)
    progress.asks(9)
    assert progress.done(9) == 2


def test_the_epoch_is_that_of_the_record_before() -> None:
    progress = Progress()
    progress.begin(5, 3)
    assert progress.epoch_before(5) == 3
    progress.gets(fetched((2, 5, 4), (3, 7, 6)), by_record=True)
    assert [progress.epoch_before(offset) for offset in (5, 6, 7, 8, 10)] == [3, 4, 4, 6, 6]
    assert progress.epoch_before(11) == -1
    progress.asks(10)
    assert progress.epoch_before(10) == 6
