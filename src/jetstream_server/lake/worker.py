"""The process that copies one range of a log to the lake: `python -m jetstream_server.lake.worker`.

    standard input:   one line, a Task as JSON
    standard output:  one line, {"location": …, "last_epoch": n, "length": n}, or {"error": why}

It checks the batches, stores them as an object, reads that back and compares, and stores a list of
objects that names it, too. Nothing of this counts until the metadata names the new list. A process
of its own, at nice 19: what goes wrong here ends nothing else, and the server's loop never waits.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import CorruptBatchError, JetstreamError
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.objects import decode_list, describe, encode_list
from jetstream_server.log.compaction.worker import die_with, throttle

_NICENESS = 19
_PIECE_BYTES = 1024 * 1024


class Store(Protocol):
    """A store of objects. Methods block, and raise OSError."""

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Task:
    """path, position, length: of the batches of [begin, end). folder: of the stream in the store.
    location: of the list so far; "": there is none. attempt: names what this attempt writes: a name
    that an earlier one has left must not be in its way. start: where the stream begins."""

    url: str
    folder: str
    location: str
    path: str
    position: int
    length: int
    begin: int
    end: int
    start: int
    attempt: str
    bytes_per_second: int
    parent: int


def copy(task: Task, store: Store, pause: Callable[[int], None]) -> dict[str, Any]:
    """Copy the range. Returns what to commit. Raises OSError, CorruptBatchError."""
    data = _read(task, pause)
    known = decode_list(store.get(task.location)) if task.location else ()
    if known and task.start < known[-1].end != task.begin:
        raise CorruptBatchError(f"the list of objects ends at {known[-1].end}, not {task.begin}")
    name = f"{task.folder}/data/{task.begin:020}-{task.end:020}-{task.attempt}.batches"
    added = describe(name, data, task.begin, task.end)
    store.put(name, data)
    # **safety** What the store gives back is what readers will get.
    if store.get(name) != data:
        raise CorruptBatchError("the store does not give back what was stored", name)
    location = f"{task.folder}/lists/{task.end:020}-{task.attempt}.json"
    kept = tuple(each for each in known if each.end > task.start)
    store.put(location, encode_list((*kept, added)))
    return {"location": location, "last_epoch": added.last_epoch, "length": len(data)}


def _read(task: Task, pause: Callable[[int], None]) -> bytes:
    pieces = []
    with open(task.path, "rb") as file:
        file.seek(task.position)
        left = task.length
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            pause(len(piece))
    return b"".join(pieces)


def main() -> int:
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 1  # The server died before it sent the task.
    task = Task(**bounded_json.loads(line))
    die_with(task.parent)
    os.nice(_NICENESS)
    try:
        answer = copy(task, FolderStore(task.url), throttle(task.bytes_per_second))
    except (OSError, JetstreamError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
