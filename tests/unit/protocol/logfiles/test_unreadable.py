"""Log files with a sector that the disk does not read: `verify` and `dump` say so, and go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jetstream_client.cli.exits import Exit
from jetstream_protocol.logfiles.dump import DumpedBatch, dump
from jetstream_protocol.logfiles.files import SegmentFile
from jetstream_protocol.logfiles.findings import Kind
from jetstream_protocol.logfiles.scan import SCAN_BYTES, Read
from jetstream_protocol.logfiles.verify import verify
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from tests.support.command import jetstream
from tests.support.log_batches import batch

VALUE = bytes(SCAN_BYTES * 6 // 10)
LENGTH = batch(VALUE).length
SEGMENTS = [f"{base:020d}.log" for base in (0, 3, 6)]
BAD_SECTOR = 3 * LENGTH - 100
"""In the last batch of a segment, which a scan reads by itself."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream of nine batches in three segments, cleanly closed."""
    disk = OsDisk()
    config = LogConfig(segment_bytes=3 * LENGTH)
    log = CommitLog.open(disk, str(tmp_path / "17"), config, clean=False)
    for offset in range(9):
        log.append(batch(VALUE), leader_epoch=offset // 2, timestamp_us=100 + offset)
    log.close(clean=True)
    disk.close()
    assert [path.name for path in sorted((tmp_path / "17").glob("*.log"))] == SEGMENTS
    return tmp_path / "17"


@pytest.fixture(params=SEGMENTS)
def bad(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The segment with the bad sector."""
    name: str = request.param
    reading = SegmentFile.reading

    @contextmanager
    def with_bad_sector(segment: SegmentFile) -> Iterator[Read]:
        with reading(segment) as read:

            def refusing(position: int, length: int) -> bytes:
                if segment.path.name == name and position <= BAD_SECTOR < position + length:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return read(position, length)

            yield refusing

    monkeypatch.setattr(SegmentFile, "reading", with_bad_sector)
    return name


def test_verify_names_the_segment_and_finds_nothing_wrong_with_the_others(
    folder: Path, bad: str
) -> None:
    found = [(Path(each.file).name, each.kind) for each in verify(folder)]
    assert found == [(bad, Kind.UNREADABLE)]


def test_dump_shows_what_is_before_the_sector_and_the_other_segments(
    folder: Path, bad: str
) -> None:
    shown = [
        (each.position, "batch" if isinstance(each, DumpedBatch) else each.kind)
        for name in SEGMENTS
        for each in dump(folder)
        if Path(each.file).name == name
    ]
    sound = [(0, "batch"), (LENGTH, "batch"), (2 * LENGTH, "batch")]
    expected = dict.fromkeys(SEGMENTS, sound)
    expected[bad] = [*sound[:2], (2 * LENGTH, Kind.UNREADABLE)]
    assert shown == [row for name in SEGMENTS for row in expected[name]]


def test_the_commands_say_so_and_end_with_the_code_of_damage(folder: Path, bad: str) -> None:
    for command in "verify", "dump":
        done = jetstream("log", command, str(folder))
        assert done.returncode == Exit.DAMAGED
        assert f"{bad} " in done.stdout
        assert "unreadable" in done.stdout


def test_a_segment_that_cannot_be_opened_does_not_end_the_examination(folder: Path) -> None:
    path = folder / SEGMENTS[1]
    path.unlink()
    path.mkdir()  # A folder cannot be read as a file.
    (folder / SEGMENTS[2]).write_bytes(b"torn" * 100)
    kinds = {(Path(each.file).name, each.kind) for each in verify(folder)}
    assert {(SEGMENTS[1], Kind.UNREADABLE), (SEGMENTS[2], Kind.CORRUPT_BATCH)} <= kinds
    assert len([each for each in dump(folder) if isinstance(each, DumpedBatch)]) == 3
