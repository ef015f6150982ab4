"""The record of a node's runs on a real disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.run_record import RunRecordFile
from tests.support.log_disk import FaultyDisk

BOOT = "a boot"


def open_book(disk: Disk, tmp_path: Path, owner: str = "cluster/0") -> RunRecordFile:
    return RunRecordFile(disk, str(tmp_path / "runs"), owner)


def test_a_run_is_clean_only_if_it_said_so_and_only_once(os_disk: OsDisk, tmp_path: Path) -> None:
    book = open_book(os_disk, tmp_path)
    assert not book.record.clean
    book.begin("first", BOOT)
    assert not open_book(os_disk, tmp_path).record.clean
    book.registered("first")
    book.stop()
    book = open_book(os_disk, tmp_path)
    assert book.record.clean
    book.begin("second", BOOT)
    assert not open_book(os_disk, tmp_path).record.clean
    assert book.record.sessions == ("first", "second")


def test_another_boot_after_an_unclean_run_is_remembered_until_it_is_registered(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    open_book(os_disk, tmp_path).begin("first", BOOT)
    open_book(os_disk, tmp_path).begin("second", "another boot")
    book = open_book(os_disk, tmp_path)
    assert book.record.power_lost
    book.registered("second")
    assert not open_book(os_disk, tmp_path).record.power_lost


def test_a_suspected_stream_is_remembered(os_disk: OsDisk, tmp_path: Path) -> None:
    open_book(os_disk, tmp_path).suspect(7)
    assert open_book(os_disk, tmp_path).record.suspects == (7,)


def test_a_stop_that_cannot_be_written_is_logged_and_taken_for_a_kill(
    os_disk: OsDisk, tmp_path: Path
) -> None:
    full = FaultyDisk(os_disk)
    book = open_book(full, tmp_path)
    book.begin("first", BOOT)
    full.fail("write_atomic", "runs", errno.ENOSPC)
    with capture_logs() as logs:
        book.stop()
    assert [each["event"] for each in logs] == ["stop_not_noted"]
    assert "No space left on device" in logs[0]["reason"]
    assert not open_book(os_disk, tmp_path).record.clean


@pytest.mark.parametrize("content", [b"", b"JSLC 1 00000000\n{}\n", b"\0" * 100])
def test_a_damaged_record_vouches_for_nothing(
    os_disk: OsDisk, tmp_path: Path, content: bytes
) -> None:
    book = open_book(os_disk, tmp_path)
    book.begin("first", BOOT)
    book.stop()
    (tmp_path / "runs").write_bytes(content)
    assert open_book(os_disk, tmp_path).record == RunRecord()


def test_a_record_of_another_node_vouches_for_nothing(os_disk: OsDisk, tmp_path: Path) -> None:
    book = open_book(os_disk, tmp_path)
    book.begin("first", BOOT)
    book.stop()
    assert open_book(os_disk, tmp_path, "cluster/1").record == RunRecord()
