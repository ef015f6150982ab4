"""Reads a range of offsets as Arrow record batches, on an executor.

Raw batches arrive over the data plane, are checked, and stay columns. The JVM gets record batches
of about `ROWS` rows, because it is slow with many small ones. Python never handles single rows.

With failOnDataLoss every record of the range is delivered, or the read fails. Without it, missing
records are skipped with a warning: offsets that retention has removed, streams that were deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from jetstream_client import (
    ClientConfig,
    DivergedError,
    JetstreamError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
)
from pyspark_jetstream.clients import client_for
from pyspark_jetstream.errors import LOAD_ANEW, DataLossError, explained, log, naming, one_line
from pyspark_jetstream.filters import SubjectMatches
from pyspark_jetstream.headers import parsed_headers
from pyspark_jetstream.options import ReadFrom, ReadOptions
from pyspark_jetstream.planning import BEHIND_SECONDS, RETRY_SECONDS
from pyspark_jetstream.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from jetstream_client import Client, Messages
    from pyspark_jetstream.typed import Typed

ROWS = 10_000
"""Rows of a record batch: fewer cost the JVM time for each batch, more bring no gain."""


@dataclass(frozen=True)
class Scan:
    """What all tasks of a read have in common. Pickled into tasks.

    after_loss: advice when records are gone, as the end of an error.
    """

    config: ClientConfig
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    read_from: ReadFrom = "any"
    wanted: SubjectMatches | None = None
    after_loss: str = LOAD_ANEW
    typed: Typed | None = None

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType | None = None) -> Scan:
        """schema: the columns that Spark wants; None: those that every stream has."""
        subjects = options.selection.subjects
        return cls(
            options.config,
            options.columns,
            options.fail_on_data_loss,
            options.read_from,
            SubjectMatches(subjects) if subjects else None,
            typed=_typed(options, schema),
        )

    def read(self, parts: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        """Record batches of `schema.read_schema`. Closing the generator ends the fetching."""
        columns = self.columns
        if self.wanted is not None and "subject" not in columns:
            columns = ("subject", *columns)
        with explained(",".join(self.config.servers)):
            for part in parts:
                with naming({part.stream_id: part.name}):
                    for messages in self._messages(part):
                        for batch in self._batches(part, messages, columns):
                            yield self._finished(batch)

    def _batches(
        self, part: Range, messages: Messages, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        if self.typed is None:
            return messages.iter_batches(ROWS, columns)
        client = client_for(self.config)
        return self.typed.batches(client, part, columns, messages, ROWS)

    def up_to_now(self, parts: Iterable[Range]) -> Iterator[Range]:
        """The ranges, with the current end of the committed records as their ends."""
        client = client_for(self.config)
        for part in parts:
            with explained(",".join(self.config.servers)):
                yield replace(part, stop=max(part.start, self._latest(client, part)))

    def _latest(self, client: Client, part: Range) -> int:
        until = time.monotonic() + BEHIND_SECONDS
        while True:
            try:
                return client.offset_at(part.stream_id, "latest")
            except StreamNotFoundError as error:
                if time.monotonic() >= until:
                    self._lost(f"stream {part.name!r} is gone ({one_line(error)})", error)
                    return part.stop
            time.sleep(RETRY_SECONDS)

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.wanted is not None:
            batch = batch.filter(self.wanted.mask(batch))
            typed = () if self.typed is None else self.typed.names
            batch = batch.select([*self.columns, *typed])
        if "headers" in self.columns:
            blocks = batch.column("headers")
            place = len(self.columns) - 1
            batch = batch.set_column(place, "headers", parsed_headers(blocks))
        return batch

    def _messages(self, part: Range) -> Iterator[Messages]:
        """The runs of records of the range, in order."""
        client = client_for(self.config)
        position, last_epoch = part.start, part.last_epoch
        patient_until = time.monotonic() + self.config.timeout
        unknown_since: float | None = None
        while position < part.stop:
            try:
                consumer = client.consume(
                    part.stream_id,
                    position,
                    stop=part.stop,
                    last_epoch=last_epoch,
                    read_from=self.read_from,
                    patience=self.config.timeout,
                )
                with consumer:
                    for messages in consumer.batches():
                        self._check_end(part, messages)
                        position, last_epoch = messages.next_offset, messages.last_epoch
                        yield messages
                        patient_until = time.monotonic() + self.config.timeout
                        unknown_since = None
                return
            except StreamNotFoundError as error:
                if unknown_since is None:
                    unknown_since = time.monotonic()
                if time.monotonic() < unknown_since + BEHIND_SECONDS:
                    time.sleep(RETRY_SECONDS)
                    continue
                position = self._after_loss(part, position, error)
            except (OffsetOutOfRangeError, DivergedError) as error:
                if _may_pass(error, position) and time.monotonic() < patient_until:
                    time.sleep(RETRY_SECONDS)
                    continue
                position = self._after_loss(part, position, error)
                last_epoch = -1
            except UnavailableError as error:
                if not _is_cut_off(client, part):
                    raise
                self._lost(
                    f"stream {part.name!r} ends before offset {part.stop}, up to which a batch was "
                    f"planned ({one_line(error)}): its log was cut back",
                    error,
                )
                stop = min(part.stop, self._latest(client, part))
                part = replace(part, stop=max(position, stop), stop_epoch=-1)

    def _check_end(self, part: Range, messages: Messages) -> None:
        """Check that the last record is of the history in which the range was planned."""
        if part.stop_epoch in (-1, messages.last_epoch) or messages.next_offset < part.stop:
            return
        if messages[-1].offset == part.stop - 1:
            self._lost(
                f"offset {part.stop - 1} of stream {part.name!r} was of leader epoch "
                f"{part.stop_epoch} when the batch was planned and is of {messages.last_epoch}: "
                "its log was replaced"
            )

    def _after_loss(self, part: Range, position: int, error: JetstreamError) -> int:
        """The offset at which to continue when records at `position` are gone."""
        following = part.stop
        if isinstance(error, DivergedError):
            following = position
        elif isinstance(error, OffsetOutOfRangeError) and error.log_start_offset > position:
            following = min(error.log_start_offset, part.stop)
        self._lost(
            f"records from offset {position} on, of [{part.start}, {part.stop}) of stream "
            f"{part.name!r}, cannot be read any more ({one_line(error)})",
            error,
        )
        return following

    def _lost(self, what: str, error: JetstreamError | None = None) -> None:
        """Raise DataLossError, or log a warning if failOnDataLoss is false."""
        if self.fail_on_data_loss:
            raise DataLossError(f"{what}: {self.after_loss}") from error
        log.warning("%s; going on because failOnDataLoss is false", what)


def _typed(options: ReadOptions, schema: StructType | None) -> Typed | None:
    if not options.typed or schema is None:
        return None
    from pyspark_jetstream.typed import Typed

    return Typed(type(schema)(schema.fields[len(options.columns) :]))


def _is_cut_off(client: Client, part: Range) -> bool:
    """Whether the record before the end of the range certainly is not in the log any more. A
    leader that does not know yet where its records end is no sign of that."""
    try:
        client.fetch(part.stream_id, part.stop, last_epoch=part.stop_epoch, max_messages=1)
    except (DivergedError, OffsetOutOfRangeError):
        return True
    except JetstreamError:
        return False
    return False


def _may_pass(error: JetstreamError, position: int) -> bool:
    """Whether the error may pass: a replica that lags does not know the end of the range yet."""
    return isinstance(error, OffsetOutOfRangeError) and error.log_start_offset <= position
