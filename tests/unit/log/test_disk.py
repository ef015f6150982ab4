from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError, StorageFullError
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.disk import OsDisk


def open_descriptors(folder: Path) -> int:
    """How many descriptors of this process are open on files in `folder`."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        count += target.startswith(str(folder))
    return count


def test_write_puts_all_buffers_back_to_back_at_the_position(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [b"head"])
    disk.write(path, 4, [bytearray(b"one"), memoryview(b"two"), b"three"])
    assert disk.read_file(path) == b"headonetwothree"
    disk.close()


def test_pread_is_short_only_at_the_end_of_the_file(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [b"0123456789"])
    assert disk.pread(path, 2, 3) == b"234"
    assert disk.pread(path, 8, 100) == b"89"
    assert disk.pread(path, 100, 1) == b""
    disk.close()


def test_a_failed_pread_names_its_file(path_on_disk: Path) -> None:
    path = str(path_on_disk / "file")
    disk = OsDisk()
    disk.create(path)
    with pytest.raises(OSError, match=path) as failed:
        disk.pread(path, -1, 4)
    assert failed.value.filename == path
    disk.close()


def test_create_refuses_to_replace_a_file(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    with pytest.raises(FileExistsError):
        disk.create(path)


def test_descriptors_stay_within_their_number_whatever_the_number_of_files(
    path_on_disk: Path,
) -> None:
    disk = OsDisk(descriptors_max=4)
    for name in range(20):
        path = str(path_on_disk / str(name))
        disk.create(path)
        disk.write(path, 0, [b"%d" % name])
    assert open_descriptors(path_on_disk) == 4
    assert [disk.pread(str(path_on_disk / str(name)), 0, 9) for name in (0, 19)] == [b"0", b"19"]
    disk.close()
    assert open_descriptors(path_on_disk) == 0


def test_file_created_anew_after_removal_is_not_the_old_one(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [b"old"])
    disk.remove(path)
    disk.create(path)
    assert disk.pread(path, 0, 3) == b""
    disk.write(path, 0, [b"new"])
    assert Path(path).read_bytes() == b"new"
    disk.close()


def test_rename_over_an_open_file_shows_the_new_content(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [b"old"])
    disk.write_atomic(path, b"new")
    assert disk.pread(path, 0, 3) == b"new"
    disk.close()


def test_failed_atomic_write_leaves_the_old_content_and_no_temporary_file(
    path_on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.write_atomic(path, b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        disk.write_atomic(path, b"new")
    assert {p.name: p.read_bytes() for p in path_on_disk.iterdir()} == {"file": b"old"}


def test_written_bytes_are_resident(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [bytes(10_000)])
    assert disk.read_resident(path, 0, 10_000) == bytes(10_000)
    disk.close()


def test_evicted_bytes_are_not_resident(path_on_disk: Path) -> None:
    disk, path = OsDisk(), str(path_on_disk / "file")
    disk.create(path)
    disk.write(path, 0, [bytes(1 << 20)])
    disk.fsync(path)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    cold = disk.read_resident(path, 0, 1 << 20) is None
    disk.pread(path, 0, 1 << 20)
    assert disk.read_resident(path, 0, 1 << 20) == bytes(1 << 20)
    disk.close()
    if not cold:
        pytest.skip("this file system keeps its pages whatever it is told")


def test_missing_file_is_a_file_not_found_error(path_on_disk: Path) -> None:
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.pread(str(path_on_disk / "none"), 0, 1)
    assert not disk.exists(str(path_on_disk / "none"))


def test_file_on_a_read_only_folder_can_still_be_read(
    path_on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_on_disk / "file"
    path.write_bytes(b"bytes")
    real_open = os.open

    def refuse_writing(file: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return real_open(file, flags, mode)

    monkeypatch.setattr(os, "open", refuse_writing)
    disk = OsDisk()
    assert disk.pread(str(path), 0, 5) == b"bytes"
    disk.close()


def test_many_threads_read_the_right_files_through_few_descriptors(path_on_disk: Path) -> None:
    disk = OsDisk(descriptors_max=3)
    paths = [str(path_on_disk / str(name)) for name in range(12)]
    for path in paths:
        disk.create(path)
        disk.write(path, 0, [path.encode()])
    wrong: list[str] = []

    def read(start: int) -> None:
        for step in range(600):
            path = paths[(start + step * 7) % len(paths)]
            if disk.pread(path, 0, 4096) != path.encode():
                wrong.append(path)

    threads = [threading.Thread(target=read, args=(start,), daemon=True) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    disk.close()
    assert open_descriptors(path_on_disk) == 0


def test_full_disk_is_told_from_other_failures() -> None:
    full = storage_error(OSError(errno.ENOSPC, "No space left on device"), "appending to x")
    assert isinstance(full, StorageFullError)
    assert full.retriable
    broken = storage_error(OSError(errno.EIO, "Input/output error"), "appending to x")
    assert type(broken) is StorageError
    assert broken.message == "appending to x: Input/output error"


def test_a_file_that_somebody_put_in_the_place_of_an_open_one_is_the_one_that_is_read(
    path_on_disk: Path,
) -> None:
    disk, path = OsDisk(), path_on_disk / "file"
    path.write_bytes(b"before")
    assert disk.pread(str(path), 0, 10) == b"before"
    (path_on_disk / "other").write_bytes(b"after")
    (path_on_disk / "other").rename(path)
    assert disk.exists(str(path))
    assert disk.pread(str(path), 0, 10) == b"after"
    path.unlink()
    assert not disk.exists(str(path))
    with pytest.raises(FileNotFoundError):
        disk.pread(str(path), 0, 10)
    disk.close()
