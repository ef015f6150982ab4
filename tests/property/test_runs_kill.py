"""The record of a node's runs under kills, failed operations and power failures, in any order.

It is written on the real disk's code (`OsDisk`), and any operation below it may fail or be the
process's last. A node goes on after a failure to note a suspect or that a log was rebuilt, and ends
after any other. Whatever happens, the next start reads the record that was last noted for certain,
or one whose note failed or was interrupted since; never a damaged one, and never an older one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from jetstream_protocol.errors import StorageError
from jetstream_server.log import disk
from jetstream_server.log.disk import OsDisk
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.run_record import RunRecordFile
from tests.simulation.disk import Killed
from tests.support.examples import scaled
from tests.support.memory_os import MemoryOs


class Attack:
    """One node's record. possible: what the next start may read; the first is noted for certain."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.os = MemoryOs()
        self.os.make_durable("/data")
        self.possible = [RunRecord()]
        self.runs: RunRecordFile
        self.boot = 0
        self.count = 0

    def run(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            self._live()
            if self.random.random() < 0.5:
                self.os.lose_power(self.random)
                self.boot += 1
            else:
                self.os.kill()
        self._start()

    def _live(self) -> None:
        at = self.random.randrange(1, 60)
        self.os.draw_fault(self.random, at)
        try:
            self._start()
            for _ in range(self.random.randrange(8)):
                self._step()
            if self.random.random() < 0.5:
                self._note(self.runs.record.of_clean_end(), self.runs.stop)
        except Killed:
            pass
        except StorageError:
            if not self.os.failed:
                raise

    def _start(self) -> None:
        self.count += 1
        session, boot = f"run {self.count}", f"boot {self.boot}"
        self.runs = runs = RunRecordFile(OsDisk(), "/data/runs", "c/0")
        assert not runs.damage
        assert runs.record in self.possible
        self._note(runs.record.of_new_run(session, boot), lambda: runs.begin(session, boot))

    def _step(self) -> None:
        runs, random = self.runs, self.random
        record, stream_id = runs.record, random.randrange(4)
        step = random.randrange(5)
        if step == 0:
            session = record.sessions[-1]
            self._note(record.of_registered_run(session), lambda: runs.registered(session))
        elif step == 1:
            revision = random.randrange(9)
            self._note(record.streams_lost(revision), lambda: runs.streams_lost(revision))
        else:
            is_new = step < 4
            after = record.suspecting(stream_id) if is_new else record.rebuilt(stream_id)
            note = runs.suspect if is_new else runs.rebuilt
            try:
                self._note(after, lambda: note(stream_id))
            except StorageError:
                if not self.os.failed:
                    raise

    def _note(self, record: RunRecord, note: Callable[[], None]) -> None:
        self.possible.append(record)
        note()
        if self.runs.record == record:
            self.possible = [record]


def test_the_next_start_reads_what_was_noted_whatever_fails_dies_or_loses_power() -> None:
    for seed in range(scaled(500)):
        attack = Attack(seed)
        with attack.os.installed(disk):
            try:
                attack.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
