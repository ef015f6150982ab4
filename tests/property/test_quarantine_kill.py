"""Setting streams aside and taking them back under kills and failed operations, in any order.

A stream comes to a node, goes and comes again, while the node runs and while it is down; and the
metadata loses it for a while. Any operation on the folders may fail or be the process's last, and
now and then the disk loses the stream's folder. A log is made of two things here: the folder and
the offsets file beside it, each with the number of the copy to which it belongs. Whenever the node
would open the log, it finds the copy that it used last, or two parts that do not belong together,
which recovery notices: never an older copy that looks whole, nor one that was never there.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId, WallUs
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.changes import StreamChanged
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication.unknown_streams import UnknownStreams
from tests.simulation.disk import Killed
from tests.support.examples import scaled
from tests.unit.metadata.cluster import Cluster

CHANGES = ("rename", "fsync_directory", "remove", "make_directory")


class BreakingDisk(OsDisk):
    """fail_in, die_in: changes until one fails, or the process dies before it; 0: none does."""

    fail_in = die_in = 0

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            self.fail_in -= 1
            self.die_in -= 1
            if self.die_in == 0:
                raise Killed
            if self.fail_in == 0:
                return _refuse
        return super().__getattribute__(name)


def _refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class Attack:
    def __init__(self, seed: int, path: Path) -> None:
        self.random = Random(seed)
        self.path = path
        self.here = Cluster(nodes=2).create(replicas=(0, 1))
        self.elsewhere = replace(self.here, replicas=(NodeId(1),))
        self.known = self.here
        self.streams = {self.here.id: self.here}
        """What the metadata has."""
        self.wall_us = self.here.created_at_us
        self.copies = 0
        self.used = 0
        """The copy that was used last while the stream was here; 0: it has been elsewhere since."""
        self.opened = 0

    def run(self) -> None:
        for _ in range(self.random.randint(2, 8)):
            if self.random.random() < 0.4:
                self._move()
            if self.random.random() < 0.1 and self._log.exists():
                shutil.rmtree(self._log)
            if self.random.random() < 0.3:
                self.streams.clear()
                self._live()
                self.streams[self.here.id] = self.known
            self._live()

    @property
    def registry(self) -> Registry:
        tables = SimpleNamespace(
            streams=self.streams,
            streams_of=lambda node: [each for each in self.streams.values() if node in each.copies],
            deleted=(),
        )
        return cast(Registry, tables)

    @property
    def _is_here(self) -> bool:
        return self.streams.get(self.here.id) is self.here

    @property
    def _log(self) -> Path:
        return self.path / "streams" / str(self.here.id)

    @property
    def _offsets(self) -> Path:
        return self._log.with_name(f"{self.here.id}.offsets")

    def _move(self) -> None:
        self.known = self.elsewhere if self._is_here else self.here
        self.streams[self.here.id] = self.known
        if not self._is_here:
            self.used = 0

    def _now(self) -> WallUs:
        self.wall_us = WallUs(self.wall_us + 1)
        return self.wall_us

    def _live(self) -> None:
        random = self.random
        disk = BreakingDisk()
        folder = DataFolder.open(disk, str(self.path), node_id=0)
        disk.fail_in = random.choice((0, random.randrange(1, 12)))
        disk.die_in = random.choice((0, random.randrange(1, 12)))
        try:
            unknown = UnknownStreams(folder, self.registry, self._now, lost_through=0)
            unknown.sort_out("")
            self._open(folder)
            for _ in range(random.randrange(3) if self.streams else 0):
                was_here = self._is_here
                self._move()
                if was_here:
                    unknown.apply(StreamChanged(self.here, self.elsewhere))
                    self._delete()
                else:
                    unknown.apply(StreamChanged(self.elsewhere, self.here))
                    self._open(folder)
        except Killed:
            pass
        finally:
            folder.close()
            disk.close()

    def _open(self, folder: DataFolder) -> None:
        """As a replica's log is opened. One whose parts do not fit is begun anew."""
        if not self._is_here or self.here.id in folder.unsettled:
            return
        copy = int((self._log / "copy").read_text()) if self._log.exists() else 0
        beside = int(self._offsets.read_text()) if self._offsets.exists() else 0
        if self.used and copy == beside != 0:
            assert copy == self.used
        if self.used and copy == beside == 0:
            raise AssertionError("a log that was used looks as if there had been none")
        self.opened += 1
        if not copy or copy != beside:
            self.copies += 1
            self._log.mkdir(exist_ok=True)
            (self._log / "copy").write_text(str(self.copies))
            self._offsets.write_text(str(self.copies))
            copy = self.copies
        self.used = copy

    def _delete(self) -> None:
        """As a replica's log is deleted: the offsets first. It may fail before, or half-way."""
        done = self.random.randrange(3)
        if done > 0:
            self._offsets.unlink(missing_ok=True)
        if done > 1 and self._log.exists():
            shutil.rmtree(self._log)


def test_an_older_copy_never_passes_for_the_one_that_was_used_last() -> None:
    opened = 0
    for seed in range(scaled(100)):
        with tempfile.TemporaryDirectory() as directory:
            attack = Attack(seed, Path(directory))
            try:
                attack.run()
            except (AssertionError, StorageError, OSError, ValueError) as error:
                raise AssertionError(f"seed {seed}") from error
            opened += attack.opened
    assert opened > 0
