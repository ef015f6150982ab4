"""Nodes that do not know a stream yet, or still know a deleted one: what they say is not final."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import (
    ClientConfig,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
)
from pyspark_jetstream import planning, scan
from pyspark_jetstream.batch import _planned
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.options import read_options
from pyspark_jetstream.ranges import Range
from pyspark_jetstream.scan import Scan
from pyspark_jetstream.stream import JetstreamStreamReader
from tests.support.loops import on_loop
from tests.support.spark_logs import connector_messages
from tests.unit.spark.log_client import LogClient
from tests.unit.spark.test_marks import NO_LIMITS, follower_of

TIMES = 3
"""How often a node that is behind answers, before it has caught up."""


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(scan, "RETRY_SECONDS", 0.0)


@dataclass
class Behind(LogClient):
    """The node that lists streams shows `listed_late` for `late` more answers. The leaders do not
    know the streams `unknown`, for some answers of one method."""

    late: int = 0
    listed_late: dict[int, int] = field(default_factory=dict)
    unknown: tuple[int, ...] = ()
    unknown_to: str = "list_offsets"
    asked_in_vain: int = 0

    async def list_streams(self) -> list[Any]:
        if not self.late:
            return await super().list_streams()
        self.late -= 1
        return await LogClient(self.listed_late, names=self.names).list_streams()

    def _check(self, number: int, method: str) -> None:
        if number in self.unknown and method == self.unknown_to:
            self.asked_in_vain += 1
            if self.asked_in_vain == TIMES:
                self.unknown = ()
            raise StreamNotFoundError(f"no stream {number}")

    async def list_offsets(self, queries: Any) -> list[Any]:
        for number, _ in queries:
            self._check(number, "list_offsets")
        return await super().list_offsets(queries)

    async def fetch(self, number: int, offset: int, **more: Any) -> Any:
        self._check(number, "fetch")
        return await super().fetch(number, offset, **more)


@pytest.mark.parametrize("careful", ["true", "false"])
def test_a_deleted_stream_that_is_still_listed_is_a_loss_and_no_other_error(
    careful: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_loop
    async def scenario() -> None:
        client = Behind({1: 100})
        follower = await follower_of(client, failOnDataLoss=careful)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        monkeypatch.setattr(planning, "BEHIND_SECONDS", 0.0)
        client.ends, client.listed_late, client.late = {}, {1: 100}, TIMES
        if careful == "true":
            with pytest.raises(DataLossError, match="was deleted"):
                await follower.next_offsets(start, NO_LIMITS, None)
        else:
            assert (await follower.next_offsets(start, NO_LIMITS, None)).streams == {}
        assert client.late == 0

    scenario()


def test_a_stream_that_was_read_and_is_not_listed_for_a_moment_keeps_its_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @on_loop
    async def scenario() -> None:
        client = Behind({1: 100, 2: 5}, names={2: "orders_eu"})
        options = {"streams": "", "streamPattern": "orders.*", "failOnDataLoss": "false"}
        follower = await follower_of(client, **options)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        client.ends[1] = 101
        client.listed_late, client.late = {1: 101}, TIMES
        end = await follower.next_offsets(start, NO_LIMITS, None)
        assert {n: mark.offset for n, mark in end.streams.items()} == {1: 101, 2: 5}

    monkeypatch.setattr("pyspark_jetstream.following.LISTING_SECONDS", 0.0)
    scenario()


@pytest.mark.parametrize("careful", ["true", "false"])
@pytest.mark.parametrize("chosen", [("", "orders.*"), ("orders,orders_eu", "")])
def test_a_run_whose_targets_lack_a_stream_that_was_read_keeps_its_mark(
    careful: str, chosen: tuple[str, str]
) -> None:
    @on_loop
    async def scenario() -> None:
        names, (streams, pattern) = {2: "orders_eu"}, chosen
        options = {"streams": streams, "streamPattern": pattern, "failOnDataLoss": careful}
        client = Behind({1: 100, 2: 5}, names=names)
        follower = await follower_of(client, **options)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        client.ends = {1: 101, 2: 6}
        again = await follower_of(client, **options)
        client.listed_late, client.late = {1: 101}, 1
        targets = await again.targets()
        assert targets == {1: 101}
        end = await again.next_offsets(start, NO_LIMITS, targets)
        assert {n: mark.offset for n, mark in end.streams.items()} == {1: 101, 2: 5}

    scenario()


@pytest.mark.parametrize("moment", ["initial", "targets", "next", "epochs"])
def test_a_listed_stream_that_its_leader_does_not_know_yet_is_read(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_loop
    async def scenario() -> None:
        client = Behind({1: 100}, names={2: "orders_eu"})
        follower = await follower_of(client, streams="", streamPattern="orders.*")
        if moment == "initial":
            client.unknown = (1,)
        start = await follower.next_offsets(await follower.initial(), NO_LIMITS, None)
        client.ends[2] = 5
        targets = None
        if moment != "initial":
            client.unknown = (2,)
        if moment == "targets":
            targets = await follower.targets()
            assert targets == {1: 100, 2: 5}
        if moment == "epochs":
            client.unknown_to = "fetch"
        end = await follower.next_offsets(start, NO_LIMITS, targets)
        assert {n: mark.offset for n, mark in end.streams.items()} == {1: 100, 2: 5}
        assert client.unknown == ()

    monkeypatch.setattr("pyspark_jetstream.following.LISTING_SECONDS", 0.0)
    scenario()


@on_loop
async def test_a_batch_read_is_planned_though_the_leader_does_not_know_its_stream_yet() -> None:
    client: Any = Behind({1: 100}, unknown=(1,))
    options = read_options({"servers": "x:1", "streams": "orders"}, "batch")
    (found,) = await planning.settled(lambda: _planned(client, options), options.config.timeout)
    assert (found.stream_id, found.start, found.stop) == (1, 0, 100)


class Executor:
    """The client of an executor whose node does not know the stream for some answers."""

    def __init__(self, times: float) -> None:
        self.times = times
        self.asked = 0

    def consume(self, *_: object, **__: object) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batches(self) -> Iterator[Any]:
        self.asked += 1
        if self.asked <= self.times:
            raise StreamNotFoundError("there is no stream with id 7: was it deleted?")
        yield SimpleNamespace(next_offset=10, last_epoch=1, iter_batches=lambda *_: ["all rows"])


@pytest.mark.parametrize("careful", [True, False])
def test_an_executor_skips_no_range_because_its_node_does_not_know_the_stream_yet(
    careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Executor(TIMES)
    monkeypatch.setattr(scan, "client_for", lambda _: executor)
    monkeypatch.setattr(Scan, "_finished", lambda _, batch: batch)
    found = list(Scan(ClientConfig(), ("offset",), careful).read([Range(7, "new@new.>", 0, 10)]))
    assert found == ["all rows"]


def test_an_executor_does_not_look_for_a_deleted_stream_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "client_for", lambda _: Executor(float("inf")))
    monkeypatch.setattr(scan, "BEHIND_SECONDS", 0.01)
    parts = [Range(7, "new@new.>", 0, 10)]
    assert list(Scan(ClientConfig(), ("offset",), False).read(parts)) == []
    with pytest.raises(DataLossError, match="cannot be read any more"):
        list(Scan(ClientConfig(), ("offset",), True).read(parts))


@pytest.mark.parametrize("careful", [True, False])
def test_an_end_that_is_not_committed_yet_is_no_loss(
    careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one of which no leader says anything."""

    class Silent(Executor):
        def batches(self) -> Iterator[Any]:
            raise UnavailableError("no record of 'new' for 30 s")

        def fetch(self, *_: object, **__: object) -> Any:
            self.asked += 1
            if self.asked == 2:
                raise UnavailableError("nobody leads")
            return []

    executor = Silent(0)
    monkeypatch.setattr(scan, "client_for", lambda _: executor)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="no record of 'new'"):
            list(Scan(ClientConfig(), ("offset",), careful).read([Range(7, "new@new.>", 0, 10)]))
    assert executor.asked == 2


