import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import (
    HEADER_BYTES,
    JOURNAL_HEADER,
    STANDING,
    VOTE,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
)
from jetstream_protocol.logfiles.synced_length import FILE_BYTES, decode
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.snapshot_file import read_snapshot
from jetstream_server.metadata.raft.standing import UNKNOWN_RUN, VoterState, VoterStatus
from tests.support.descriptors import no_descriptor_left


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


def unsynced(directory: Path, *indexes: int) -> tuple[Path, int]:
    """A journal with entry 1, then these in a write that never was synced: the power failed. The
    path of its file, and how much of it had been synced."""
    path = written(directory, 1)
    size = path.stat().st_size
    journal = Journal.open(str(directory))
    with path.open("ab") as file:
        for index in indexes:
            file.write(encode_entry(entry(index)))
    journal.failure = "the power has failed"
    journal.close()
    return path, size


class TestUnsynced:
    """What was never synced was never promised."""

    def test_a_write_is_cut_off_at_every_length(self, tmp_path: Path) -> None:
        path, size = unsynced(tmp_path, 2)
        whole = path.read_bytes()
        for length in range(size, len(whole)):
            path.write_bytes(whole[:length])
            journal = reopened(tmp_path)
            assert (indexes(journal), journal.lost) == ([1], "")
            assert path.stat().st_size == size

    def test_a_write_of_zeros_is_cut_off(self, tmp_path: Path) -> None:
        path, size = unsynced(tmp_path)
        path.write_bytes(path.read_bytes() + bytes(500))
        journal = reopened(tmp_path)
        assert (indexes(journal), journal.cut_bytes, journal.lost) == ([1], 500, "")
        assert path.stat().st_size == size

    def test_a_write_whose_later_pages_only_are_there_is_cut_off_and_is_no_corruption(
        self, tmp_path: Path
    ) -> None:
        path, size = unsynced(tmp_path, 2, 3, 4)
        data = bytearray(path.read_bytes())
        data[size : size + 41] = bytes(41)
        path.write_bytes(data)
        journal = reopened(tmp_path)
        assert (indexes(journal), journal.lost) == ([1], "")
        assert path.stat().st_size == size

    def test_what_is_whole_stays(self, tmp_path: Path) -> None:
        unsynced(tmp_path, 2, 3)
        journal = reopened(tmp_path)
        assert (indexes(journal), journal.cut_bytes, journal.lost) == ([1, 2, 3], 0, "")


