"""What clients have seen of a run: acknowledgements, reads, commits and a table.

Times are seconds by the monotonic clock. Threads may note things at once.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.damage.publishers import Books


@dataclass(slots=True)
class Session:
    """What one reader has read of a stream without a break, in the order in which it came.

    source: "leader", "any" or "nearest". records: (offset, number of the message); -1 is a value
    that was never published.
    """

    stream: str
    source: str
    begun_at: float
    records: list[tuple[int, int]] = field(default_factory=list)


class SparkRow(NamedTuple):
    """number: of the message; -1 is a value that was never published."""

    offset: int
    number: int
    key: str | None


@dataclass(slots=True)
class History:
    """books: by stream. commits: positions of the consumer group as they were seen, by stream.
    table: of the keyed stream, key -> number of the message, at the end. published, handled: values
    of the group's streams that were acknowledged, and that some member has handled. faults: when
    each began, and what it was."""

    books: dict[str, Books] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    commits: dict[str, list[int]] = field(default_factory=dict)
    table: dict[bytes, int] | None = None
    published: set[str] = field(default_factory=set)
    handled: set[str] = field(default_factory=set)
    faults: list[tuple[float, str]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    """Publishes whose outcome nobody knows, by stream."""
    refused: dict[str, int] = field(default_factory=dict)
    """What publishers without ids were told, numbers left out, and how often."""
    overtaking: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of ordered messages, ends exclusive, that may have overtaken each other in NATS."""
    trespasses: list[str] = field(default_factory=list)
    """What was read without the right to."""
    refused_trespasses: int = 0
    spark: dict[str, list[SparkRow]] = field(default_factory=dict)
    """What Spark has read of each stream at the end, if it was asked to."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_session(self, stream: str, source: str, now: float) -> Session:
        session = Session(stream, source, now)
        with self._lock:
            self.sessions.append(session)
        return session

    def committed(self, stream: str, offset: int) -> None:
        seen = self.commits.setdefault(stream, [])
        if not seen or seen[-1] != offset:
            seen.append(offset)

    def write(self, path: Path) -> None:
        """As JSON, one line for each part."""
        parts = {
            "books": {name: asdict(each) for name, each in self.books.items()},
            "sessions": [asdict(each) for each in self.sessions],
            "commits": self.commits,
            "table": {key.decode(): n for key, n in (self.table or {}).items()},
            "published": sorted(self.published, key=int),
            "handled": sorted(self.handled, key=int),
            "faults": self.faults,
            "unknown": self.unknown,
            "refused": self.refused,
            "overtaking": self.overtaking,
            "trespasses": self.trespasses,
            "spark": self.spark,
        }
        path.write_text("".join(f"{json.dumps({name: part})}\n" for name, part in parts.items()))
