"""Cold reads: found out by probing, read in by a thread, never waited for by the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from jetstream_server.net import page_cache
from jetstream_server.net.page_cache import PROBE_BYTES, is_resident, make_resident
from tests.support.loops import eventually, on_loop

SIZE = 16 * PROBE_BYTES


@pytest.fixture
def file(path_on_disk: Path) -> Path:
    """A file whose pages can be dropped from memory: flushed, and on a disk."""
    path = path_on_disk / "file"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return path
        except OSError:
            pytest.skip("this file system does not tell what is in memory")
    pytest.skip("this file system keeps its files in memory")


def drop(fd: int, position: int, length: int) -> None:
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)


def test_a_file_just_written_is_resident(path_on_disk: Path) -> None:
    path = path_on_disk / "file"
    path.write_bytes(bytes(SIZE))
    with path.open("rb") as opened:
        assert is_resident(opened.fileno(), 0, SIZE)


def test_a_file_dropped_from_memory_is_not(file: Path) -> None:
    with file.open("rb") as opened:
        assert not is_resident(opened.fileno(), 0, SIZE)


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 2 * PROBE_BYTES])
def test_a_hole_of_a_probe_s_width_is_found_wherever_it_is(file: Path, at: int) -> None:
    with file.open("rb") as opened:
        fd = opened.fileno()
        opened.read()
        assert is_resident(fd, 0, SIZE)
        drop(fd, at, 2 * PROBE_BYTES)
        assert not is_resident(fd, 0, SIZE)


def test_only_the_range_asked_for_counts(file: Path) -> None:
    with file.open("rb") as opened:
        fd = opened.fileno()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # No reading ahead.
        os.pread(fd, 4096, 0)
        assert is_resident(fd, 0, 4096)
        assert not is_resident(fd, 0, 3 * PROBE_BYTES)


@on_loop
async def test_making_a_range_resident_reads_all_of_it_in(path_on_disk: Path) -> None:
    path = path_on_disk / "file"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as opened:
        fd = opened.fileno()
        os.fsync(fd)
        drop(fd, 0, 0)
        await make_resident(fd, 0, SIZE)
        assert is_resident(fd, 0, SIZE)


@on_loop
async def test_a_range_beyond_the_end_of_the_file_ends(path_on_disk: Path) -> None:
    path = path_on_disk / "file"
    path.write_bytes(b"short")
    with path.open("rb") as opened:
        async with asyncio.timeout(60):
            await make_resident(opened.fileno(), 0, SIZE)


def test_the_loop_goes_on_while_a_cold_range_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow_disk(fd: int, position: int, length: int) -> None:
        begun.set()
        assert goes_on.wait(60), "the loop waited for the disk"

    monkeypatch.setattr(page_cache, "is_resident", lambda *_: False)
    monkeypatch.setattr(page_cache, "_touch", slow_disk)

    @on_loop
    async def scenario() -> None:
        reading = asyncio.create_task(make_resident(0, 0, 1))
        await eventually(begun.is_set)
        goes_on.set()
        await reading

    scenario()