class TestSynced:
    """What was synced may have been promised: it must read."""

    @pytest.mark.parametrize("alone", [False, True])
    def test_any_flipped_bit_of_it_stops_the_start_with_file_position_and_what_to_do(
        self, tmp_path: Path, alone: bool
    ) -> None:
        path = written(tmp_path, 1, 2, 3)
        whole = path.read_bytes()
        for position in range(HEADER_BYTES, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match=r"journal at byte \d+: .*move the metadata"):
                Journal.open(str(tmp_path), alone=alone)
            assert path.read_bytes() == damaged

    def test_missing_bytes_stop_the_start_also_at_a_record_s_end(self, tmp_path: Path) -> None:
        path = written(tmp_path, 1, 2)
        whole = path.read_bytes()
        for length in range(HEADER_BYTES, len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(StorageError, match="had been synced"):
                Journal.open(str(tmp_path))

    def test_bytes_after_it_are_cut_off_also_after_a_clean_stop(self, tmp_path: Path) -> None:
        path = written(tmp_path, 1)
        whole = path.read_bytes()
        path.write_bytes(whole + b"something")
        assert indexes(reopened(tmp_path)) == [1]
        assert path.read_bytes() == whole

    def test_an_append_is_noted_as_synced_before_sync_returns(self, tmp_path: Path) -> None:
        path = written(tmp_path, 1)
        journal = Journal.open(str(tmp_path))
        journal.append(entry(2))
        journal.sync()
        synced = decode((tmp_path / "synced").read_bytes())
        assert synced is not None
        assert (synced.length, synced.clean) == (path.stat().st_size, False)
        journal.close()
        closed = decode((tmp_path / "synced").read_bytes())
        assert closed is not None
        assert closed.clean


class TestDoubt:
    """If it is unknown what was synced, a voter asks the other voters."""

    def crashed(self, directory: Path) -> Path:
        path = written(directory, 1, 2)
        journal = Journal.open(str(directory))
        journal.save_standing(VoterStatus(VoterState.VOTER, ("a", "b")))
        journal.save_vote(1, "0")
        journal.sync()
        journal.failure = "the process was killed"
        journal.close()
        return path

    @pytest.mark.parametrize("damage", ["gone", "empty", "flipped"])
    def test_without_the_synced_length_a_voter_becomes_a_learner(
        self, tmp_path: Path, damage: str
    ) -> None:
        path = self.crashed(tmp_path)
        synced = tmp_path / "synced"
        if damage == "gone":
            synced.unlink()
        else:
            synced.write_bytes(
                b"" if damage == "empty" else synced.read_bytes().replace(b"J", b"j")
            )
        with path.open("ab") as file:
            file.write(b"JSMR torn")
        journal = reopened(tmp_path)
        assert (journal.standing.state, journal.cut_bytes) == (VoterState.LEARNER, 9)
        assert "nothing says whether" in journal.lost
        assert indexes(journal) == [1, 2]

    def test_every_flipped_byte_of_the_synced_length_is_found_and_mended(
        self, tmp_path: Path
    ) -> None:
        self.crashed(tmp_path)
        assert reopened(tmp_path).synced.damage == ""
        synced = tmp_path / "synced"
        for at in [*range(60), *range(4080, 4160), *range(4160, FILE_BYTES, 97)]:
            content = bytearray(synced.read_bytes())
            content[at] ^= 0x10
            synced.write_bytes(content)
            journal = Journal.open(str(tmp_path), alone=True)
            assert journal.synced.damage, at
            journal.save_standing(journal.standing.with_run(f"run {at}"))
            journal.sync()
            journal.close()
            assert reopened(tmp_path).synced.damage == "", at

    @pytest.mark.parametrize("length", [0, 1, 100, 4096, FILE_BYTES - 1, FILE_BYTES + 1])
    def test_a_synced_length_of_another_size_is_found(self, tmp_path: Path, length: int) -> None:
        self.crashed(tmp_path)
        synced = tmp_path / "synced"
        synced.write_bytes((synced.read_bytes() + bytes(9))[:length])
        assert "bytes and not" in reopened(tmp_path).synced.damage

    @pytest.mark.parametrize("at", [0, 4096])
    def test_a_slot_of_the_synced_length_that_was_zeroed_is_found(
        self, tmp_path: Path, at: int
    ) -> None:
        self.crashed(tmp_path)
        synced = tmp_path / "synced"
        content = bytearray(synced.read_bytes())
        content[at : at + 48] = bytes(48)
        synced.write_bytes(content)
        assert reopened(tmp_path).synced.damage == f"the slot at byte {at} is empty"

    def test_a_copy_of_a_journal_in_use_makes_a_learner(self, tmp_path: Path) -> None:
        self.crashed(tmp_path / "a")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        journal = reopened(tmp_path / "b")
        assert (journal.standing.state, journal.lost) == (
            VoterState.LEARNER,
            "it is a copy of a journal that was in use",
        )
        # The one that was copied goes on.
        assert reopened(tmp_path / "a").standing.state == VoterState.VOTER

    def test_a_folder_that_was_moved_after_a_clean_stop_goes_on(self, tmp_path: Path) -> None:
        self.crashed(tmp_path / "a")
        reopened(tmp_path / "a")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        assert reopened(tmp_path / "b").standing.state == VoterState.VOTER

    def test_an_older_journal_beside_what_is_newer_makes_a_learner(self, tmp_path: Path) -> None:
        path = self.crashed(tmp_path)
        old = path.read_bytes()
        for index in (2, 2):
            journal = Journal.open(str(tmp_path))
            snapshot = Snapshot(index, 1, b"state", (entry(1), entry(2)))
            journal.install(snapshot, keep_from=1)
            journal.sync()
            journal.close()
        (tmp_path / "snapshot").unlink()
        path.write_bytes(old)
        with pytest.raises(StorageError, match="later entries are lost"):
            Journal.open(str(tmp_path), alone=True)
        journal = reopened(tmp_path)
        assert (journal.standing.state, journal.lost) == (
            VoterState.LEARNER,
            "it is older than the file `synced` beside it says",
        )

    def test_alone_a_journal_that_reads_goes_on_and_one_that_does_not_is_refused(
        self, tmp_path: Path
    ) -> None:
        path = self.crashed(tmp_path)
        (tmp_path / "synced").unlink()
        journal = Journal.open(str(tmp_path), alone=True)
        assert (journal.standing.state, indexes(journal)) == (VoterState.VOTER, [1, 2])
        journal.close()
        (tmp_path / "synced").unlink()
        with path.open("ab") as file:
            file.write(b"JSMR torn")
        with pytest.raises(StorageError, match="nothing says whether"):
            Journal.open(str(tmp_path), alone=True)

    def test_a_missing_journal_is_refused_where_there_was_one(self, tmp_path: Path) -> None:
        self.crashed(tmp_path).unlink()
        with pytest.raises(StorageError, match=r"journal is missing.*move the metadata"):
            Journal.open(str(tmp_path))

    def test_a_new_journal_where_one_is_expected_is_a_learners(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path), expected="it was here")
        assert (journal.standing.state, journal.lost) == (VoterState.LEARNER, "it was here")
        assert not journal.is_pristine
        journal.sync()
        journal.close()
        assert reopened(tmp_path).standing.state == VoterState.LEARNER


