"""Leader epochs: the rules of references KIP-101 and KIP-279, one claim each."""

from __future__ import annotations

import pytest

from jetstream_server.log.epochs import EpochEnd, LeaderEpochCache


def cache() -> LeaderEpochCache:
    return LeaderEpochCache([(2, 0), (5, 10), (7, 30)])


def test_assigning_grows_in_both() -> None:
    epochs = cache()
    epochs.assign(9, 40)
    assert epochs.entries == ((2, 0), (5, 10), (7, 30), (9, 40))
    assert epochs.latest_epoch == 9


def test_assigning_the_latest_epoch_again_changes_nothing() -> None:
    epochs = cache()
    epochs.assign(7, 35)
    assert epochs.entries == cache().entries


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (8, 30, ((2, 0), (5, 10), (8, 30))),  # an epoch that never got a batch makes room
        (8, 20, ((2, 0), (5, 10), (8, 20))),
        (6, 40, ((2, 0), (5, 10), (6, 40))),
        (1, 0, ((1, 0),)),
    ],
)
def test_assigning_removes_later_entries(
    epoch: int, start: int, expected: tuple[tuple[int, int], ...]
) -> None:
    epochs = cache()
    epochs.assign(epoch, start)
    assert epochs.entries == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (7, EpochEnd(7, 50)),  # the latest ends where the log ends
        (5, EpochEnd(5, 30)),
        (6, EpochEnd(5, 30)),  # unknown: the newest below it
        (2, EpochEnd(2, 10)),
        (1, EpochEnd(1, 0)),  # below all: ends where the oldest begins
        (8, EpochEnd(-1, -1)),  # newer than all: undefined
    ],
)
def test_end_offset_of_an_epoch(epoch: int, expected: EpochEnd) -> None:
    assert cache().end_offset_for(epoch, 50) == expected


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"), [(1, 4, True), (1, 5, False), (2, 4, False), (5, 1, False)]
)
def test_a_position_before_all_that_is_known(epoch: int, offset: int, expected: bool) -> None:
    assert LeaderEpochCache([(2, 4), (5, 10)]).begin_at_or_after(epoch, offset) == expected


def test_empty_cache_knows_no_epoch() -> None:
    epochs = LeaderEpochCache()
    assert epochs.latest_epoch == -1
    assert epochs.epoch_at(0) == -1
    assert epochs.end_offset_for(0, 0) == EpochEnd(-1, -1)
    assert not epochs.begin_at_or_after(0, 0)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 5), (29, 5), (30, 7), (99, 7)])
def test_epoch_of_a_record(offset: int, epoch: int) -> None:
    assert cache().epoch_at(offset) == epoch


def test_truncating_the_end_forgets_epochs_that_begin_there_or_after() -> None:
    epochs = cache()
    for log_end_offset, left in ((30, [(2, 0), (5, 10)]), (11, [(2, 0), (5, 10)]), (0, [])):
        epochs.truncate_from_end(log_end_offset)
        assert list(epochs.entries) == left


def test_advancing_the_start_keeps_the_epoch_right_before_it_and_always_the_latest() -> None:
    epochs = cache()
    for log_start_offset, left in (
        (10, [(2, 0), (5, 10), (7, 30)]),
        (15, [(5, 10), (7, 30)]),
        (30, [(5, 10), (7, 30)]),
        (10_000, [(7, 30)]),
    ):
        epochs.truncate_from_start(log_start_offset)
        assert list(epochs.entries) == left
