"""The data folder: one server at a time, one cluster and node for ever."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.types import WallUs
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from tests.support import identity_files
from tests.support.clocks import WALL_US
from tests.support.descriptors import no_descriptor_left
from tests.support.log_disk import FaultyDisk


def open_folder(disk: OsDisk, path: Path, *, node_id: int = 1) -> DataFolder:
    return DataFolder.open(disk, str(path), node_id=node_id)


def test_new_folder_gets_an_identity_and_keeps_it(os_disk: OsDisk, tmp_path: Path) -> None:
    folder = open_folder(os_disk, tmp_path / "data")
    assert folder.cluster_id == ""
    folder.join("c5")
    folder.close()
    meta = json.loads((tmp_path / "data" / "meta.json").read_text())
    assert len(meta.pop("crc")) == 8
    assert meta == {"format_version": 1, "cluster": "", "cluster_id": "c5", "node_id": 1}
    again = open_folder(os_disk, tmp_path / "data")
    again.join("c5")
    assert (again.cluster_id, again.node_id) == ("c5", 1)
    again.close()


def test_a_folder_joins_one_cluster_for_ever(os_disk: OsDisk, tmp_path: Path) -> None:
    folder = open_folder(os_disk, tmp_path)
    folder.join("ours")
    before = (tmp_path / "meta.json").read_bytes()
    with pytest.raises(PreconditionFailedError, match="belongs to cluster ours"):
        folder.join("theirs")
    assert folder.cluster_id == "ours"
    assert (tmp_path / "meta.json").read_bytes() == before
    folder.close()


def test_a_stream_made_while_descriptors_run_out_is_not_offline_for_ever(tmp_path: Path) -> None:
    """Whether its folder was set aside once is looked up with a spare one."""
    disk = OsDisk(spare=2)
    folder = open_folder(disk, tmp_path)
    with no_descriptor_left():
        assert not folder.take_back(7, WallUs(0))
        assert folder.stream_ids() == []
    folder.close()
    disk.close()


def test_second_server_on_the_same_folder_is_refused(os_disk: OsDisk, tmp_path: Path) -> None:
    folder = open_folder(os_disk, tmp_path)
    with pytest.raises(StorageError, match="in use by another running server"):
        open_folder(os_disk, tmp_path)
    folder.close()
    open_folder(os_disk, tmp_path).close()


def test_lock_dies_with_its_process(os_disk: OsDisk, tmp_path: Path) -> None:
    code = (
        "import os, sys; from jetstream_server.log.disk import OsDisk;"
        "from jetstream_server.log.data_folder import DataFolder;"
        "f = DataFolder.open(OsDisk(), sys.argv[1], node_id=1);"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    open_folder(os_disk, tmp_path).close()


def test_folder_of_another_node_cluster_or_format_is_refused(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    first = DataFolder.open(os_disk, str(tmp_path), node_id=1, cluster="ours")
    first.close()
    with pytest.raises(PreconditionFailedError, match="belongs to node 1, and this is node 2"):
        DataFolder.open(os_disk, str(tmp_path), node_id=2, cluster="ours")
    with pytest.raises(PreconditionFailedError, match="belongs to cluster ours"):
        DataFolder.open(os_disk, str(tmp_path), node_id=1, cluster="theirs")
    open_folder(os_disk, tmp_path).close()  # A node that is alone has no name to compare.
    meta = tmp_path / "meta.json"
    identity_files.correct(meta, format_version=2)
    with pytest.raises(PreconditionFailedError, match="format 2"):
        DataFolder.open(os_disk, str(tmp_path), node_id=1, cluster="ours")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"node_id": "x"}'])
def test_damaged_identity_stops_the_start_and_is_not_replaced(
    os_disk: OsDisk, tmp_path: Path, content: str
) -> None:
    open_folder(os_disk, tmp_path).close()
    (tmp_path / "meta.json").write_text(content)
    with pytest.raises(PreconditionFailedError, match="damaged"):
        open_folder(os_disk, tmp_path)
    assert (tmp_path / "meta.json").read_text() == content


def test_every_flipped_bit_of_the_identity_is_found_and_the_words_say_what_to_do(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    folder = open_folder(os_disk, tmp_path)
    folder.join("c5")
    folder.close()
    meta = tmp_path / "meta.json"
    whole = meta.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            meta.write_bytes(damaged)
            with pytest.raises(PreconditionFailedError) as caught:
                open_folder(os_disk, tmp_path)
            assert f"{meta} is damaged" in caught.value.message
            assert f"move {tmp_path} away" in caught.value.message


def test_the_identity_of_an_earlier_release_is_read(os_disk: OsDisk, tmp_path: Path) -> None:
    """It has no checksum; nor has one that an operator has corrected."""
    meta = {"format_version": 1, "cluster": "", "cluster_id": "c5", "node_id": 1}
    (tmp_path / "meta.json").write_text(json.dumps(meta, indent=2))
    folder = open_folder(os_disk, tmp_path)
    assert folder.cluster_id == "c5"
    folder.close()


def test_a_cluster_id_that_differs_is_refused_in_words_that_say_what_to_do(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    folder = open_folder(os_disk, tmp_path)
    folder.join("ours")
    with pytest.raises(PreconditionFailedError) as caught:
        folder.join("ourz")
    assert "write ourz as its `cluster_id` and take its `crc` out" in caught.value.message
    assert f"move {tmp_path}/metadata away" in caught.value.message
    folder.close()


def test_a_folder_that_is_removed_or_replaced_is_told(os_disk: OsDisk, tmp_path: Path) -> None:
    path = tmp_path / "data"
    folder = open_folder(os_disk, path)
    assert folder.why_gone() == ""
    path.rename(tmp_path / "elsewhere")
    assert "cannot be found any more: No such file" in folder.why_gone()
    path.mkdir()
    assert "another folder has taken the place" in folder.why_gone()
    path.rmdir()
    (tmp_path / "elsewhere").rename(path)
    assert folder.why_gone() == ""
    folder.close()


def test_streams_without_an_identity_stop_the_start(os_disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "streams" / "17").mkdir(parents=True)
    with pytest.raises(PreconditionFailedError, match=r"no meta\.json"):
        open_folder(os_disk, tmp_path)


def test_refused_start_lets_go_of_the_lock(os_disk: OsDisk, tmp_path: Path) -> None:
    open_folder(os_disk, tmp_path).close()
    for _ in range(2):
        with pytest.raises(PreconditionFailedError):
            open_folder(os_disk, tmp_path, node_id=2)
    open_folder(os_disk, tmp_path).close()


def test_stream_folders_are_listed_whoever_made_them(os_disk: OsDisk, tmp_path: Path) -> None:
    folder = open_folder(os_disk, tmp_path)
    for name in ("9", "100", "notes"):
        (tmp_path / "streams" / name).mkdir()
    assert folder.stream_ids() == [9, 100]
    assert folder.stream_directory(9) == str(tmp_path / "streams" / "9")
    folder.close()


def test_that_all_streams_were_lost_shows_until_their_folder_is_made(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    folder = open_folder(os_disk, tmp_path)
    assert not folder.lost_streams
    folder.make_streams()
    folder.close()
    (tmp_path / "streams").rmdir()
    for _ in range(2):  # The first start dies before it notes the loss.
        folder = open_folder(os_disk, tmp_path)
        assert folder.lost_streams
        folder.close()
    faulty = FaultyDisk(os_disk)
    folder = DataFolder.open(faulty, str(tmp_path), node_id=1)
    folder.make_streams()
    assert faulty.calls[-1] == ("fsync_directory", str(tmp_path))
    assert folder.stream_ids() == []
    folder.close()
    folder = open_folder(os_disk, tmp_path)
    assert not folder.lost_streams
    folder.close()


def test_unknown_stream_is_set_aside_first_and_deleted_only_much_later_if_it_was_deleted(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    folder = open_folder(os_disk, tmp_path)
    (tmp_path / "streams" / "9").mkdir()
    (tmp_path / "streams" / "9" / "file").write_bytes(b"records")
    folder.quarantine(9, WALL_US)
    assert folder.stream_ids() == []
    assert folder.delete_quarantined(WallUs(WALL_US - 1), not_needed={9}) == []
    assert folder.delete_quarantined(WALL_US, not_needed={8, 10}) == []
    (kept,) = (tmp_path / "quarantine").iterdir()
    assert (kept / "file").read_bytes() == b"records"
    assert folder.delete_quarantined(WALL_US, not_needed={9}) == [kept.name]
    assert list((tmp_path / "quarantine").iterdir()) == []
    with pytest.raises(StorageError):
        folder.quarantine(9, WALL_US)
    folder.close()


def test_a_stream_that_was_set_aside_is_taken_back(os_disk: OsDisk, tmp_path: Path) -> None:
    folder = open_folder(os_disk, tmp_path)
    for wall_us, records in (WALL_US, b"older"), (WallUs(WALL_US + 1), b"newest"):
        (tmp_path / "streams" / "9").mkdir()
        (tmp_path / "streams" / "9" / "file").write_bytes(records)
        (tmp_path / "streams" / "9.offsets").write_bytes(records)
        folder.quarantine(9, wall_us)
        assert list((tmp_path / "streams").iterdir()) == []
    assert not folder.take_back(9, created_at_us=WallUs(WALL_US + 2)), "another stream's"
    assert not folder.take_back(8, created_at_us=WALL_US)
    assert folder.take_back(9, created_at_us=WALL_US)
    assert (tmp_path / "streams" / "9" / "file").read_bytes() == b"newest"
    assert (tmp_path / "streams" / "9.offsets").read_bytes() == b"newest"
    assert not folder.take_back(9, created_at_us=WALL_US), "there is one"
    folder.close()


def test_an_older_copy_does_not_take_the_place_of_a_newer_one_whose_folder_was_lost(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    folder = open_folder(os_disk, tmp_path)
    (tmp_path / "streams" / "9").mkdir()
    (tmp_path / "streams" / "9.offsets").write_bytes(b"older")
    folder.quarantine(9, WALL_US)
    (tmp_path / "streams" / "9.offsets").write_bytes(b"newer")
    assert not folder.take_back(9, created_at_us=WALL_US)
    assert (tmp_path / "streams" / "9.offsets").read_bytes() == b"newer"
    assert folder.stream_ids() == []
    folder.close()


@pytest.mark.parametrize("ended", ["setting aside", "taking back"])
def test_a_move_that_ended_between_its_two_renames_is_completed(
    os_disk: OsDisk, tmp_path: Path, ended: str
) -> None:
    faulty = FaultyDisk(os_disk)
    folder = DataFolder.open(faulty, str(tmp_path), node_id=1)
    (tmp_path / "streams" / "9").mkdir()
    (tmp_path / "streams" / "9.offsets").touch()
    if ended == "setting aside":
        faulty.fail("rename", "9.offsets", errno.EIO)
        with pytest.raises(StorageError):
            folder.quarantine(9, WALL_US)
    else:
        folder.quarantine(9, WALL_US)
        faulty.fail("rename", f"9.{WALL_US}", errno.EIO)
        with pytest.raises(StorageError):
            folder.take_back(9, created_at_us=WALL_US)
    faulty.heal()
    assert [path.name for path in (tmp_path / "streams").iterdir()] == ["9.offsets"]
    assert folder.take_back(9, created_at_us=WALL_US)
    assert sorted(path.name for path in (tmp_path / "streams").iterdir()) == ["9", "9.offsets"]
    assert list((tmp_path / "quarantine").iterdir()) == []
    folder.close()


def test_read_only_folder_stops_the_start_with_one_sentence(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    if os.geteuid() != 0:
        with pytest.raises(StorageError, match=f"{data} cannot be used: Permission denied"):
            open_folder(os_disk, data)
        return
    for parent in (tmp_path, *tmp_path.parents):  # the other user must get here
        if parent.owner() == data.owner() and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    os.seteuid(65534)  # Root may write anywhere.
    try:
        with pytest.raises(StorageError, match=f"{data} cannot be used: Permission denied"):
            open_folder(os_disk, data)
    finally:
        os.seteuid(0)


def test_place_that_is_no_folder_stops_the_start(os_disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageError, match="cannot be used"):
        open_folder(os_disk, tmp_path / "data")


def synced(disk: FaultyDisk, *, before: str) -> list[str]:
    """The folders that were synced until that file was written."""
    end = disk.calls.index(("write_atomic", before)) if before else len(disk.calls)
    return [path for operation, path in disk.calls[:end] if operation == "fsync_directory"]


def test_the_names_of_new_folders_are_synced_before_anything_is_written_there(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    """Otherwise a power failure takes the folder, with everything that was acknowledged."""
    path = tmp_path / "new" / "data"
    parents = [str(path.parent), str(tmp_path), str(tmp_path.parent)]
    for failing in parents:
        faulty = FaultyDisk(os_disk)
        faulty.fail("fsync_directory", failing, errno.EIO)
        with pytest.raises(StorageError):
            DataFolder.open(faulty, str(path), node_id=1)
        assert not (path / "meta.json").exists()
    faulty = FaultyDisk(os_disk)
    DataFolder.open(faulty, str(path), node_id=1).close()
    assert set(parents) <= set(synced(faulty, before=f"{path}/meta.json"))


def test_names_that_an_earlier_start_could_not_sync_are_synced(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    open_folder(os_disk, tmp_path).close()
    faulty = FaultyDisk(os_disk)
    DataFolder.open(faulty, str(tmp_path), node_id=1).close()
    assert synced(faulty, before="") == [str(tmp_path)]
