import os
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_server.metadata.journal import Journal, read_snapshot


def entry(index: int, term: int = 1) -> Entry:
    return Entry(b"command %d" % index, index, term)


def written(directory: Path, *indexes: int) -> Path:
    """A closed journal with these entries; the path of its file."""
    journal = Journal.open(str(directory))
    for index in indexes:
        journal.append(entry(index))
    journal.sync()
    journal.close()
    return directory / "journal"


def indexes(journal: Journal) -> list[int]:
    return [held.index for held in journal.entries(0)]


def reopened(directory: Path) -> Journal:
    journal = Journal.open(str(directory))
    journal.close()
    return journal


def test_entries_term_and_vote_are_there_after_reopening(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path))
    for index in (1, 2, 3):
        journal.append(entry(index))
    journal.save_vote(7, "node-2")
    journal.sync()
    journal.close()
    again = reopened(tmp_path)
    assert again.entries(1) == [entry(1), entry(2), entry(3)]
    assert (again.term, again.voted_for, again.first_index, again.last_index) == (7, "node-2", 1, 3)


def test_a_truncated_suffix_stays_away_and_others_take_its_place(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path))
    for index in (1, 2, 3):
        journal.append(entry(index))
    journal.truncate(2)
    journal.append(entry(2, term=5))
    journal.sync()
    journal.close()
    assert reopened(tmp_path).entries(1) == [entry(1), entry(2, term=5)]


def test_nothing_is_written_before_sync(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    size = path.stat().st_size
    journal = Journal.open(str(tmp_path))
    journal.append(entry(2))
    assert not journal.is_synced
    assert path.stat().st_size == size
    journal.sync()
    assert journal.is_synced
    assert path.stat().st_size == journal.size_bytes > size
    journal.close()


def test_a_torn_tail_is_cut_off_at_every_length(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 2)
    whole = path.read_bytes()
    first = len(written(tmp_path / "one", 1).read_bytes())
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert indexes(reopened(tmp_path)) == [1]
        assert path.stat().st_size == first


def test_a_torn_tail_of_zeros_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(500))
    assert indexes(reopened(tmp_path)) == [1]
    assert path.read_bytes() == whole


def test_a_corrupt_middle_refuses_to_open_and_names_file_and_position(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 2, 3)
    first = len(written(tmp_path / "one", 1).read_bytes())
    damaged = bytearray(path.read_bytes())
    damaged[first + 40] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match=f"{path} at byte {first}"):
        Journal.open(str(tmp_path))
    assert path.read_bytes() == damaged


def test_a_foreign_file_refuses_to_open(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"something else entirely")
    with pytest.raises(StorageError, match="not a metadata journal"):
        Journal.open(str(tmp_path))


class TestInstall:
    def test_a_snapshot_replaces_the_entries_before_it(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path))
        for index in (1, 2, 3, 4):
            journal.append(entry(index))
        journal.save_vote(3, "b")
        journal.install(Snapshot(3, 1, b"state", (entry(2), entry(3))), keep_from=2)
        journal.append(entry(5))
        journal.sync()
        journal.close()
        again = reopened(tmp_path)
        assert indexes(again) == [2, 3, 4, 5]
        assert (again.snapshot_index, again.term, again.voted_for) == (3, 3, "b")
        assert read_snapshot(str(tmp_path)) == Snapshot(3, 1, b"state", (entry(2), entry(3)))

    def test_a_snapshot_from_a_leader_replaces_everything(self, tmp_path: Path) -> None:
        written(tmp_path, 1, 2)
        journal = Journal.open(str(tmp_path))
        journal.install(Snapshot(9, 4, b"state", (entry(8, 4), entry(9, 4))))
        journal.close()
        assert indexes(reopened(tmp_path)) == [8, 9]

    @pytest.mark.parametrize("base", [(), (entry(2), entry(3))])
    def test_a_crash_between_the_two_files_loses_nothing(
        self, tmp_path: Path, base: tuple[Entry, ...]
    ) -> None:
        path = written(tmp_path, 1, 2, 3, 4)
        before = path.read_bytes()
        journal = Journal.open(str(tmp_path))
        journal.install(Snapshot(3, 1, b"state", base), keep_from=2 if base else 4)
        journal.close()
        path.write_bytes(before)
        journal = Journal.open(str(tmp_path))
        assert indexes(journal) == [held.index for held in base] + [4]
        journal.append(entry(5))
        journal.sync()
        journal.close()
        assert indexes(reopened(tmp_path))[-2:] == [4, 5]

    def test_a_crash_between_the_two_files_of_a_leaders_snapshot_finishes_it(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, 1, 2)
        before = path.read_bytes()
        journal = Journal.open(str(tmp_path))
        journal.install(Snapshot(9, 4, b"state", (entry(8, 4), entry(9, 4))))
        journal.close()
        path.write_bytes(before)
        journal = Journal.open(str(tmp_path))
        journal.append(entry(10, 4))
        journal.sync()
        journal.close()
        assert indexes(reopened(tmp_path)) == [8, 9, 10]

    def test_a_temporary_file_left_behind_is_ignored(self, tmp_path: Path) -> None:
        written(tmp_path, 1)
        (tmp_path / "snapshot.tmp").write_bytes(b"half a snap")
        assert indexes(reopened(tmp_path)) == [1]
        assert read_snapshot(str(tmp_path)) is None

    def test_a_damaged_snapshot_refuses_to_open(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path))
        journal.append(entry(1))
        journal.install(Snapshot(1, 1, b"state"), keep_from=2)
        journal.close()
        path = tmp_path / "snapshot"
        whole = path.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0xFF
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match="snapshot at byte"):
                Journal.open(str(tmp_path))

    def test_a_journal_missing_beside_its_snapshot_refuses_to_open(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path))
        journal.append(entry(1))
        journal.install(Snapshot(1, 1, b"state"), keep_from=2)
        journal.close()
        os.remove(tmp_path / "journal")
        with pytest.raises(StorageError, match="missing beside a snapshot"):
            Journal.open(str(tmp_path))


def test_a_failed_sync_takes_the_journal_offline_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(str(tmp_path))
    journal.append(entry(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(StorageError, match="I/O error"):
            journal.sync()
    with pytest.raises(StorageError, match="offline"):
        journal.sync()
    journal.close()
