"""What a store sends that is hostile, or lies, takes bounded memory and time, and is an error."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")

import pyarrow as pa

from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.errors import CorruptBatchError, UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake import bucket_store, folder_store, parquet_object, process
from jetstream_server.lake.access import Group
from jetstream_server.lake.bucket_store import BucketConfig, BucketStore
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.process import LakeProcess
from jetstream_server.lake.reader import LakeReader
from jetstream_server.lake.stores import StoreError, StoreOptions
from jetstream_server.lake.table import StoredObject, StreamTable
from tests.support.hostile_store import HostileStore, hostile_store
from tests.support.lake_objects import decode
from tests.support.lake_objects import encode as object_of
from tests.support.log_batches import stamped

SECONDS = 60.0


@pytest.fixture
def hostile() -> Iterator[HostileStore]:
    with hostile_store() as server:
        yield server


def store_at(address: str) -> BucketStore:
    return BucketStore.of(
        BucketConfig(
            "s3://lake", address, access_key_id="a", secret_access_key="b", timeout_s=SECONDS
        )
    )


def now() -> MonotonicUs:
    return MonotonicUs(time.monotonic_ns() // 1000)


@pytest.mark.parametrize("does", ["long object", "more than the range"])
def test_no_more_is_read_than_was_asked_for(
    hostile: HostileStore, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "WHOLE_BYTES_MAX", 1 << 20)
    hostile.does = does
    length = -1 if does == "long object" else 1000
    with pytest.raises((StoreError, CorruptBatchError)):
        store_at(hostile.address).get("x", 0, length)
    assert hostile.poured < 64 << 20


def test_the_wrong_range_is_refused(hostile: HostileStore) -> None:
    hostile.does = "whole instead of a range"
    with pytest.raises(StoreError):
        store_at(hostile.address).get("x", 10, 20)


@pytest.mark.parametrize(
    "entity", ["<!ENTITY a 'aaaa'>", "<!ENTITY a SYSTEM 'file:///etc/passwd'>"]
)
def test_no_entity_of_a_listing_is_expanded(hostile: HostileStore, entity: str) -> None:
    hostile.page = (
        f"<?xml version='1.0'?><!DOCTYPE x [{entity}]><ListBucketResult><Contents><Key>s/&a;</Key>"
        "<Size>1</Size><LastModified>2026-11-29T10:00:00.000Z</LastModified></Contents>"
        "<IsTruncated>false</IsTruncated></ListBucketResult>"
    )
    try:
        names = [each.name for each in store_at(hostile.address).list("s/")]
    except StoreError:
        names = []
    assert names in ([], ["s/&a;"])


def test_a_listing_without_an_end_is_an_error(
    hostile: HostileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "LISTED_MAX", 60)
    entry = (
        "<Contents><Key>s/a</Key><Size>1</Size>"
        "<LastModified>2026-11-29T10:00:00.000Z</LastModified></Contents>"
    )
    hostile.page = (
        f"<ListBucketResult>{50 * entry}"
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
        "</ListBucketResult>"
    )
    with pytest.raises(StoreError, match="more than 60 objects"):
        list(store_at(hostile.address).list("s/"))


def test_a_long_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_store, "WHOLE_BYTES_MAX", 10)
    (tmp_path / "x").write_bytes(bytes(11))
    store = FolderStore(tmp_path.as_uri())
    with pytest.raises(StoreError, match="none of this lake's tables"):
        store.get("x")
    assert store.get("x", 0, 11) == bytes(11)


def test_rows_that_fit_no_batch_are_damage_and_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """**safety** An unforeseen error of a background task stops the node."""
    sparse = encode([b"a", b"b"], b"s", offset_deltas=[0, 5], last_offset_delta=5)
    sparse.stamp(0, 1, 1)
    data, table = sparse.to_bytes(), parquet_object._table

    def far_apart(batches: Sequence[Batch]) -> Any:
        rows = table(batches)
        return rows.set_column(0, rows.schema.field(0), pa.chunked_array([[0, 1 << 40]]))

    monkeypatch.setattr(parquet_object, "_table", far_apart)
    monkeypatch.setattr(
        parquet_object, "_as_decoded", lambda *_: (data[: parquet_object.HEADER_BYTES], False)
    )
    made = object_of(data).data
    with pytest.raises(CorruptBatchError, match="cannot be made"):
        decode(made)


def test_two_nodes_that_store_one_name_at_once_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link, refused = FolderStore(tmp_path.as_uri()), os.link, []

    def then_another(source: Path, target: Path) -> None:
        link(source, target)
        monkeypatch.setattr(os, "link", link)
        with pytest.raises(FileExistsError) as raised:
            FolderStore(tmp_path.as_uri()).put("s/x", b"of another")
        refused.append(raised.value)

    monkeypatch.setattr(os, "link", then_another)
    store.put("s/x", b"first")
    assert refused
    assert store.get("s/x") == b"first"
    assert [each.name for each in store.list("s/")] == ["s/x"]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The program of the process that reads the lake."""
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(process, "MODULE", "program")
    return tmp_path / "program.py"


