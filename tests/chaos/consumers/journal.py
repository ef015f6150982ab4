"""What the programs have done: each notes it in a file of its own, one line for each event, before
it does the next thing. So the file of one that is killed is whole up to then.

Times are seconds by the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FENCED = "fenced_instance"


@dataclass(frozen=True, slots=True)
class Event:
    """what, then its values:

    began                       the process handles signals from now on
    opened                      a consumer, a member, a processing or a publisher
    closed                      the same, by the program itself
    assigned, revoked           names of streams: a listener was called
    got       stream, first, last   records were handed out, all offsets in between
    seeking   offset            the same is asked for, and may happen
    seeks     offset            from then on the next record is that one
    committed                   all that was handed out and is still this reader's
    uncommitted                 a commit was refused, because a stream is another member's, or
                                nobody knows
    interrupted                 an exception of a signal handler came out of a call of the SDK
    handling  stream, offset    a handler of `process` was called
    sent      number            a record was given to the publisher, or may have been
    acked     number, stream, offset
    unsettled number            nobody knows whether it is stored
    refused   number, code      it is not stored
    error     code, retriable, text   a call of the SDK has failed
    crash     text              with another exception than those of the SDK
    """

    at: float
    what: str
    values: tuple[Any, ...] = ()


@dataclass(slots=True)
class Journal:
    """One process. kind: of the program. reader: the cursor, group or subject that it works with.
    begun: when it was started. ended: its exit code, below 0 for a signal; None: it still ran.
    frozen: spans in which it was stopped by SIGSTOP."""

    number: int
    kind: str
    reader: str
    instance: str = ""
    begun: float = 0.0
    events: list[Event] = field(default_factory=list)
    ended: int | None = None
    frozen: list[tuple[float, float]] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]


class Notes:
    """The file, as its program writes it. Each line is one call, so threads may note at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, what: str, *values: object) -> None:
        line = json.dumps([time.monotonic(), what, *values])
        os.write(self._file, line.encode() + b"\n")


def events(path: Path) -> list[Event]:
    """Those in the file; a line that is being written is not among them."""
    if not path.exists():
        return []
    text = path.read_text()
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        at, what, *values = json.loads(line)
        found.append(Event(at, what, tuple(values)))
    return found
