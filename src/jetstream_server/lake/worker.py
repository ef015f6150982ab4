"""The process that copies ranges of logs to the lake: `python -m jetstream_server.lake.worker`.

    standard input:   one line for each range, a Task as JSON, or a TrimTask, MarkTask or AdoptTask
    standard output:  one line for each, {"location": …, "end": n, "last_epoch": n, "length": n,
                      "stored": n}, or {"location": …, "start": n}, or {}, or {"location": …,
                      "start": n, "end": n, "last_epoch": n}, or {"error": why}, and "is_away" if
                      the store did not answer

It checks the batches, stores them as a Parquet object, reads that back and compares, and makes the
next version of the stream's table, with that object. Nothing of this counts until the metadata
names that version. A process of its own, at nice 19: what goes wrong here ends nothing else, and
the server's loop never waits. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, BinaryIO

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import HEADER_BYTES, Batch, decode_header, iterate
from jetstream_protocol.errors import CorruptBatchError, JetstreamError
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_values import why_unread
from jetstream_server.child import die_with, limit_memory, throttle
from jetstream_server.lake.parquet_object import (
    BATCHES_MAX,
    Encoded,
    decode_group,
    encode_batches,
    has_same_records,
    read_footer,
)
from jetstream_server.lake.stores import (
    Listed,
    Store,
    StoreAwayError,
    StoreOptions,
    open_store,
)
from jetstream_server.lake.table import DAY_US, StoredObject, StreamTable
from jetstream_server.lake.tasks import AdoptTask, MarkTask, Task, TrimTask
from jetstream_server.lake.typed_columns import TypedColumns

_NICENESS = 19
_BUFFER_BYTES = 1024 * 1024
_MEMORY_BYTES = 3 * 1024**3
"""Beside the object, which there may be four times at once: columns of a row group have up to
GROUP_BYTES_MAX, and are encoded."""

Pause = Callable[[int], None]


def copy(task: Task, store: Store, pause: Pause) -> dict[str, Any]:
    """Copy the range, or its beginning: an object ends at midnight UTC, and after so many batches.
    Returns what to commit. Raises OSError, JetstreamError, ValueError."""
    table = StreamTable(_Checked(store), store.url, task.folder, _properties(task))
    typed = _typed(table, task)
    with open(task.path, "rb", _BUFFER_BYTES) as file:
        encoded = encode_batches(_of_one_object(_batches(file, task, pause)), typed)
        facts = encoded.facts
        if not facts.begin <= task.begin < facts.end <= task.end:
            raise CorruptBatchError(
                f"the batches hold [{facts.begin}, {facts.end}), not [{task.begin}, {task.end})"
            )
        name = f"{task.folder}/data/{facts.begin:020}-{facts.end:020}-{task.attempt}.parquet"
        with _stored(store, name, encoded.data):
            splits = _check_stored(store, name, encoded, _batches(file, task, lambda _: None))
            added = StoredObject(name, len(encoded.data), facts, splits)
            fields = () if typed is None else typed.of.fields
            location = table.append(task.location, added, lambda *_: None, task.start, fields)
    return {
        "location": location,
        "end": facts.end,
        "last_epoch": facts.last_epoch,
        "length": facts.raw_length,
        "stored": len(encoded.data),
    }


@contextmanager
def _stored(store: Store, name: str, data: bytes) -> Iterator[None]:
    """Store an object, and delete it if what follows fails: while a table cannot be read, for
    example, each attempt would leave one, and no sweep could delete them. **safety** Only this
    process knows of it: no version of the table with it was ever answered."""
    try:
        store.put(name, data)
        yield
    except FileExistsError:
        raise  # It is not ours.
    except Exception:
        with suppress(OSError):
            store.delete(name)
        raise


def _properties(task: Task) -> dict[str, str]:
    of_schema = {
        "jetstream.schema": task.schema,
        "jetstream.schema-version": str(task.schema_version),
    }
    return {**task.properties, **(of_schema if task.schema else {})}


def _typed(table: StreamTable, task: Task) -> TypedColumns | None:
    if not task.schema:
        return None
    schema = parse(task.schema)
    if why_unread(schema):
        return None  # Records leave the disks all the same, and keep their values.
    return TypedColumns(schema, table.columns(task.location, schema.fields), task.schema_version)


def trim(task: TrimTask, store: Store) -> dict[str, Any]:
    """Have old objects leave the table. Returns what to commit. Raises OSError, ValueError."""
    table = StreamTable(_Checked(store), store.url, task.folder, {})
    location, start = table.trim(task.location, task.start, task.oldest_us, task.bytes_max)
    return {"location": location, "start": start}


def adopt(task: AdoptTask, store: Store) -> dict[str, Any]:
    """Take a table over. Returns what to commit. Raises OSError, ValueError."""
    table = StreamTable(_Checked(store), store.url, task.folder, task.properties)
    return table.adopt(task.adopted)._asdict()


def mark(task: MarkTask, store: Store) -> dict[str, Any]:
    """Note a commit. Raises OSError."""
    StreamTable(store, store.url, task.folder, {}).mark(task.location, task.before)
    return {}


_Raw = tuple[bytes, Batch]


def _batches(file: BinaryIO, task: Task, pause: Pause) -> Iterator[_Raw]:
    """The batches with their bytes, one at a time."""
    file.seek(task.position)
    left = task.length
    while left:
        raw = file.read(min(HEADER_BYTES, left))
        header = decode_header(raw)
        rest = file.read(min(header.length, left) - HEADER_BYTES)
        if HEADER_BYTES + len(rest) != header.length:
            raise CorruptBatchError("the last batch is cut short", task.path)
        left -= header.length
        pause(header.length)
        yield raw + rest, Batch.of(header, rest)


def _of_one_object(batches: Iterable[_Raw]) -> Iterator[Batch]:
    """The first batches, as many as one object may hold. A partition of the table is a UTC day."""
    day = None
    for _, batch in islice(batches, BATCHES_MAX):
        if day is not None and batch.header.append_timestamp // DAY_US != day:
            return
        day = batch.header.append_timestamp // DAY_US
        yield batch


def _check_stored(
    store: Store, name: str, encoded: Encoded, batches: Iterator[_Raw]
) -> tuple[int, ...]:
    """**safety** Compare what the store gives back, as readers will get it, with the log, a row
    group at a time. Returns where row groups begin. Raises CorruptBatchError."""
    footer = read_footer(
        lambda position, length: store.get(name, position, length), len(encoded.data)
    )
    if footer.facts != encoded.facts:
        raise CorruptBatchError("the store does not give back what was stored", name)
    changed = 0
    for at, place in enumerate(footer.groups):
        found = decode_group(footer, at, store.get(name, place.position, place.length))
        wanted = list(islice(batches, place.batches))
        if found == b"".join(raw for raw, _ in wanted):
            continue
        for mine, (raw, batch) in zip(iterate(found), wanted, strict=True):
            if not has_same_records(mine, batch):
                raise CorruptBatchError("the object holds other records than the log", name)
            changed += mine.header.body_crc != decode_header(raw).body_crc
    if changed > encoded.changed:
        raise CorruptBatchError("the store does not give back what was stored", name)
    return tuple(place.position for place in footer.groups if place.rows)


class _Checked:
    """Reads back what it puts: with a lost table every record of it is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.url

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)
        if self._store.get(name) != data:
            raise CorruptBatchError("the store does not give back what was stored", name)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        return self._store.get(name, position, length)

    def list(self, prefix: str) -> Iterable[Listed]:
        return self._store.list(prefix)

    def folders(self, prefix: str) -> Iterable[str]:
        return self._store.folders(prefix)

    def delete(self, *names: str) -> None:
        self._store.delete(*names)


