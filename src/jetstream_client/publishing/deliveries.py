"""The deliveries that a publisher returns: futures of records and of batches, light enough for
millions.

A future for each record would cost more than everything else in publishing it. So each batch has
one, and a record's delivery is its place in the batch.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar, overload

from jetstream_client._forks import check_process
from jetstream_client.publishing.ack import Ack, PublishResult
from jetstream_client.publishing.outcome import Outcome
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_protocol.errors import InvalidRequestError

_T = TypeVar("_T")


def _calls(call: Callable[..., object], *arguments: object) -> None:
    """Call a function of the program. What it raises is logged by the future, but for `sys.exit`,
    and so is that: it would end the client's thread, and leave the later batches without an
    outcome."""
    try:
        call(*arguments)
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise RuntimeError(f"a delivery's callback raised {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class BatchResult:
    """`count` records are stored in each stream of `acks`, from the offset of its ack on.

    Where NATS took the batch only in parts, records of other publishers may lie between them; then
    `offsets` knows where.
    """

    subject: str
    count: int
    acks: tuple[Ack, ...]
    _runs: tuple[tuple[str, range], ...] = ()

    @property
    def stream(self) -> str:
        """The first stream that acknowledged, nearly always the only one."""
        return self.acks[0].stream

    @property
    def streams(self) -> Sequence[str]:
        """The stream of each of `offsets`. With `acks="any"` they may differ where NATS took the
        batch only in parts: each part is where it was acknowledged first."""
        if len(self._runs) > 1:
            return [stream for stream, offsets in self._runs for _ in offsets]
        return [self.stream] * self.count

    @property
    def offset(self) -> int:
        """The offset of the first record, in `stream`."""
        return self.acks[0].offset

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record, in order; mostly a range."""
        if len(self._runs) > 1:
            return list(chain.from_iterable(offsets for _, offsets in self._runs))
        return range(self.offset, self.offset + self.count)

    @property
    def duplicate(self) -> bool:
        """Whether `stream` had the batch already, from an attempt whose answer was lost."""
        return self.acks[0].duplicate


@dataclass(frozen=True, slots=True)
class ManyResult:
    """Every record is stored. Records of other publishers may lie between its batches.

    rows: for each part, the positions that its records had in the call; None: they are in the order
    of the call, all in one stream.
    """

    parts: tuple[BatchResult, ...]
    rows: tuple[Sequence[int], ...] | None = None

    @property
    def count(self) -> int:
        """How many records were stored."""
        return sum(part.count for part in self.parts)

    @property
    def offset(self) -> int:
        """The offset of the first record; -1 if there was none."""
        return self.offsets[0] if self.parts else -1

    @property
    def offsets(self) -> list[int]:
        """The offset of each record, in the order of the call; in a keyed group, each in its own
        stream."""
        return self._in_order([offset for part in self.parts for offset in part.offsets])

    @property
    def streams(self) -> list[str]:
        """The stream of each record, in the order of the call."""
        return self._in_order([stream for part in self.parts for stream in part.streams])

    def _in_order(self, found: list[_T]) -> list[_T]:
        if self.rows is None:
            return found
        ordered = list(found)
        for row, item in zip(chain.from_iterable(self.rows), found, strict=True):
            ordered[row] = item
        return ordered


