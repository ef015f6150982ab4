"""A data folder as a killed server leaves it, damaged in every way, examined and started again.

What each kind of damage looks like byte by byte is tests/property/test_log_damage.py's; here one of
each kind goes the whole way: `jetstream log verify` names file and position, and the server does
what the finding says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import StreamNotFoundError
from jetstream_protocol.generated import api_pb2 as pb
from tests.support import command, identity_files
from tests.support.api import Api, raw_nats
from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess, free_port_base

RECORDS = 300
PAYLOAD = 1000
FOUND = 6
"""The exit code of `jetstream log verify` when something is wrong."""


def value_of(index: int) -> bytes:
    return (b"%d " % index).ljust(PAYLOAD, b".")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a killed server: a stream in several segments, nothing of it ever flushed."""
    data = tmp_path_factory.mktemp("pristine") / "data"
    server = ServerProcess(data, environment={"JETSTREAM_LOG__SEGMENT_BYTES": "64KiB"}).start()
    try:
        api = Api(server.grpc)
        api.create("kept", "kept", flush=pb.FLUSH_NONE)
        with raw_nats(server.nats) as client:
            client.subscribe("_INBOX.kept")
            for index in range(RECORDS):
                client.publish("kept", value_of(index), "_INBOX.kept")
                client.message()
        api.close()
    finally:
        server.kill()
    return data


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "data"))


@pytest.fixture
def restarted(data: Path) -> Iterator[Callable[[], Api]]:
    server = ServerProcess(data)
    apis = []

    def start() -> Api:
        api = Api(server.start().grpc)
        apis.append(api)
        return api

    yield start
    for api in apis:
        api.close()
    server.kill()


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("streams/*/*.log"))


def batch_positions(segment: Path) -> list[tuple[int, int]]:
    """Position and base offset of every batch."""
    position, found = 0, []
    for batch in iterate(segment.read_bytes()):
        found.append((position, batch.header.base_offset))
        position += batch.header.length
    return found


@dataclass(frozen=True)
class Damage:
    """One finding that is to come out, and how much of the stream is left."""

    file: Path
    position: int
    kind: str
    repairable: bool
    records: int = RECORDS


def flipped_byte(data: Path) -> Damage:
    segment = segments(data)[1]
    position, base_offset = batch_positions(segment)[5]
    content = bytearray(segment.read_bytes())
    content[position + 500] ^= 1
    segment.write_bytes(content)
    return Damage(segment, position, "corrupt_batch", False, base_offset)


def torn_append(data: Path) -> Damage:
    """What a kill in the middle of an append leaves."""
    segment = segments(data)[-1]
    content = segment.read_bytes()
    last, _ = batch_positions(segment)[-1]
    segment.write_bytes(content + content[last : last + 60])
    return Damage(segment, len(content), "torn_tail", True)


def cut_end(data: Path) -> Damage:
    """The acknowledged end is on record. So the log lacks its end; it was not torn."""
    segment = segments(data)[-1]
    _, base_offset = batch_positions(segment)[-1]
    os.truncate(segment, segment.stat().st_size - 10)
    return Damage(segment.parent, 0, "missing_records", False, base_offset)


def missing_index(data: Path) -> Damage:
    index = segments(data)[0].with_suffix(".index")
    index.unlink()
    return Damage(index, 0, "missing_index", True)


def foreign_index(data: Path) -> Damage:
    first, second = (segment.with_suffix(".index") for segment in segments(data)[:2])
    shutil.copy(second, first)
    first.write_bytes(first.read_bytes()[:-16] + bytes(range(16)))
    return Damage(first, -1, "bad_index", True)


def bad_checkpoint(data: Path) -> Damage:
    checkpoint = segments(data)[0].with_name("checkpoint")
    checkpoint.write_bytes(b"\xff" * 40)
    return Damage(checkpoint, -1, "bad_checkpoint", True)


@pytest.mark.parametrize(
    "spoil", [flipped_byte, torn_append, cut_end, missing_index, foreign_index, bad_checkpoint]
)
def test_damage_is_named_with_file_and_position_and_the_server_does_as_the_finding_says(
    data: Path, restarted: Callable[[], Api], spoil: Callable[[Path], Damage]
) -> None:
    damage = spoil(data)
    kept = {segment: segment.read_bytes() for segment in segments(data)}
    found = verify(data)
    matching = [
        finding
        for finding in found
        if (finding["file"], finding["kind"]) == (str(damage.file), damage.kind)
        and damage.position in (finding["position"], -1)
    ]
    assert matching, found
    assert matching[0]["repairable"] is damage.repairable

    api = restarted()
    description = api.describe("kept")
    assert description.high_watermark == damage.records
    assert api.values("kept") == [value_of(index) for index in range(damage.records)]
    if damage.repairable:
        assert description.state == "online"
    else:
        assert str(damage.file) in description.state
        assert str(damage.position) in description.state
        assert {segment: segment.read_bytes() for segment in segments(data)} == kept