@contextmanager
def reading(options: StoreOptions, seconds: float = SECONDS) -> Iterator[LakeProcess]:
    lake = LakeProcess(options, 1, seconds, now)
    lake.begin()
    try:
        yield lake
    finally:
        lake.stop()


def bomb(manifests: bytes) -> bytes:
    """A list of manifests, of which a megabyte becomes a gigabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 1024
    mark = manifests[-16:]
    assert b"deflate" in manifests
    head = manifests[: manifests.index(mark)] + mark
    return head + _varint(1) + _varint(len(block)) + block + mark


def _varint(number: int) -> bytes:
    number, packed = number * 2, bytearray()
    while number > 127:
        packed.append(number & 127 | 128)
        number >>= 7
    return bytes([*packed, number])


def test_what_takes_all_memory_costs_a_process_and_nothing_here(
    hostile: HostileStore, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text(
        "import sys\nfrom jetstream_server.lake import reading\n"
        "reading.MEMORY_BYTES = 300 << 20\nsys.exit(reading.main(sys.argv[1]))\n"
    )
    (tmp_path / "lake").mkdir()
    store = FolderStore((tmp_path / "lake").as_uri())
    encoded = object_of(stamped(0, b"v"))
    added = StoredObject("s/data/a", len(encoded.data), encoded.facts)
    location = StreamTable(store, store.url, "s", {}).append("", added, lambda *_: None)
    (manifests,) = (store.root / "s" / "metadata").glob("snap-*.avro")
    manifests.write_bytes(bomb(manifests.read_bytes()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    too_much = pytest.raises(UnavailableError, match=r"status 3 at s.*, .* takes too much memory")
    with reading(StoreOptions(store.url)) as lake, too_much:
        lake.group(location, 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    hostile.does = "error page"
    bucket = StoreOptions("s3://lake", hostile.address, "us-east-1")
    with reading(bucket) as lake, pytest.raises(UnavailableError, match="takes too much memory"):
        lake.metadata(location)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    assert hostile.poured < 1 << 30


def test_a_part_of_a_read_that_failed_is_no_file(module: Path, tmp_path: Path) -> None:
    module.write_text(
        "import json, socket, sys\n"
        "told = socket.socket(fileno=json.loads(sys.argv[1])['connections'][0])\n"
        "path = json.loads(told.recv(65536))['with'][2]\n"
        "open(path, 'wb').write(b'part')\n"
        "raise SystemExit(7)\n"
    )
    with reading(StoreOptions("file:///")) as lake:
        reader = LakeReader(lake, str(tmp_path / "cache"), 1 << 20, now)
        with pytest.raises(UnavailableError, match="status 7 at s/data/a,"):
            reader._read(7, Group("s/data/a", 0, 0, 1, 9, [0], [0, 9], [1], []))
        assert not list((tmp_path / "cache").iterdir())
        reader._pool.shutdown()


def test_who_reads_while_another_read_hangs_is_told_so(module: Path) -> None:
    module.write_text("import time\ntime.sleep(60)\n")
    lake = LakeProcess(StoreOptions("file:///"), 2, SECONDS, now)
    lake.begin()
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(lake.metadata, "x")
        assert lake._running is not None
        while lake._running.idle.qsize() == 2:
            time.sleep(0.005)
        with pytest.raises(UnavailableError, match=r"not read within 0\.2 s"):
            lake._ask("metadata", "y", seconds=0.2)
        with pytest.raises(UnavailableError, match=r"another read: the lake was not read"):
            other.result(SECONDS)
    lake.stop()


def test_without_a_free_descriptor_it_is_tried_again(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, refused = subprocess.Popen, OSError(errno.EMFILE, "too many open files")
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=refused))
    gc.collect()  # What tests before this one have left.
    before = len(os.listdir("/proc/self/fd"))
    module.write_text(
        "import json, socket, sys\n"
        "told = socket.socket(fileno=json.loads(sys.argv[1])['connections'][0])\n"
        "told.recv(65536); told.send(b'{\"value\": 7}\\n'); told.recv(1)\n"
    )
    with reading(StoreOptions("file:///")) as lake:
        with pytest.raises(UnavailableError, match="try again"):
            lake.appended_at("x", 1)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before
        monkeypatch.setattr(subprocess, "Popen", popen)
        lake.begin()
        assert lake.appended_at("x", 1) == 7


def test_what_libraries_had_before_is_no_part_of_the_limit(module: Path) -> None:
    module.write_text(
        "import mmap\n"
        "from jetstream_server.child import limit_memory\n"
        "stacks = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE)\n"
        "for _ in range(2):\n"
        "    limit_memory(256 << 20)\n"
        "    bytes(100 << 20)\n"
        "    try: bytes(400 << 20)\n"
        "    except MemoryError: continue\n"
        "    raise SystemExit('it was given more')\n"
    )
    subprocess.run([sys.executable, "-P", "-m", "program"], check=True)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("time.sleep(60)", "within 0.2 s"),
        ("raise SystemExit(7)", "status 7"),
        ("told.send(b'[' * 100_000 + b'\\n'); time.sleep(60)", "ended"),
        ("told.send(b'{\"value\": 9'); time.sleep(60)", "within 0.2 s"),
    ],
)
def test_a_process_that_hangs_or_errs_is_replaced(
    module: Path, monkeypatch: pytest.MonkeyPatch, does: str, reason: str
) -> None:
    module.write_text(
        "import json, socket, sys, time\n"
        "told = socket.socket(fileno=json.loads(sys.argv[1])['connections'][0])\n"
        f"told.recv(65536); {does}\n"
    )
    monkeypatch.setattr(process, "RESTART_US", 1 << 50)
    if reason == "status 7":
        monkeypatch.setattr(process, "_END_SECONDS", SECONDS)
    with reading(StoreOptions("file:///"), 0.2 if "within" in reason else SECONDS) as lake:
        with pytest.raises(UnavailableError, match=reason):
            lake.metadata("x")
        module.write_text(
            module.read_text().replace(does, 'told.send(b\'{"value": "ok"}\\n\'); told.recv(9)')
        )
        lake.begin()
        with pytest.raises(UnavailableError, match="has ended; try again"):
            lake.metadata("x")
        monkeypatch.setattr(process, "RESTART_US", 0)
        lake.begin()
        lake._seconds = SECONDS
        assert lake.metadata("x") == b"ok"


def test_no_subject_holds_what_nats_would_take_for_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = encode([b"a"], b"s 1\r\na\r\nPUB s 0")
    batch.stamp(0, 1, 1)
    with monkeypatch.context() as lying:
        lying.setattr(Batch, "check_columns", lambda _: None)
        made = object_of(batch.to_bytes()).data
    with pytest.raises(CorruptBatchError, match="white space"):
        decode(made)
