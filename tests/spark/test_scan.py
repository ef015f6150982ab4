"""Ranges that an executor reads of a log which is not what it was when they were planned. A real
server, and no Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from jetstream_client import ClientConfig
from pyspark_jetstream import scan
from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.ranges import Range
from pyspark_jetstream.scan import Scan
from tests.spark.support import Log


def planned(log: Log, stop: int, stop_epoch: int = -1) -> Range:
    (stream,) = [each for each in log.client.list_streams() if each.name == log.name]
    return Range(stream.id, stream.full_name, 0, stop, stop_epoch=stop_epoch)


def rows(log: Log, part: Range, *, careful: bool) -> Iterator[int]:
    config = ClientConfig((log.grpc,), timeout=6.0)
    for batch in Scan(config, ("offset",), careful).read([part]):
        yield from batch.column("offset").to_pylist()


@pytest.mark.parametrize("stop_epoch", [-1, 0])
def test_a_range_whose_end_was_cut_off_is_a_loss_and_is_not_waited_for(
    log: Log, caplog: pytest.LogCaptureFixture, stop_epoch: int
) -> None:
    log.publish(range(10))
    part = planned(log, 15, stop_epoch)
    with pytest.raises(DataLossError, match="ends before offset 15") as raised:
        list(rows(log, part, careful=True))
    assert "set failOnDataLoss=false" in str(raised.value)
    with caplog.at_level(logging.WARNING, "pyspark_jetstream"):
        assert list(rows(log, part, careful=False)) == list(range(10))
    assert "its log was cut back; going on" in caplog.text


def test_a_stream_that_is_gone_has_no_newer_records(
    log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a view with `refresh`."""
    part = replace(planned(log, 10), start=10)
    config = ClientConfig((log.grpc,), timeout=60.0)
    log.publish(range(20))
    assert [each.stop for each in Scan(config, ("offset",), True).up_to_now([part])] == [20]
    log.client.delete_stream(log.name)
    monkeypatch.setattr(scan, "BEHIND_SECONDS", 0.1)
    with pytest.raises(DataLossError, match=r"is gone .* set failOnDataLoss=false"):
        list(Scan(config, ("offset",), True).up_to_now([part]))
    with caplog.at_level(logging.WARNING, "pyspark_jetstream"):
        assert list(Scan(config, ("offset",), False).up_to_now([part])) == [part]
    assert "is gone" in caplog.text
