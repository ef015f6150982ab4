"""One stream's ingest on a real log: who is answered, when, and who waits for how long."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jetstream_protocol import batch as batches
from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import NotEnoughReplicasError, UnknownOutcomeError
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.log.disk import OsDisk
from tests.support.log_disk import FaultyDisk
from tests.support.loops import on_loop
from tests.unit.ingest.streams import INBOX, stream_on

UNAVAILABLE, STORAGE_FULL, STORAGE_ERROR = 10008, 10047, 10077
TOO_LARGE, UNKNOWN, NOT_ENOUGH, WRONG_STREAM = 10054, 20013, 20012, 10060


@on_loop
async def test_level_all_is_answered_once_committed_and_not_before(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX), (b"2", b""), (b"3", b"_INBOX.b"))
    assert stream.written == []
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes > 0) == (2, True)
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 1), ("_INBOX.b", 3)]
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)
    assert stream.replica.counters.acks_sent == 2


@on_loop
async def test_deliveries_of_one_commit_are_answered_in_order(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    for index in range(3):
        stream.deliver((b"%d" % index, b"_INBOX.%d" % index))
    assert stream.ingest.pending_count == 3
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.0", 1), ("_INBOX.1", 2), ("_INBOX.2", 3)]
    assert stream.ingest.pending_count == 0


@on_loop
async def test_without_group_flush_the_answer_comes_with_the_append(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, flush="interval")
    stream.deliver((b"1", INBOX))
    assert stream.acked() == [("_INBOX.a", 1)]


@on_loop
async def test_level_leader_is_answered_at_once_and_level_none_never(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    levels = [b"leader", b"none", b"all"]
    blocks = [b"NATS/1.0\r\nJetstream-Ack: %b\r\n\r\n" % level for level in levels]
    stream.deliver(*[(level, b"_INBOX." + level) for level in levels], headers=blocks)
    assert stream.acked() == [("_INBOX.leader", 1)]
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.all", 3)]
    assert stream.values() == levels


@pytest.mark.parametrize("acks", ["off", "envelope"])
def test_a_stream_that_does_not_acknowledge_answers_nothing_and_holds_nothing(
    tmp_path: Path, acks: str
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path, acks=acks)
        refused = b"NATS/1.0\r\nNats-Expected-Stream: other\r\n\r\n"
        stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[b"", refused])
        stream.node.flushes.run()
        assert stream.written == []
        assert stream.values() == [b"1"]
        assert (stream.ingest.pending_count, stream.bounds.pending_acks) == (0, 0)

    scenario()


@on_loop
async def test_replies_that_may_not_be_answered_are_counted_and_stored(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", b"orders.x"), (b"2", INBOX), (b"3", b"$SYS.x"))
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 2)]
    assert stream.values() == [b"1", b"2", b"3"]
    assert stream.replica.counters.acks_suppressed == 2


@on_loop
async def test_beyond_the_bound_of_acks_askers_are_refused_and_others_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, bounds=Bounds(2, 1 << 20))
    stream.deliver((b"1", INBOX), (b"2", INBOX))
    stream.deliver((b"3", b"_INBOX.b"), (b"4", b""), (b"5", b""))
    assert stream.nacked() == [("_INBOX.b", UNAVAILABLE)]
    assert stream.values() == [b"1", b"2", b"4", b"5"]
    assert stream.replica.counters.nacks_sent == 1
    stream.node.flushes.run()
    assert len(stream.acked()) == 2
    stream.deliver((b"6", INBOX))
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 5)]


@on_loop
async def test_beyond_the_bound_of_bytes_askers_are_refused_and_others_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, bounds=Bounds(1000, 10_000))
    stream.deliver((bytes(20_000), INBOX))
    stream.deliver((b"asks", INBOX), (b"does not", b""))
    assert stream.nacked() == [("_INBOX.a", UNAVAILABLE)]
    assert stream.values() == [bytes(20_000), b"does not"]
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 1)]
    assert stream.bounds.uncommitted_bytes == 0


@on_loop
async def test_the_bounds_are_shared_by_all_streams(tmp_path: Path) -> None:
    bounds = Bounds(1, 1 << 20)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = stream_on(tmp_path / "one", bounds=bounds)
    two = stream_on(tmp_path / "two", bounds=bounds)
    one.deliver((b"1", INBOX))
    two.deliver((b"1", INBOX))
    assert two.nacked() == [("_INBOX.a", UNAVAILABLE)]
    one.node.flushes.run()
    two.deliver((b"2", INBOX))
    two.node.flushes.run()
    assert two.acked() == [("_INBOX.a", 1)]


@on_loop
async def test_beyond_the_bound_keys_headers_and_levels_stay_with_their_messages(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, bounds=Bounds(0, 1 << 20))
    key = b"NATS/1.0\r\nJetstream-Key: k\r\n\r\n"
    early = b"NATS/1.0\r\nJetstream-Ack: leader\r\nX: y\r\n\r\n"
    stream.deliver(
        (b"refused", b"_INBOX.r"), (b"keyed", b""), (b"plain", b""), (b"early", b"_INBOX.e"),
        headers=[key, key, b"", early],
    )  # fmt: skip
    assert [(reply, "error" in payload) for reply, payload in stream.answers()] == [
        ("_INBOX.r", True),
        ("_INBOX.e", False),
    ]
    stream.node.flushes.run()
    log = stream.replica.log
    found = log.read(0, 1 << 30, log.log_end_offset)
    assert found is not None
    (batch,) = iterate(log.pread(found))
    assert batch.values() == [b"keyed", b"plain", b"early"]
    assert batch.keys() == [b"k", None, None]
    assert batch.header_blocks() == [key, b"", early]
    assert batch.subjects() == [b"orders.1", b"orders.2", b"orders.3"]


@on_loop
async def test_below_the_minimum_of_replicas_askers_are_refused_and_others_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    leadership = stream.replica.leadership
    assert leadership is not None

    class Alone:
        """The leadership, with too few replicas in sync."""

        can_commit = False

        def check_can_append(self) -> None:
            raise NotEnoughReplicasError("1 replica is in sync, 2 are needed")

        def __getattr__(self, name: str) -> object:
            return getattr(leadership, name)

    stream.replica.leadership = Alone()  # type: ignore[assignment]
    stream.deliver((b"asks", INBOX), (b"does not", b""))
    assert stream.nacked() == [("_INBOX.a", NOT_ENOUGH)]
    assert stream.values() == [b"does not"]


@on_loop
async def test_a_refused_message_leaves_the_rest_of_its_delivery_in_place(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    wrong = b"NATS/1.0\r\nNats-Expected-Stream: other\r\n\r\n"
    stream.deliver(
        (b"1", b"_INBOX.1"), (b"2", b"_INBOX.2"), (b"3", b"_INBOX.3"), headers=[b"", wrong, b""]
    )
    assert stream.nacked() == [("_INBOX.2", WRONG_STREAM)]
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.1", 1), ("_INBOX.3", 2)]
    assert stream.values() == [b"1", b"3"]


@on_loop
async def test_a_full_disk_is_answered_and_leaves_nothing_pending(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    stream = stream_on(tmp_path, disk=disk)
    disk.write_room = 100
    early = b"NATS/1.0\r\nJetstream-Ack: leader\r\n\r\n"
    stream.deliver((bytes(1000), INBOX), (b"early", b"_INBOX.e"), headers=[b"", early])
    assert stream.nacked() == [("_INBOX.a", STORAGE_FULL), ("_INBOX.e", STORAGE_FULL)]
    assert (stream.ingest.pending_count, stream.bounds.uncommitted_bytes) == (0, 0)
    disk.heal()
    stream.deliver((b"again", INBOX))
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 1)]


@on_loop
async def test_a_failed_disk_is_answered(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    stream = stream_on(tmp_path, disk=disk)
    disk.fail("write", ".log", errno.EIO)
    stream.deliver((b"1", INBOX))
    stream.deliver((b"2", INBOX))
    assert stream.nacked() == [("_INBOX.a", STORAGE_ERROR)] * 2


@on_loop
async def test_failing_answers_what_waits_as_unknown_and_frees_its_room(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", b"_INBOX.1"), (b"2", b""))
    stream.deliver((b"3", b"_INBOX.3"))
    stream.ingest.fail(UnknownOutcomeError("nobody knows"))
    assert stream.nacked() == [("_INBOX.1", UNKNOWN), ("_INBOX.3", UNKNOWN)]
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)
    stream.node.flushes.run()
    assert stream.written == [], "answered twice"


@on_loop
async def test_dropping_is_silent_and_frees_the_room(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX))
    stream.ingest.drop()
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)
    stream.node.flushes.run()
    assert stream.written == []


@on_loop
async def test_a_delivery_too_large_for_a_batch_becomes_several(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_BYTES_MAX", 4096)
        stream = stream_on(tmp_path)
        messages = [(b"%d" % index + bytes(900), b"_INBOX.%d" % index) for index in range(20)]
        stream.deliver(*messages)
        stream.node.flushes.run()
        assert stream.acked() == [(f"_INBOX.{index}", index + 1) for index in range(20)]
        assert stream.values() == [value for value, _ in messages]
        log = stream.replica.log
        found = log.read(0, 1 << 30, log.log_end_offset)
        assert found is not None
        assert all(each.header.length <= 4096 for each in iterate(log.pread(found)))


@on_loop
async def test_a_delivery_of_too_many_records_becomes_several(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "RECORDS_MAX", 8)
        stream = stream_on(tmp_path)
        stream.deliver(*[(b"%d" % index, INBOX) for index in range(30)])
        stream.node.flushes.run()
        assert [sequence for _, sequence in stream.acked()] == list(range(1, 31))
        log = stream.replica.log
        found = log.read(0, 1 << 30, log.log_end_offset)
        assert found is not None
        assert all(len(each) <= 8 for each in iterate(log.pread(found)))


@on_loop
async def test_a_message_too_large_for_a_batch_is_refused_and_its_neighbours_stored(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_BYTES_MAX", 4096)
        stream = stream_on(tmp_path)
        early = b"NATS/1.0\r\nJetstream-Ack: leader\r\n\r\n"
        stream.deliver(
            (b"before", b"_INBOX.1"), (bytes(5000), b"_INBOX.2"), (bytes(5000), b"_INBOX.3"),
            (b"after", b"_INBOX.4"), headers=[b"", b"", early, b""],
        )  # fmt: skip
        stream.node.flushes.run()
        answers = dict(stream.answers())
        assert answers["_INBOX.1"]["seq"] == 1
        assert answers["_INBOX.4"]["seq"] == 2
        for reply in ("_INBOX.2", "_INBOX.3"):
            assert answers[reply]["error"]["err_code"] == TOO_LARGE
        assert stream.values() == [b"before", b"after"]
