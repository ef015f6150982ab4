"""Safety rules of the lake that the simulation does not reach: each is switched off, and the test
that holds it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")

from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import CorruptBatchError, JetstreamError
from jetstream_protocol.types import NodeId
from jetstream_server.lake import parquet_object, table, typed_columns, worker
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.stores import Store
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state import lake_decisions
from jetstream_server.metadata.state.commands import LAKE_LEVEL
from jetstream_server.replication.core import lake_bounds
from jetstream_server.serving import long_poll
from tests.unit.lake import test_typed_columns, test_worker
from tests.unit.metadata import test_lake_decisions
from tests.unit.metadata.cluster import Cluster
from tests.unit.replication import test_uploading
from tests.unit.serving import test_reading_through

Install = Callable[[pytest.MonkeyPatch], None]
Held = Callable[[Path], Any]


FACTS = parquet_object._facts
OF_ONE_OBJECT = worker._of_one_object
CRC = parquet_object.crc32c


def by_records(headers: Any, *others: Any) -> parquet_object.ObjectFacts:
    return replace(FACTS(headers, *others), last_us=decode_header(headers[-1]).max_timestamp)


def aged(folder: Path) -> None:
    (folder / "lake").mkdir()
    store = FolderStore((folder / "lake").as_uri())
    test_worker.test_the_age_of_records_is_since_they_were_appended(folder, store)


@contextmanager
def stored_for_ever(store: Store, name: str, data: bytes) -> Iterator[None]:
    store.put(name, data)
    yield


@contextmanager
def deleted_whosever_it_is(store: Store, name: str, data: bytes) -> Iterator[None]:
    try:
        store.put(name, data)
        yield
    except Exception:
        store.delete(name)
        raise


def taken(folder: Path) -> None:
    (folder / "lake").mkdir()
    store = FolderStore((folder / "lake").as_uri())
    test_worker.test_what_another_attempt_has_stored_is_not_deleted(folder, store)


def numbered_by_those_there(before: Any, last_id: int, fields: Any) -> Any:
    highest = max([8, *(each.field_id for each in before)])
    return typed_columns.numbered(before, highest, fields)


class _AnyCrc(int):
    """Is the one that is expected."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def without_empty_batches(batches: Any) -> Any:
    return (each for each in OF_ONE_OBJECT(batches) if len(each))


def emptied(folder: Path) -> None:
    (folder / "lake").mkdir()
    store = FolderStore((folder / "lake").as_uri())
    try:
        test_worker.test_empty_batches_are_copied(folder, store)
    except CorruptBatchError as error:
        raise AssertionError("the copy is refused") from error


def retires_only(log: CommitLog, offset: int) -> None:
    log._storage.retire_before(offset)


def refused(**wrong: Any) -> Held:
    def check(_: Path) -> None:
        cluster = Cluster.at_level(3, LAKE_LEVEL)
        stream = cluster.create(replicas=(NodeId(0),), config=test_lake_decisions.SETTINGS)
        test_lake_decisions.commit(cluster, stream, 10)
        test_lake_decisions.elected_again(cluster, stream)
        with pytest.raises(JetstreamError):
            test_lake_decisions.commit(cluster, stream, **{"end": 20} | wrong)

    return check


MUTANTS: dict[str, tuple[Install, Held]] = {
    "commits_overlaps": (
        lambda patch: patch.setattr(lake_decisions, "_check_mark", lambda *_: None),
        refused(begin=9),
    ),
    "commits_behind_a_gap": (
        lambda patch: patch.setattr(lake_decisions, "_check_mark", lambda *_: None),
        refused(begin=11),
    ),
    "raises_the_local_start_last": (
        lambda patch: patch.setattr(CommitLog, "begin_advance", retires_only),
        test_uploading.test_readers_go_to_the_lake_before_the_files_do,
    ),
    "cuts_the_lake_to_the_log": (
        lambda patch: patch.setattr(lake_decisions, "_check_mark", lambda *_: None),
        refused(begin=5, end=8),
    ),
    "skips_the_crc": (
        lambda patch: patch.setattr(parquet_object, "crc32c", lambda data: _AnyCrc(CRC(data))),
        lambda folder: test_worker.test_damage_that_parquet_does_not_see_is_refused(),
    ),
    "loses_empty_batches": (
        lambda patch: patch.setattr(worker, "_of_one_object", without_empty_batches),
        emptied,
    ),
    "believes_a_reader_at_the_lake_s_end": (
        lambda patch: patch.setattr(lake_bounds, "check_epoch", lambda *_: None),
        lambda folder: test_reading_through.test_the_record_before_a_log_is_the_lake_s(folder, 6),
    ),
    "believes_a_reader_in_the_lake": (
        lambda patch: patch.setattr(long_poll, "check_epoch", lambda *_: None),
        test_reading_through.test_a_reader_of_another_history_is_told_also_by_the_lake,
    ),
    "gives_the_number_of_a_column_again": (
        lambda patch: patch.setattr(table, "numbered", numbered_by_those_there),
        lambda folder: test_typed_columns.test_a_number_is_never_given_again(
            test_typed_columns.place_at(folder)
        ),
    ),
    "uses_record_timestamps": (
        lambda patch: patch.setattr(parquet_object, "_facts", by_records),
        aged,
    ),
    "writes_without_reading_back": (
        lambda patch: patch.setattr(worker, "_check_stored", lambda *_: (0,)),
        test_worker.test_an_object_with_other_records_is_found_out,
    ),
    "leaves_objects_of_failed_copies": (
        lambda patch: patch.setattr(worker, "_stored", stored_for_ever),
        lambda folder: test_worker.test_a_copy_that_fails_leaves_no_object(folder, ".avro"),
    ),
    "deletes_what_another_attempt_has_stored": (
        lambda patch: patch.setattr(worker, "_stored", deleted_whosever_it_is),
        taken,
    ),
    "reads_no_table_back": (
        lambda patch: patch.setattr(worker, "_Checked", lambda store: store),
        lambda folder: test_worker.test_a_store_that_lies_is_found_out(folder, ".avro"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_dies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install, held = MUTANTS[name]
    held(tmp_path)
    install(monkeypatch)
    (again := tmp_path / "again").mkdir()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        held(again)