class TestEarlierRelease:
    """A journal without generation, standing and synced length."""

    def older(self, directory: Path, *indexes: int, tail: bytes = b"") -> Path:
        directory.mkdir(exist_ok=True)
        records = [encode_record(VOTE, 0, 3, b"1"), *(encode_entry(entry(i)) for i in indexes)]
        (directory / "journal").write_bytes(b"".join([JOURNAL_HEADER, *records, tail]))
        return directory / "journal"

    @pytest.mark.parametrize("alone", [False, True])
    def test_it_goes_on_as_the_voter_it_was(self, tmp_path: Path, alone: bool) -> None:
        self.older(tmp_path, 1, 2)
        for _ in range(2):
            journal = Journal.open(str(tmp_path), alone=alone)
            assert journal.standing == VoterStatus(VoterState.VOTER, (UNKNOWN_RUN,))
            assert (indexes(journal), journal.term, journal.lost) == ([1, 2], 3, "")
            journal.close()

    def test_cut_off_it_is_a_learners(self, tmp_path: Path) -> None:
        self.older(tmp_path, 1, 2, tail=b"JSMR torn")
        journal = reopened(tmp_path)
        assert (journal.standing.state, indexes(journal)) == (VoterState.LEARNER, [1, 2])

    def test_alone_only_what_the_file_s_end_cut_short_is_cut_off(self, tmp_path: Path) -> None:
        whole = encode_entry(entry(3))
        for length in range(1, len(whole)):
            self.older(tmp_path, 1, 2, tail=whole[:length])
            (tmp_path / "synced").unlink(missing_ok=True)
            journal = Journal.open(str(tmp_path), alone=True)
            assert (indexes(journal), journal.standing.state) == ([1, 2], VoterState.VOTER)
            journal.close()
        self.older(tmp_path, 1, 2, tail=bytes([whole[0] ^ 1]) + whole[1:])
        (tmp_path / "synced").unlink()
        with pytest.raises(StorageError, match="its last records cannot be read"):
            Journal.open(str(tmp_path), alone=True)


