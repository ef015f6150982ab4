"""A thread that loads or rebuilds the index of a segment while the loop cuts that segment.

Its index is that of before the cut: other batches may begin by now where its entries say.

Who does that: retention, half a second after a clean start, when followers that have diverged are
cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jetstream_protocol.logfiles import index_file
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.log_batches import batch, read_all, stamped
from tests.support.log_disk import MemoryDisk

LENGTH = batch(b"00").length
CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=LENGTH, segment_age_us=1 << 50)
INDEX = f"/17/{0:020}.index"


class Disk(MemoryDisk):
    """Something happens `meanwhile`: once a thread has read a part of the segment."""

    meanwhile: Callable[[], object] | None = None

    def pread(self, path: str, position: int, length: int) -> bytes:
        data = super().pread(path, position, length)
        self.now()
        return data

    def now(self) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """`meanwhile` is also when a thread has read the index, and has found it good."""
    disk, decode = Disk(), index_file.decode

    def decoded(*args: Any) -> Any:
        entries = decode(*args)
        disk.now()
        return entries

    monkeypatch.setattr(index_file, "decode", decoded)
    return disk


@pytest.mark.parametrize("has_file", [True, False], ids=["loaded", "rebuilt"])
@pytest.mark.parametrize("cut_to", [5, 0])
def test_an_index_of_before_a_cut_is_not_used(cutting: Disk, has_file: bool, cut_to: int) -> None:
    log = CommitLog.open(cutting, "/17", CONFIG, clean=False, boot_id="b")
    for n in range(20):
        log.append(batch(b"%02d" % n), leader_epoch=1, timestamp_us=n)
        log.note_end()
    log.close(clean=True)
    if not has_file:
        cutting.remove(INDEX)

    log = CommitLog.open(cutting, "/17", CONFIG, clean=True, boot_id="b")
    cutting.meanwhile = lambda: log.truncate(cut_to)  # The loop.
    log.seal_due_us()  # The thread.
    assert cutting.meanwhile is None
    assert log.log_end_offset == cut_to
    for n in range(cut_to, 15):
        data = stamped(n, b"another, longer one %02d" % n, epoch=2, timestamp=100 + n)
        log.append_replica(data)
        log.note_end()
    log.flush()
    for offset in range(15):
        slice_ = log.read(offset, LENGTH * 3, 12)
        if slice_ is not None:
            log.pread(slice_)
    assert len(read_all(log)) == 15
    assert log.offset_for_timestamp(110) == (10, 2)
