"""Which transactions (txnAppId, txnVersion) are complete, so that nothing of them is written again.

The server recognises batches, and another number of partitions makes other batches. So the driver
keeps, for each stream of a transaction, a cursor whose metadata says which versions are complete
there, and where the stream ended when the version in progress was begun. **safety** Only a version
that is complete is left out, never a smaller number as such: a number may have been skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from jetstream_client import AsyncClient, JetstreamError, PermissionDeniedError, Stream
from jetstream_protocol import bounded_json
from jetstream_protocol.subjects import matches
from pyspark_jetstream.errors import log

CURSOR = "spark-transaction-"

METADATA_BYTES = 1000
"""A cursor takes little more. The greatest versions are kept."""


@dataclass(frozen=True)
class Transaction:
    """application, version: as with Delta, a name and a number that grows with each write. subject:
    of all rows; "": they say it themselves. Writes to two subjects are two, also in one stream."""

    application: str
    version: int
    subject: str

    def __str__(self) -> str:
        return f"transaction {self.application}/{self.version}"

    @property
    def cursor(self) -> str:
        """The name of its cursors."""
        name = self.application
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
            name = _digest(name)
        return f"{CURSOR}{name}-{_digest(self.subject)}" if self.subject else CURSOR + name


@dataclass
class Record:
    """What a cursor says. complete: ranges of versions, both ends included. begun: the version in
    progress, and the offset at which the stream ended before."""

    complete: list[tuple[int, int]] = field(default_factory=list)
    begun: tuple[int, int] | None = None

    @classmethod
    def of(cls, metadata: str) -> Record:
        """Whatever it says that this version does not understand counts as nothing."""
        try:
            saved = bounded_json.loads(metadata)
            complete = [(int(first), int(last)) for first, last in saved["complete"]]
            begun = saved["begun"]
            return cls(complete, None if begun is None else (int(begun[0]), int(begun[1])))
        except (ValueError, TypeError, KeyError, IndexError):
            return cls()

    def __str__(self) -> str:
        return json.dumps({"complete": self.complete, "begun": self.begun}, separators=(",", ":"))

    def has(self, version: int) -> bool:
        return any(first <= version <= last for first, last in self.complete)

    def add(self, version: int) -> None:
        """The version is complete."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self.complete, (version, version)]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        self.complete, self.begun = joined, None
        while len(str(self)) > METADATA_BYTES:
            del self.complete[0]


@dataclass(frozen=True)
class Target:
    """A stream that the write may reach. has_all: the transaction is complete in it. was_begun: an
    earlier attempt has begun it, when the stream ended at `end`."""

    id: int
    name: str
    subject: str
    has_all: bool = False
    was_begun: bool = False
    end: int = -1


class Reached:
    """The streams that a task of a transaction reaches. Without a transaction there are none."""

    def __init__(self, targets: Iterable[Target] = ()) -> None:
        self.ids: set[int] = set()
        self._targets = tuple(targets)
        self._complete: dict[str, bool] = {}

    def has_all(self, subject: str) -> bool:
        """Whether all streams on the subject have all rows of the transaction. If not, the task
        reaches them."""
        if not self._targets:
            return False
        found = self._complete.get(subject)
        if found is None:
            listening = [each for each in self._targets if matches(each.subject, subject)]
            found = bool(listening) and all(each.has_all for each in listening)
            self._complete[subject] = found
            if not found:
                self.ids.update(each.id for each in listening)
        return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def begin(
    client: AsyncClient, transaction: Transaction, streams: Iterable[Stream]
) -> tuple[Target, ...]:
    """The streams, with what is known of the transaction there. Where they end is noted if one
    subject says which streams get rows."""
    subject = transaction.subject
    found = await client.list_cursors(transaction.cursor)
    records = {each.stream_id: Record.of(each.metadata) for each in found}
    targets = []
    for stream in streams:
        record = records.get(stream.id, Record())
        target = Target(stream.id, stream.full_name, stream.subject)
        if record.has(transaction.version):
            target = Target(stream.id, stream.full_name, stream.subject, has_all=True)
        elif record.begun is not None and record.begun[0] == transaction.version:
            target = Target(
                stream.id, stream.full_name, stream.subject, was_begun=True, end=record.begun[1]
            )
        elif subject and matches(stream.subject, subject):
            end = await client.offset_at(stream.id, "latest")
            record.begun = (transaction.version, end)
            await _note(client, transaction, target, end, record)
            target = Target(stream.id, stream.full_name, stream.subject, end=end)
        targets.append(target)
    return tuple(targets)


async def complete(
    client: AsyncClient, transaction: Transaction, targets: Iterable[Target], rows: int
) -> None:
    """Every row is acknowledged. targets: the streams that have them now. rows: of the whole write.
    Warns if a stream has grown by more, since the transaction was first begun."""
    found = await client.list_cursors(transaction.cursor)
    records = {each.stream_id: Record.of(each.metadata) for each in found}
    for target in targets:
        record = records.get(target.id, Record())
        record.add(transaction.version)
        end = await client.offset_at(target.id, "latest")
        more = end - target.end - rows
        if target.was_begun and more > 0:
            log.warning(
                "%s was begun before and is complete now, and stream %s has %d records more than "
                "its rows: either others have published there, or the rows of an earlier attempt "
                "came in another order or in other partitions, and some are stored twice",
                transaction,
                target.name,
                more,
            )
        await _note(client, transaction, target, end, record)


async def _note(
    client: AsyncClient, transaction: Transaction, target: Target, end: int, record: Record
) -> None:
    """**safety** All rows are stored, noted or not. So a failure is a warning."""
    try:
        await client.commit_cursor(transaction.cursor, target.id, end, metadata=str(record))
    except JetstreamError as error:
        what_to_do = (
            f"; allow `read` on the stream and `commit` for cursor {transaction.cursor}"
            if isinstance(error, PermissionDeniedError)
            else ""
        )
        log.warning(
            "%s cannot be noted in stream %s, so rows of a second write of it are recognised only "
            "in the same partitions: %s%s",
            transaction,
            target.name,
            error.message,
            what_to_do,
        )