class _Delivery(ABC, Generic[_T]):
    """The outcome of records that were added. `await` it in coroutines; elsewhere call `result()`.
    It cannot be cancelled."""

    __slots__ = ("_batch", "_start", "_subject")

    def __init__(self, batch: Batch, subject: str, start: int) -> None:
        self._batch = batch
        self._subject = subject
        self._start = start

    def __repr__(self) -> str:
        """Does not wait, nor count as having seen a failure."""
        state: object = "not acknowledged yet"
        if self.done():
            error = self._batch.future.exception()
            state = f"{type(error).__name__}: {error}" if error else self._result()
        return f"<{type(self).__name__} to {self._subject!r}: {state}>"

    @abstractmethod
    def _result(self) -> _T:
        """The result of its own records, once the batch is stored."""

    def done(self) -> bool:
        """Whether the outcome is known. Does not wait."""
        return self._batch.future.done()

    def hurry(self) -> None:
        """Send its batch without lingering. Waiting for the outcome does this by itself."""
        if not self._batch.future.done():
            self._batch.hurry(self._batch)

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the outcome, at most `timeout` seconds, and return it. Raises TimeoutError if it
        does not come in time, or the error with which the batch failed; InvalidRequestError in the
        client's own thread, before there is one."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # It is every record's: none is to add to it.
        return self._result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does. Returns the error with which the batch failed, or None if it is
        stored."""
        error = self._outcome(timeout)
        self._batch.is_seen = True  # Last: before, a signal handler may raise at any line.
        return error

    def _outcome(self, timeout: float | None) -> BaseException | None:
        batch, waits = self._batch, threading.Lock()
        if timeout != 0 and not self.done():
            check_process(batch.process)
            if batch.thread == threading.get_ident():
                raise InvalidRequestError(
                    "the thread that sends the record would wait for itself: await the delivery"
                )
        try:
            batch.ask(waits)
            with waits:
                self.hurry()
                return batch.future.exception(timeout)
        finally:
            batch.give_up(waits)

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Call `call(self)` once the outcome is known, in the client's own thread: it must not wait
        there. What it raises is logged."""
        self._batch.future.add_done_callback(lambda _: _calls(call, self))
        self._batch.is_seen = True

    def watch(self, call: Callable[[_T | None, BaseException | None], object]) -> None:
        """Call it with the result or the error once the outcome is known, like `add_done_callback`.
        But a failure that only a watcher knows of counts as unseen: `flush` still raises it."""

        def done(future: Outcome[tuple[Ack, ...]]) -> None:
            error = future.exception()
            _calls(call, None if error else self._result(), error)

        self._batch.future.add_done_callback(done)

    def __await__(self) -> Generator[Any, None, _T]:
        batch, waits = self._batch, threading.Lock()
        if not batch.future.done():
            self.hurry()
            try:
                batch.ask(waits)
                with waits:
                    yield from batch.future.awaited().__await__()
            finally:
                batch.give_up(waits)
        error = batch.future.exception()
        batch.is_seen = True
        if error is not None:
            raise error.with_traceback(None)
        return self._result()


class Delivery(_Delivery[PublishResult]):
    """The future of one record."""

    __slots__ = ()

    def _result(self) -> PublishResult:
        return PublishResult.of(self._subject, self._batch.acks_from(self._start))


class BatchDelivery(_Delivery[BatchResult]):
    """The future of records that travel in one batch."""

    __slots__ = ("_count",)

    def __init__(self, batch: Batch, subject: str, start: int, count: int) -> None:
        super().__init__(batch, subject, start)
        self._count = count

    def _result(self) -> BatchResult:
        batch, start = self._batch, self._start
        runs = tuple(batch.runs(start, self._count)) if batch.is_split else ()
        return BatchResult(self._subject, self._count, batch.acks_from(start), runs)


class ManyDelivery(Sequence[BatchDelivery]):
    """The outcome of one `publish_many`, of one or more batches; `result` and `await` wait for all
    of them."""

    __slots__ = ("_parts", "_rows")

    def __init__(
        self, parts: Sequence[BatchDelivery], rows: Sequence[Sequence[int]] | None = None
    ) -> None:
        """rows: see ManyResult."""
        self._parts = tuple(parts)
        self._rows = None if rows is None else tuple(rows)

    def __repr__(self) -> str:
        state = "all known" if self.done() else "not all acknowledged yet"
        return f"<ManyDelivery of {len(self)} batches: {state}>"

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> BatchDelivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchDelivery]: ...
    def __getitem__(self, index: int | slice) -> BatchDelivery | Sequence[BatchDelivery]:
        return self._parts[index]

    def done(self) -> bool:
        """Whether the outcome of every batch is known. Does not wait."""
        return all(part.done() for part in self._parts)

    def result(self, timeout: float | None = None) -> ManyResult:
        """Wait for all, at most `timeout` seconds for each. Raises the first failure."""
        self._hurry()
        return ManyResult(tuple(part.result(timeout) for part in self._parts), self._rows)

    def _hurry(self) -> None:
        for part in self._parts if self._rows is not None else self._parts[-1:]:
            part.hurry()  # In one stream those before the last are full, and sealed.

    def __await__(self) -> Generator[Any, None, ManyResult]:
        self._hurry()
        results = []
        for part in self._parts:
            results.append((yield from part.__await__()))
        return ManyResult(tuple(results), self._rows)