@pytest.mark.parametrize("times", [0, 1])
def test_a_range_whose_end_was_cut_off_is_read_up_to_what_is_left(
    times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class CutBack(Executor):
        def consume(self, *asked: Any, **more: Any) -> Any:
            self.position, self.stop = asked[1], more["stop"]
            return self

        def batches(self) -> Iterator[Any]:
            self.asked += 1
            if self.asked <= self.times:
                raise UnavailableError("nobody leads")
            stop = min(self.stop, 6)
            rows = [f"{self.position} to {stop}"]
            yield SimpleNamespace(next_offset=stop, last_epoch=1, iter_batches=lambda *_: rows)
            if stop < self.stop:
                raise UnavailableError("no record of 'new' for 30 s")

        def fetch(self, _: int, offset: int, **__: object) -> Any:
            if offset > 6:
                raise OffsetOutOfRangeError("offset 10 is beyond the end", 0, 6)
            return []

        def offset_at(self, *_: object) -> int:
            return 6

    monkeypatch.setattr(Scan, "_finished", lambda _, batch: batch)
    cut_back = CutBack(times)
    monkeypatch.setattr(scan, "client_for", lambda _: cut_back)
    parts = [Range(7, "new@new.>", 0, 10, stop_epoch=3)]
    assert list(Scan(ClientConfig(), ("offset",), False).read(parts)) == ["0 to 6"]
    assert len([said for said in caplog.messages if "its log was cut back" in said]) == 1


@pytest.mark.parametrize("careful", ["true", "false"])
def test_the_start_of_a_deleted_stream_in_a_repeated_batch_is_not_needed(
    careful: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PySpark 4.2 the start is unknown, if the stream was new in the batch."""
    monkeypatch.setattr(planning, "BEHIND_SECONDS", 0.0)
    options = {"servers": "x:1", "streams": "orders,new", "failOnDataLoss": careful}
    reader = JetstreamStreamReader(read_options(options, "stream"))
    with asyncio.Runner() as runner:
        reader._runner = runner
        reader._follower = runner.run(follower_of(LogClient({1: 100}), failOnDataLoss=careful))
        begin = Offsets("c", {1: Mark("orders@orders.>", 90)}, {})
        end = Offsets("c", {1: Mark("orders@orders.>", 100), 2: Mark("new@new.>", 5)}, {})
        if careful == "true":
            with pytest.raises(StreamNotFoundError):
                reader.partitions(begin.to_json(), end.to_json())
        else:
            (task,) = reader.partitions(begin.to_json(), end.to_json())
            assert [(part.stream_id, part.start, part.stop) for part in task.value] == [
                (1, 90, 100)
            ]


@on_loop
async def test_a_stream_that_the_options_do_not_name_any_more_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = LogClient({1: 9, 2: 9}, names={1: "orders", 2: "clicks"})
    follower = await follower_of(client, streams="orders")
    start = Offsets("c", {1: Mark("orders@orders.>", 9, 7), 2: Mark("clicks@clicks.>", 5, 7)})
    await follower.next_offsets(start, NO_LIMITS, {})
    said = [each for each in connector_messages(caplog) if "left out" in each]
    assert ["clicks@clicks.> up to offset 5" in each for each in said] == [True]


@on_loop
async def test_a_subject_that_no_stream_can_have_brings_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client: Any = LogClient({1: 9}, names={1: "orders"})
    given = {"streams": "orders", "subject": "orders.x,y"}
    await _planned(client, read_options(given, "batch"))
    said = [each for each in connector_messages(caplog) if "option subject" in each]
    assert ["listens on 'y'" in each for each in said] == [True]
