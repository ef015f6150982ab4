"""The same claims where nothing is simulated: a full and a read-only file system, and kill -9.

The file systems are mounted in a mount namespace of a child process, so that nothing is left
behind; where that is not permitted the tests are skipped.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from tests.support.log_batches import batch, read_all, values_of

ROOT = Path(__file__).parents[3]
PRELUDE = """
    import subprocess, sys
    from jetstream_protocol.errors import StorageError, StorageFullError
    from jetstream_server.log.commit_log import CommitLog, LogConfig
    from jetstream_server.log.disk import OsDisk
    from tests.support.log_batches import batch, values_of
    disk, path = OsDisk(), sys.argv[1]
    config = LogConfig(segment_bytes=40_000)
    def append(log):
        log.append(batch(b"%06d" % log.log_end_offset, b"x" * 3000), leader_epoch=1, timestamp_us=0)
    def marks(log):
        return [value for value in values_of(log) if len(value) == 6]
"""


def start(code: str, folder: Path, *, command: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    source = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    return subprocess.Popen(
        [*command, sys.executable, "-c", source, str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def run_mounted(code: str, folder: Path) -> None:
    """Run `code` in a namespace of its own, with a file system of 256 KiB on `folder`."""
    unshare = shutil.which("unshare")
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    mount = 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"'
    process = start(code, folder, command=("unshare", "-m", "sh", "-c", mount, str(folder)))
    with process:
        assert process.wait(timeout=60) == 0


def test_full_file_system_fails_appends_until_there_is_room(path_on_disk: Path) -> None:
    code = """
        filler = path + "/filler"
        open(filler, "wb").write(bytes(100_000))
        log = CommitLog.open(disk, path + "/17", config, clean=False)
        full = None
        while full is None:
            try:
                append(log)
            except StorageFullError as error:
                full = error
        count = log.log_end_offset // 2
        assert 20 < count < 60, count
        assert log.offline_reason == ""
        for _ in range(3):
            try:
                append(log)
            except StorageFullError:
                continue
            raise AssertionError("there is no room")
        assert len(marks(log)) == count
        again = CommitLog.open(disk, path + "/17", config, clean=False)
        assert (again.offline_reason, len(marks(again))) == ("", count)
        import os
        os.unlink(filler)
        for _ in range(10):
            append(log)
        log.flush()
        again = CommitLog.open(disk, path + "/17", config, clean=False)
        assert marks(again) == [b"%06d" % (2 * i) for i in range(count + 10)]
    """
    run_mounted(code, path_on_disk)


def test_read_only_file_system_is_a_clear_error_at_open(path_on_disk: Path) -> None:
    code = """
        from jetstream_server.log.data_folder import DataFolder
        log = CommitLog.open(disk, path + "/17", config, clean=False)
        append(log)
        log.close(clean=True)
        disk.close()
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        for clean in (True, False):
            try:
                CommitLog.open(disk, path + "/17", config, clean=clean)
            except StorageError as error:
                assert "/17 is read-only" in str(error), error
            else:
                raise AssertionError("it opened")
        try:
            DataFolder.open(disk, path, node_id=1)
        except StorageError as error:
            assert "cannot be used: Read-only file system" in str(error), error
        else:
            raise AssertionError("it opened")
    """
    run_mounted(code, path_on_disk)


@pytest.mark.parametrize("milliseconds", [30, 110, 250])
def test_killed_process_loses_nothing_it_appended(path_on_disk: Path, milliseconds: int) -> None:
    code = """
        log = CommitLog.open(disk, path + "/17", config, clean=False)
        while True:
            append(log)
            if log.log_end_offset % 64 == 0:
                log.flush()
            if log.log_end_offset % 500 == 0:
                advance_log_start(log, log.log_end_offset - 200)
            print(log.log_end_offset, flush=True)
    """
    with start(code, path_on_disk) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().splitlines()
    appended = max((int(line) for line in lines), default=2)
    disk = OsDisk()
    log = CommitLog.open(disk, str(path_on_disk / "17"), LogConfig(40_000), clean=False)
    assert log.offline_reason == ""
    # The last append may have been made and not yet told.
    assert log.log_end_offset in (appended, appended + 2)
    found = read_all(log)
    assert found[-1].header.next_offset == log.log_end_offset
    assert [b.values()[0] for b in found] == [b"%06d" % b.header.base_offset for b in found]
    disk.close()


@pytest.mark.parametrize("loss", ["folder", "last segment", "all segments"])
def test_a_log_whose_files_were_removed_under_it_is_begun_anew_on_files_that_are_there(
    path_on_disk: Path, loss: str
) -> None:
    """Descriptors of files that are gone are still open: nothing may be written there any more."""
    disk, folder = OsDisk(), path_on_disk / "17"
    log = CommitLog.open(disk, str(folder), LogConfig(segment_bytes=300), clean=False)
    for number in range(10):
        log.append(batch(b"%d" % number), leader_epoch=1, timestamp_us=number)
    log.flush()
    if loss == "folder":
        shutil.rmtree(folder)
    else:
        segments = sorted(folder.glob("*.log"))
        for segment in segments[-1:] if loss == "last segment" else segments:
            segment.unlink()
    log.health.fail("the disk lost it")
    log.reset(0)
    assert log.offline_reason == ""
    for number in range(20):
        log.append(batch(b"new %d" % number), leader_epoch=2, timestamp_us=number)
    log.flush()
    assert sum(path.stat().st_size for path in folder.glob("*.log")) == log.size_bytes
    log.close(clean=True)
    again = CommitLog.open(disk, str(folder), clean=True)
    assert (again.offline_reason, again.log_end_offset) == ("", 20)
    assert values_of(again)[-1] == b"new 19"
    disk.close()


def test_where_descriptors_run_out_files_that_were_not_used_for_longest_are_closed(
    path_on_disk: Path,
) -> None:
    code = """
        import os, resource
        logs = [CommitLog.open(disk, f"{path}/{n}", config, clean=False) for n in range(40)]
        files = len(os.listdir("/proc/self/fd"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (files + 10, hard))
        for _ in range(3):
            for log in logs:
                append(log)
        assert all(log.log_end_offset == 6 for log in logs)
        assert len(os.listdir("/proc/self/fd")) <= files + 10
    """
    with start(code, path_on_disk) as process:
        assert process.wait(60) == 0


def test_what_cannot_be_looked_for_is_not_said_to_be_missing(path_on_disk: Path) -> None:
    disk = OsDisk()
    (path_on_disk / "loop").symlink_to("loop")
    (path_on_disk / "file").touch()
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        disk.exists(str(path_on_disk / "loop"))
    assert not disk.exists(str(path_on_disk / "none"))
    assert not disk.exists(str(path_on_disk / "file" / "none"))
    log = CommitLog.open(disk, str(path_on_disk / "17"), clean=False)
    log.append(batch(b"a"), leader_epoch=1, timestamp_us=0)
    log.close(clean=True)
    (path_on_disk / "17").rename(path_on_disk / "elsewhere")
    (path_on_disk / "17").symlink_to("17")
    with pytest.raises(StorageError, match=os.strerror(errno.ELOOP)):
        CommitLog.open(disk, str(path_on_disk / "17"), clean=False)
    disk.close()
