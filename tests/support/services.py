"""What a replica shares with the others of its node, for tests of one replica without a manager."""

from __future__ import annotations

from typing import cast

from jetstream_server.log.config import LogConfig
from jetstream_server.log.flusher import Flusher
from jetstream_server.replication.failures import Failures
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.replication.services import Services
from tests.support.clocks import FakeClocks
from tests.support.log_disk import MemoryDisk
from tests.support.node import Flushes


def services(clocks: FakeClocks | None = None) -> Services:
    """Flushes wait in `flusher.waiting`; who needs one flushes the log itself."""
    clocks = FakeClocks() if clocks is None else clocks
    runs = RunRecordFile(MemoryDisk(), "/runs", "cluster/0")
    return Services(
        flusher=cast(Flusher, Flushes()),
        wall_clock=clocks.wall,
        monotonic_clock=clocks.monotonic,
        log_config=LogConfig(),
        failures=Failures(runs, clocks.monotonic, Replica.failed, lambda report: report()),
        call_later=lambda seconds, function: None,
    )