def test_a_record_of_an_unknown_kind_is_taken_for_a_newer_version_s(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path))
    journal.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(encode_record(99, 1, 0, b""))
    with pytest.raises(StorageError, match=r"unknown record kind 99; .* newer version"):
        Journal.open(str(tmp_path))


def test_a_foreign_file_refuses_to_open(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"something else entirely")
    with pytest.raises(StorageError, match="not a metadata journal"):
        Journal.open(str(tmp_path))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (encode_entry(entry(7)), "entry 7 follows 3"),
        (encode_record(STANDING, 99, 0, b"no status"), "an invalid standing record"),
    ],
)
def test_a_record_that_cannot_follow_is_refused_with_what_to_do(
    tmp_path: Path, record: bytes, reason: str
) -> None:
    """As when an older copy of the file takes its place under the node, which writes on."""
    path = written(tmp_path, 1, 2, 3)
    path.write_bytes(path.read_bytes() + record)
    with pytest.raises(StorageError, match=f"{reason}; .*move "):
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
        journal.sync()
        journal.close()
        assert indexes(reopened(tmp_path)) == [8, 9]

    @pytest.mark.parametrize("base", [(), (entry(2), entry(3))])
    def test_a_crash_between_the_two_files_loses_nothing(
        self, tmp_path: Path, base: tuple[Entry, ...]
    ) -> None:
        path = written(tmp_path, 1, 2, 3, 4)
        before = path.read_bytes(), (tmp_path / "synced").read_bytes()
        journal = Journal.open(str(tmp_path))
        journal.install(Snapshot(3, 1, b"state", base), keep_from=2 if base else 4)
        journal.sync()
        journal.close()
        path.write_bytes(before[0])
        (tmp_path / "synced").write_bytes(before[1])
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
        before = path.read_bytes(), (tmp_path / "synced").read_bytes()
        journal = Journal.open(str(tmp_path))
        journal.install(Snapshot(9, 4, b"state", (entry(8, 4), entry(9, 4))))
        journal.sync()
        journal.close()
        path.write_bytes(before[0])
        (tmp_path / "synced").write_bytes(before[1])
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

    def test_a_damaged_snapshot_refuses_to_open_and_says_what_to_do(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path))
        journal.append(entry(1))
        journal.install(Snapshot(1, 1, b"state"), keep_from=2)
        journal.sync()
        journal.close()
        path = tmp_path / "snapshot"
        whole = path.read_bytes()
        flipped = (
            whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
            for place in range(len(whole))
        )
        cut = (whole[:length] for length in range(len(whole)))
        for damaged in (*flipped, *cut):
            path.write_bytes(damaged)
            complaint = "snapshot at byte .*move the metadata folder away"
            with pytest.raises(StorageError, match=complaint):
                Journal.open(str(tmp_path))

    def test_a_journal_missing_beside_its_snapshot_refuses_to_open(self, tmp_path: Path) -> None:
        journal = Journal.open(str(tmp_path))
        journal.append(entry(1))
        journal.install(Snapshot(1, 1, b"state"), keep_from=2)
        journal.sync()
        journal.close()
        os.remove(tmp_path / "journal")
        with pytest.raises(StorageError, match="journal is missing"):
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


def test_a_snapshot_is_installed_though_connections_have_taken_every_descriptor(
    tmp_path: Path,
) -> None:
    written(tmp_path, 1, 2, 3)
    with closing(Journal.open(str(tmp_path))) as journal:
        group = GroupFile.open(
            str(tmp_path), Group(NodeId(0), ((NodeId(0), "a:1"),)), accept_voters=True
        )
        with no_descriptor_left():
            for index in (2, 3):
                base = (entry(index - 1), entry(index))
                journal.install(Snapshot(index, 1, b"state", base), keep_from=index)
                journal.sync()
                group.replace(replace(group.group, cluster_id=f"c{index}"))
        assert journal.failure == ""
    assert read_snapshot(str(tmp_path)).index == 3  # type: ignore[union-attr]
