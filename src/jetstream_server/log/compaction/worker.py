"""The process that does one pass of compaction: `python -m jetstream_server.log.compaction.worker`.

    standard input:   one line, {"task": …, "parent": pid, "bytes_per_second": n, "keys": […]},
                      the keys of encryption at rest in hexadecimal, the active one first
    standard output:  one line for each step: {"step": "Mapped" | "Rewritten" | "Done", …fields},
                      or {"error": why, "file": the segment that could not be read, or ""}

A new process for each pass returns the memory of its map. It is spawned, not forked: gRPC and
threads do not survive a fork. It runs at nice 19, reads at most `bytes_per_second`, and ends with
its parent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import CorruptBatchError
from jetstream_server.child import die_with, throttle
from jetstream_server.log.compaction.rewrite_pass import Task, run
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.encryption import Encryption, Keys
from jetstream_server.log.state_files import owner_of

_NICENESS: Final = 19


def main() -> int:
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 1  # The server died before it sent the task.
    given = bounded_json.loads(line)
    die_with(given["parent"])
    os.nice(_NICENESS)
    disk = OsDisk()
    message: dict[str, Any] = {}
    pause = throttle(given["bytes_per_second"])
    try:
        task = Task.from_dict(given["task"])
        encryption = None
        if given["keys"]:
            keys = Keys.of_process(given["keys"], os.urandom)
            encryption = keys.of_stream(int(owner_of(task.directory)))
        for message in messages(disk, task, pause, encryption):
            _send(message)
    finally:
        disk.close()
    return 1 if "error" in message else 0


def messages(
    disk: Disk, task: Task, pause: Callable[[int], None], encryption: Encryption | None = None
) -> Iterator[dict[str, Any]]:
    """The messages of a pass, one per step; the last says how it ended."""
    try:
        for step in run(disk, task, pause, encryption):
            yield {"step": type(step).__name__, **asdict(step)}
    except CorruptBatchError as error:
        yield {"error": str(error), "file": error.file}
    except OSError as error:
        yield {"error": str(error), "file": ""}


def _send(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)  # The server has died: leave no traceback in its log.


if __name__ == "__main__":
    sys.exit(main())
