"""The batched publisher of programs without asyncio; any thread may use it.

Records go into the `Buffer` from the caller's own thread, so a `send` costs no hand-over between
threads; the sender is woken once for each batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from jetstream_client._batching import ends_of
from jetstream_client._deliveries import BatchDelivery, Delivery, ManyDelivery
from jetstream_client._headers import HeadersLike
from jetstream_client._loop_thread import LoopThread
from jetstream_client._publisher import AsyncPublisher
from jetstream_client._records import columns_of, record_of
from jetstream_client._sender import no_room
from jetstream_client._types import Payload
from jetstream_protocol.errors import InvalidRequestError, JetstreamError

if TYPE_CHECKING:
    from typing import Self

_T = TypeVar("_T")


class Publisher:
    """See AsyncClient.publisher. Thread-safe; `with` ends it when all is acknowledged."""

    def __init__(self, thread: LoopThread, publisher: AsyncPublisher) -> None:
        self._thread = thread
        self._publisher = publisher
        self._buffer = publisher.sender.buffer
        self._process = os.getpid()
        self.subject = publisher.subject

    def send(
        self,
        value: Payload | None,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """See AsyncPublisher.send. Blocks only while there is no room."""
        self._check_process()
        record = record_of(value, key, headers)
        found = self._buffer.put(*record) or self._patiently(partial(self._buffer.put, *record))
        return Delivery(found[0], self.subject, found[1])

    def publish_many(
        self,
        values: Sequence[Payload | None],
        keys: Sequence[Payload | None] | None = None,
    ) -> ManyDelivery:
        """See AsyncPublisher.publish_many."""
        self._check_process()
        values, keys = columns_of(values, keys)
        ends = ends_of(values, keys)
        self._buffer.check(ends)
        parts: list[BatchDelivery] = []
        start = 0
        while start < len(values):
            batch, place, stop = self._patiently(
                partial(self._buffer.put_many, values, keys, ends, start)
            )
            parts.append(BatchDelivery(batch, self.subject, place, stop - start))
            start = stop
        return ManyDelivery(parts)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidRequestError(
                "this publisher was made in another process, of which this one is a fork: start "
                "processes by multiprocessing's 'spawn', and make a client and a publisher there"
            )

    def _patiently(self, put: Callable[[], _T | None]) -> _T:
        """What `put` returns once there is room. Raises UnavailableError."""
        timeout = self._publisher.options.delivery_timeout
        while True:
            seen = self._buffer.releases
            found = put()
            if found is not None:
                return found
            if not self._buffer.wait_for_release(seen, timeout):
                raise no_room(timeout)

    @property
    def buffered_bytes(self) -> int:
        """See AsyncPublisher.buffered_bytes."""
        return self._publisher.buffered_bytes

    def flush(self) -> None:
        """See AsyncPublisher.flush."""
        self._thread.run(self._publisher.flush())

    def close(self) -> None:
        """`flush`, then take nothing more. Idempotent."""
        if self._thread.is_running:
            self._thread.run(self._publisher.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except JetstreamError:
            if error is None:
                raise
