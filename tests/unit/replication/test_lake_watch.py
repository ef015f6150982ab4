"""Who reads the lake for a node learns what its replicas need of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from jetstream_server.metadata.state.streams import LakeMark
from jetstream_server.replication.drivers.lake_watch import LakeWatch


def test_the_process_starts_with_the_first_records_that_only_the_lake_has() -> None:
    reader = Mock(spec=["begin", "drop"])
    watch = LakeWatch(reader)
    log = SimpleNamespace(log_start_offset=0)
    stream = SimpleNamespace(id=7, lake=LakeMark())
    replica: Any = SimpleNamespace(stream=stream, log=log, closed=False)
    watch.role_changed(replica)
    stream.lake = LakeMark(version=1, start=0, end=10)
    watch.role_changed(replica)
    stream.lake = LakeMark(version=2, start=5, end=10)
    log.log_start_offset = 5
    watch.log_start_rose(replica)
    assert not reader.begin.called, "all of it is on the disk"
    reader.drop.assert_called_with(7, 5)
    log.log_start_offset = 6
    watch.log_start_rose(replica)
    watch.role_changed(replica)  # As after a start.
    assert reader.begin.call_count == 2
    replica.closed = True
    watch.role_changed(replica)
    assert reader.begin.call_count == 2
    reader.drop.assert_called_with(7)
