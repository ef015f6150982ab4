"""A segment is marked as bad while retention's thread forgets the marks of segments it removes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.damage import view
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.inspection import BadRange
from tests.support.log_batches import batch

LENGTH = batch(b"0000").length
CONFIG = LogConfig(segment_bytes=4 * LENGTH)


class Watched(BadRange):
    """A range that is looked at: something happens then, once."""

    meanwhile: Callable[[], object] | None = None

    def __getattribute__(self, name: str) -> Any:
        meanwhile = Watched.meanwhile
        if name == "start_offset" and meanwhile is not None:
            Watched.meanwhile = None
            meanwhile()
        return super().__getattribute__(name)


def test_a_mark_made_while_others_are_forgotten_stays(tmp_path: Path) -> None:
    disk, folder = OsDisk(), str(tmp_path / "17")
    log = CommitLog.open(disk, folder, CONFIG, clean=False)
    for n in range(16):
        log.append(batch(b"%04d" % n), leader_epoch=1, timestamp_us=0)
    log.flush()
    removed, fresh, known, _ = log.damage.segments()

    def bad_in(base_offset: int, kind: type[BadRange] = BadRange) -> BadRange:
        return kind(base_offset, base_offset + 1, base_offset + 2, LENGTH, 2 * LENGTH, "rot")

    log.damage.mark(removed, view(removed), [bad_in(0)])
    log.damage.mark(known, view(known), [bad_in(8, Watched)])
    log.damage.save()

    loop = threading.Thread(
        target=lambda: log.damage.mark(fresh, view(fresh), [bad_in(4)]), daemon=True
    )

    def meanwhile() -> None:
        loop.start()
        loop.join(0.5)  # It may have to wait.

    Watched.meanwhile = meanwhile
    log.begin_advance(4)
    log.finish_advance()
    loop.join(60)
    assert not loop.is_alive()
    assert [bad.base_offset for bad in log.damage.ranges] == [4, 8]
    assert [len(segment.bad) for segment in (fresh, known)] == [1, 1]
    log.damage.save()
    again = CommitLog.open(disk, folder, CONFIG, clean=False)
    assert [bad.base_offset for bad in again.damage.ranges] == [4, 8]
    disk.close()