def test_a_damaged_log_is_cut_by_hand_and_goes_on(data: Path) -> None:
    """docs/operations/lost_disk.md, "A damaged log without another copy"."""
    server = ServerProcess(data).start()
    server.stop()
    damage = flipped_byte(data)
    for file in segments(data):
        if file > damage.file:
            file.unlink()
            file.with_suffix(".index").unlink(missing_ok=True)
    os.truncate(damage.file, damage.position)
    folder = damage.file.parent
    (folder / "checkpoint").unlink()
    folder.with_name(f"{folder.name}.offsets").unlink()
    assert all(finding["repairable"] for finding in verify(data, code=None))

    server = ServerProcess(data).start()
    try:
        with Client(server.grpc, timeout=60) as client:
            assert client.describe_stream("kept").state == "online"
            assert client.publish("kept", b"goes on").offset == damage.records
            values = [message.value for message in client.fetch("kept", start=damage.records - 1)]
            assert values == [value_of(damage.records - 1), b"goes on"]
    finally:
        server.kill()


def test_a_sound_folder_of_a_killed_server_has_nothing_that_is_not_repaired(
    data: Path, restarted: Callable[[], Api]
) -> None:
    assert all(finding["repairable"] for finding in verify(data, code=None))
    assert restarted().values("kept") == [value_of(index) for index in range(RECORDS)]


def test_a_stream_the_metadata_does_not_know_is_set_aside_and_not_deleted(
    data: Path, restarted: Callable[[], Api]
) -> None:
    folder = segments(data)[0].parent
    stranger = folder.with_name("999999")
    shutil.copytree(folder, stranger)
    api = restarted()
    assert not stranger.exists()
    (aside,) = (data / "quarantine").glob("999999.*")
    assert (aside / segments(data)[0].name).read_bytes() == segments(data)[0].read_bytes()
    with pytest.raises(StreamNotFoundError):
        api.describe("999999")


def test_metadata_that_is_gone_stops_the_start_and_no_stream_is_set_aside(data: Path) -> None:
    shutil.rmtree(data / "metadata")
    kept = segments(data)
    assert "its metadata group is new and knows no cluster" in refused(data)
    assert "its metadata group is new and knows no cluster" in refused(data)
    assert segments(data) == kept
    assert not list((data / "quarantine").iterdir())


@pytest.mark.parametrize("clean", [True, False], ids=["a clean stop", "a kill"])
def test_metadata_damaged_after_a_clean_stop_stops_the_start_and_says_what_to_do(
    data: Path, restarted: Callable[[], Api], clean: bool
) -> None:
    """Nothing is torn then. docs/operations/lost_node.md, "A lost or damaged metadata folder"."""
    server = ServerProcess(data).start()
    if clean:
        server.stop()
    else:
        server.kill()
    journal = data / "metadata" / "journal"
    damaged = bytearray(journal.read_bytes())
    damaged[-3] ^= 0x10
    journal.write_bytes(damaged)
    kept = segments(data)
    said = refused(data)
    position = re.search(r"journal at byte (\d+): \d+ bytes of it had been synced", said)
    assert position is not None, said
    assert "restore this node's metadata folder" in said
    assert journal.read_bytes() == damaged
    assert segments(data) == kept
    assert any(
        (finding["file"], finding["position"]) == (str(journal), int(position[1]))
        and not finding["repairable"]
        for finding in verify(data)
    )
    os.truncate(journal, int(position[1]))
    assert "had been synced" in refused(data)
    (data / "metadata" / "synced").unlink()
    assert restarted().values("kept") == [value_of(index) for index in range(RECORDS)]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("format_version", 99, "has format 99"),
        ("node_id", 7, "belongs to node 7"),
        ("node_id", "", "meta.json is damaged"),
    ],
)
def test_a_folder_of_another_node_or_version_stops_the_start_untouched(
    data: Path, field: str, value: object, says: str
) -> None:
    identity = data / "meta.json"
    identity_files.correct(identity, **{field: value})
    kept = identity.read_bytes()
    assert says in refused(data)
    assert identity.read_bytes() == kept
    assert len(segments(data)) > 2


def test_a_second_server_on_a_folder_is_refused_and_the_first_goes_on(
    data: Path, restarted: Callable[[], Api]
) -> None:
    api = restarted()
    assert "in use by another running server" in refused(data)
    assert api.describe("kept").high_watermark == RECORDS


def verify(data: Path, code: int | None = FOUND) -> list[dict[str, object]]:
    done = command.jetstream("log", "verify", str(data), "--json")
    assert code is None or done.returncode == code, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(data: Path) -> str:
    """The last line of a start that is to fail."""
    arguments = ("--dev", "--data", str(data), "--port-base", str(free_port_base()))
    start = [sys.executable, "-m", "jetstream_server", *arguments]
    done = fork_server.run(start)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]
