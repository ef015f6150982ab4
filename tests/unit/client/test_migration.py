"""Records on their way: digests, and how they are put into batches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_client import Client
from jetstream_client.migration import bucket
from jetstream_client.migration.manifest import Manifest
from jetstream_client.migration.records import OffsetRanges, RecordDigest, Records
from jetstream_client.migration.restore import begin_restoring
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_protocol.batch import RECORDS_MAX, Batch, encode, iterate
from jetstream_protocol.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    StreamExistsError,
    UnknownOutcomeError,
)
from jetstream_protocol.restored_batch import RESTORE_BYTES_MAX, open_restored
from jetstream_protocol.types import WallUs

NOW = 1_000_000


class FakeServer:
    """A stream that is being restored. `lost`: number of requests that are carried out but not
    answered."""

    name = "fake"
    restoring = True
    last_append = None

    def __init__(self) -> None:
        self.data = b""
        self.log_end_offset = 0
        self.lost = 0
        self.config = self
        self.timeout = 1.0

    @property
    def high_watermark(self) -> int:
        return self.log_end_offset

    def describe_stream(self, stream: object) -> FakeServer:
        return self

    def restore_batches(self, stream: object, data: bytes) -> None:
        batches = open_restored(data)
        assert batches[0].base_offset == self.log_end_offset
        self.data += data
        self.log_end_offset = batches[-1].next_offset
        if self.lost:
            self.lost -= 1
            raise UnknownOutcomeError("nobody knows")

    def batches(self) -> list[Batch]:
        return list(iterate(self.data))


def records(*offsets: int, value: bytes = b"v", time: int = 10) -> Records:
    count = len(offsets)
    return Records(
        offsets, [time] * count, [b"s"] * count, [None] * count, [value] * count, [b""] * count
    )


def writer(server: FakeServer) -> RestoreWriter:
    return RestoreWriter(cast(Client, server), cast(Any, server), now_us=lambda: NOW)


def test_gaps_between_records_stay_and_long_ones_cost_little() -> None:
    server = FakeServer()
    filling = writer(server)
    filling.put(records(3, 4, 9, 5 * RECORDS_MAX, 5 * RECORDS_MAX + 1))
    filling.cover(6 * RECORDS_MAX)
    filling.flush()
    found = [offset for batch in server.batches() for offset in batch.offsets()]
    assert found == [3, 4, 9, 5 * RECORDS_MAX, 5 * RECORDS_MAX + 1]
    assert server.log_end_offset == 6 * RECORDS_MAX
    assert len(server.data) < 2000


def test_what_is_there_already_is_passed_over() -> None:
    server = FakeServer()
    filling = writer(server)
    filling.put(records(0, 1, 2))
    filling.flush()
    again = writer(server)
    again.put(records(0, 1, 2, 3))
    again.flush()
    assert [offset for batch in server.batches() for offset in batch.offsets()] == [0, 1, 2, 3]


def test_a_request_that_was_done_and_not_answered_is_not_repeated() -> None:
    server = FakeServer()
    server.lost = 1
    filling = writer(server)
    filling.put(records(0, 1))
    filling.flush()
    assert server.log_end_offset == 2


def test_times_of_records_stay_and_those_of_batches_do_not_go_back_or_ahead() -> None:
    server = FakeServer()
    filling = writer(server)
    for offset, time in enumerate((500, 20, NOW * 9)):
        filling.put(records(offset, time=time))
    filling.flush()
    batches = server.batches()
    assert [batch.timestamps() for batch in batches] == [[500], [20], [NOW * 9]]
    assert [batch.header.append_timestamp for batch in batches] == [500, 500, NOW]


def test_batches_of_a_leader_whose_clock_was_ahead_keep_the_times_of_their_records() -> None:
    """A server takes none that was appended in the future, perhaps for years."""
    server = FakeServer()
    filling = writer(server)
    for offset, appended in enumerate((500, NOW * 9)):
        encoded = encode([b"v"], b"s")
        encoded.stamp(offset, 1, WallUs(appended))
        filling.put_batches(encoded.to_bytes())
    filling.flush()
    batches = server.batches()
    assert [batch.timestamps() for batch in batches] == [[500], [NOW * 9]]
    assert [batch.header.append_timestamp for batch in batches] == [500, NOW]


def test_a_record_that_no_request_holds_is_refused_by_its_offset() -> None:
    with pytest.raises(MessageTooLargeError, match="offset 0 is too large"):
        writer(FakeServer()).put(records(0, value=bytes(RESTORE_BYTES_MAX)))


def test_a_digest_does_not_depend_on_batches_and_sees_every_column() -> None:
    def digest(*parts: Records) -> str:
        found = RecordDigest()
        for part in parts:
            found.add(part)
        return found.hexdigest()

    whole = records(1, 2, 3)
    assert digest(whole) == digest(whole.rows(0, 1), whole.rows(1, 3))
    columns = {name: list(getattr(whole, name)) for name in Records.__slots__}
    for name, other in (
        ("offsets", 7), ("timestamps", 7), ("subjects", b"t"), ("keys", b""), ("values", None),
        ("header_blocks", b"h"),
    ):  # fmt: skip
        changed = Records(**{**columns, name: [*columns[name][:2], other]})
        assert digest(changed) != digest(whole), name


def test_a_manifest_says_what_is_wrong_with_it() -> None:
    for text, says in (
        ("{", "not the manifest"),
        ('{"format": "jetstream-backup", "version": 2}', "of version 2; this software reads"),
        ('{"format": "jetstream-backup", "version": 1, "files": []}', "not the manifest"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            Manifest.from_json(text, "here")


FILE = {
    "name": "00000000000000000000.log", "base_offset": 0, "next_offset": 5, "length": 9,
    "crc32c": "0",
}  # fmt: skip
BACKUP = {
    "format": "jetstream-backup", "version": 1, "cluster_id": "c", "stream_id": 3, "name": "a",
    "subject": "a", "replicas": 1, "settings": {}, "start_offset": 0, "end_offset": 5,
    "files": [FILE],
}  # fmt: skip


def test_a_manifest_of_a_backup_is_read() -> None:
    assert Manifest.from_json(json.dumps(BACKUP), "here").bounds == (0, 5)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": 5}, {"name": ["a"]}, {"subject": None}, {"replicas": "3"}, {"replicas": True},
        {"settings": [1]}, {"settings": {"max_age": [1]}}, {"settings": {"max_age": 1e400}},
        {"settings": {"max_bytes": "9"}}, {"settings": {"group": 5}},
        {"settings": {"partition": "x"}}, {"settings": {"compact": 1}},
        {"start_offset": -1}, {"start_offset": "0"}, {"start_offset": 6}, {"records": "5"},
        {"end_offset": 1e18}, {"end_offset": 2**62}, {"end_offset": 10**300}, {"digest": [1]},
        {"tombstones_gone_below": "x"}, {"is_complete": "yes"}, {"files": [None]},
        {"files": [FILE, FILE]}, {"files": [FILE | {"next_offset": 6}]},
        {"files": [FILE | {"next_offset": "5"}]}, {"files": [FILE | {"next_offset": 0}]},
        {"files": [FILE | {"length": 1e308}]}, {"files": [FILE | {"crc32c": 5}]},
        {"files": [FILE | {"base_offset": 0.0}]},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_somebody_else_is_refused_with_a_reason(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="here is not the manifest of a backup: "):
        Manifest.from_json(json.dumps(BACKUP | changed), "here")


def test_a_manifest_of_thousands_of_levels_is_refused() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(InvalidRequestError, match="not the manifest"):
            Manifest.from_json(text, "here")


def test_ranges_know_which_offsets_there_are() -> None:
    ranges = OffsetRanges()
    ranges.add([3, 4, 5, 8])
    ranges.add([9, 20])
    assert [each for each in range(25) if each in ranges] == [3, 4, 5, 8, 9, 20]


def test_rows_are_chosen_by_their_offset() -> None:
    whole = records(3, 4, 9)
    assert list(whole.where(lambda offset: offset != 4).offsets) == [3, 9]
    assert whole.where(lambda _: True) is whole


def test_a_restore_of_a_stream_whose_records_are_lost_says_to_delete_it_first() -> None:
    left = SimpleNamespace(
        name="a", subject="a", full_name="a@a", restoring=False, leader=-1, partitions=0
    )

    def refuse(*_: object, **__: object) -> None:
        raise StreamExistsError("it exists")

    client: Any = SimpleNamespace(create_stream=refuse, list_streams=lambda: [left])
    with pytest.raises(StreamExistsError, match="and has no leader"):
        begin_restoring(client, "a", "a", {})
    left.leader = 0
    with pytest.raises(StreamExistsError, match="exists already"):
        begin_restoring(client, "a", "a", {})


def test_a_backup_into_a_bucket_without_credentials_says_so() -> None:
    said = "Error performing PUT http://169.254.169.254/latest/api/token, after 10 retries"
    assert "set AWS_ACCESS_KEY_ID and" in bucket.reason(said)
    assert bucket.reason("there is no such bucket") == "there is no such bucket"
