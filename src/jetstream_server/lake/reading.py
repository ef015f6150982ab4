"""The process that reads the lake for a node: `python -m jetstream_server.lake.reading TOLD`.

    TOLD:         {"store": …, "parent": pid, "connections": [descriptors of sockets]}, as JSON
    connections:  requests, each a line {"do": a method of Lake, "with": its arguments}
                  answers, each a line {"value": …}, or {"error": why, "kind": "unavailable" |
                  "corrupt" | "store" | "value"}; records go into files, which requests name

**safety** Whatever the store sends is taken apart here: it costs this process, whose memory has a
limit, and no acknowledged record waits for it. It ends when a connection does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import CorruptBatchError, JetstreamError
from jetstream_server.child import die_with, limit_memory
from jetstream_server.lake.access import Group, Swept, SweptFolder
from jetstream_server.lake.local import LocalLake
from jetstream_server.lake.stores import LazyStore, StoreOptions

MEMORY_BYTES: Final = 2 * 1024**3
"""Two reads at a time take some 200 MB, and the list of a million objects 400."""
OUT_OF_MEMORY: Final = 3
"""Exit status."""


def answer_to(lake: LocalLake, line: bytes) -> dict[str, Any]:
    """To one request. Raises MemoryError."""
    try:
        given = bounded_json.loads(line)
        return {"value": _METHODS[given["do"]](lake, *given["with"])}
    except MemoryError:
        raise
    except CorruptBatchError as error:
        return {"error": str(error), "kind": "corrupt"}
    except JetstreamError as error:
        return {"error": error.message, "kind": "unavailable"}
    except OSError as error:
        return {"error": str(error), "kind": "store"}
    except Exception as error:  # noqa: BLE001  the node is told, and a damaged table raises any
        reason = str(error) if type(error) is ValueError else repr(error)
        return {"error": reason, "kind": "value"}


def _group(lake: LocalLake, *given: Any) -> Any:
    group: Group = lake.group(*given)
    return {**asdict(group), "appended_us": []}


def _sweep(lake: LocalLake, folder: dict[str, Any], *given: Any) -> Any:
    swept: Swept = lake.sweep(SweptFolder(**folder), *given)
    return swept._asdict()


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "metadata": lambda lake, location: lake.metadata(location).decode(),
    "group": _group,
    "read_into": LocalLake.read_into,
    "offset_at": LocalLake.offset_at,
    "appended_at": LocalLake.appended_at,
    "list_folder": lambda lake, folder: lake.list_folder(SweptFolder(**folder)),
    "sweep": _sweep,
    "forget": LocalLake.forget,
    "sweep_folders": LocalLake.sweep_folders,
}


def _serve(lake: LocalLake, connection: socket.socket) -> None:
    status = 1
    try:
        with connection.makefile("rb") as requests:
            for line in requests:
                connection.sendall(json.dumps(answer_to(lake, line)).encode() + b"\n")
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:
        os._exit(status)


def main(text: str) -> int:
    told = bounded_json.loads(text)
    die_with(told["parent"])
    limit_memory(MEMORY_BYTES)
    lake = LocalLake(LazyStore(StoreOptions(**told["store"])))
    for each in told["connections"]:
        connection = socket.socket(fileno=each)
        threading.Thread(target=_serve, args=(lake, connection), daemon=True).start()
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