def answer_to(line: str) -> dict[str, Any]:
    """What came of one task."""
    try:
        given = bounded_json.loads(line)
        given["store"] = StoreOptions(**given["store"])
        if "oldest_us" in given:
            trim_task = TrimTask(**given)
            return trim(trim_task, open_store(trim_task.store))
        if "adopted" in given:
            adopt_task = AdoptTask(**given)
            return adopt(adopt_task, open_store(adopt_task.store))
        if "before" in given:
            mark_task = MarkTask(**given)
            return mark(mark_task, open_store(mark_task.store))
        task = Task(**given)
        limit_memory(_MEMORY_BYTES + 4 * task.length)
        return copy(task, open_store(task.store), throttle(task.bytes_per_second))
    except StoreAwayError as error:
        return {"error": str(error), "is_away": True}
    except (OSError, JetstreamError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "it took more memory than a copy may: what the store sends is too large"}
    except Exception as error:  # noqa: BLE001  the uploader is told, and a damaged table raises any
        return {"error": str(error) if type(error) is ValueError else repr(error)}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a library prints is no answer.
    is_first = True
    for line in sys.stdin:
        if not line.endswith("\n"):
            return 1  # The server died before it sent the task.
        if is_first:
            die_with(bounded_json.loads(line)["parent"])
            os.nice(_NICENESS)
            limit_memory(_MEMORY_BYTES)
            is_first = False
        answers.write(json.dumps(answer_to(line)) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
