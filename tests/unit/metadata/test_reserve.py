"""The reserve beside a metadata journal: room on a disk that is full to the last byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.reserve import (
    BASE_BYTES,
    NAME,
    in_room,
    keep_room,
    make_room,
    make_room_to_start,
)
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus
from tests.support import small_disk
from tests.support.small_disk import SmallDisk

MIB = 1 << 20
COMMAND = bytes(300)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    if reason := small_disk.missing():
        pytest.skip(reason)
    disk = SmallDisk(tmp_path / "disk", 32 * MIB)
    yield disk
    disk.close()


def entries(first: int, count: int) -> list[Entry]:
    return [Entry(COMMAND, index, 1) for index in range(first, first + count)]


def grown(journal: Journal, count: int) -> None:
    for entry in entries(journal.last_index + 1, count):
        journal.append(entry)
        journal.sync()


def test_entries_votes_and_a_snapshot_find_room_on_a_full_disk(small: SmallDisk) -> None:
    folder = str(small.path / "metadata")
    journal = Journal.open(folder)
    grown(journal, 1000)
    keep_room(folder, 16 * MIB)
    small.fill()
    grown(journal, 1000)
    journal.save_vote(7, "1")
    journal.save_standing(VoterStatus(VoterState.VOTER))
    journal.sync()
    last = journal.last_index
    journal.install(Snapshot(last, 1, bytes(400_000), tuple(entries(last - 1, 2))), keep_from=last)
    journal.sync()
    small.fill()
    grown(journal, 100)
    journal.close()
    again = Journal.open(folder)
    assert (again.snapshot_index, again.last_index) == (last, last + 100)
    assert (again.term, again.voted_for) == (7, "1")
    again.close()
    assert sorted(os.listdir(folder)) == ["journal", NAME, "snapshot", "synced"]


def test_without_a_reserve_the_journal_says_that_the_disk_is_full(small: SmallDisk) -> None:
    folder = str(small.path / "metadata")
    journal = Journal.open(folder)
    small.fill()
    with pytest.raises(StorageError, match="No space left on device"):
        grown(journal, 100)
    journal.close()


def test_it_takes_room_again_and_no_more_than_there_is(small: SmallDisk) -> None:
    folder = small.path
    keep_room(str(folder), 0)
    assert not (folder / NAME).exists()
    keep_room(str(folder), 512 << 10)
    assert (folder / NAME).stat().st_blocks * 512 == 512 << 10
    keep_room(str(folder), 16 * MIB)
    assert (folder / NAME).stat().st_size == BASE_BYTES
    small.fill()
    make_room_to_start(str(folder))
    left = (folder / NAME).stat().st_size
    assert left < BASE_BYTES
    keep_room(str(folder), 16 * MIB)
    assert (folder / NAME).stat().st_size == left
    small.empty()
    (folder / NAME).write_bytes(b"")
    os.truncate(folder / NAME, BASE_BYTES)  # As a copy of the folder may have it.
    keep_room(str(folder), 16 * MIB)
    assert (folder / NAME).stat().st_blocks * 512 == BASE_BYTES
    keep_room(str(folder), 0)
    assert (folder / NAME).stat().st_size == 0


def test_only_want_of_room_takes_from_it_and_it_comes_to_an_end(tmp_path: Path) -> None:
    keep_room(str(tmp_path), 512 << 10)

    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match="Input/output"):
        in_room(str(tmp_path), 1, lambda: fail(errno.EIO))
    assert (tmp_path / NAME).stat().st_size == 512 << 10
    with pytest.raises(OSError, match="No space left"):
        in_room(str(tmp_path), 1, lambda: fail(errno.ENOSPC))
    assert (tmp_path / NAME).stat().st_size == 0
    assert not make_room(str(tmp_path), 1)
    assert not make_room(str(tmp_path / "missing"), 1)
