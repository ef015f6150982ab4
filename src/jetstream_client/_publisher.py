"""Batched publishing: `client.publisher("orders.eu")`, many records in one NATS message.

Callers put records into a `Buffer` from any thread; one task on the client's event loop takes
batches out of it, encodes them, sends what the `Lane` says and gives it the answers. Encoding is
the only work per record here, and it is a handful of calls a batch.

A batch is an envelope (docs/protocol.md, "Envelopes") with an ack inbox. It has a NATS reply as
well unless a stream of the subject has `acks: envelope`: NATS then says at once when nobody
listens, while a request-reply service on the subject must not take the batch for a request.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from jetstream_client._batching import RECORD_BYTES, Batch, Buffer, ends_of
from jetstream_client._deliveries import BatchDelivery, Delivery, ManyDelivery
from jetstream_client._feeds import Feeds
from jetstream_client._headers import HeadersLike, outgoing
from jetstream_client._lane import Done, Lane, Sending
from jetstream_client._loop_thread import LoopThread
from jetstream_client._publish import PlainPublisher
from jetstream_protocol import envelope
from jetstream_protocol.batch import HEADER_BYTES, Flags
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NoStreamError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing import Self

Compression = Literal["zstd", "lz4"]

BATCH_BYTES = 256 * 1024
"""Large enough that what is done per batch does not matter, small enough for NATS's own limits."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Half of what a server accepts uncompressed; NATS rarely takes more than 1 MiB anyway."""
BUFFER_BYTES = 32 * 1024 * 1024
LINGER_SECONDS = 0.005
DELIVERY_SECONDS = 60.0

_MARGIN_BYTES = 1024
"""For a batch's envelope and columns, and for what incompressible bytes gain when compressed."""

_FEED_SECONDS = 5.0
"""How often the registry is asked whether other streams listen on the subject now."""

_STALE_SECONDS = 0.2
"""How soon it is asked when a stream has answered that we do not know."""

_FAILED_MAX = 100
"""Remembered for `flush`, which raises the first that nobody has asked."""

_SERVER_HEADER = re.compile(
    r"Jetstream-.*|Nats-(?:Msg-Id|TTL|Rollup|Incr|Expected-.*|Schedule.*|Batch-.*)"
)

_COMPRESSIONS = {None: 0, "zstd": int(Flags.ZSTD), "lz4": int(Flags.LZ4)}


class AsyncPublisher:
    """See AsyncClient.publisher. `async with` begins it, and ends it when all is acknowledged."""

    def __init__(
        self,
        plain: PlainPublisher,
        feeds: Feeds,
        subject: str,
        *,
        linger: float = LINGER_SECONDS,
        max_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        compression: Compression | None = None,
        acks: str | Sequence[str] = "all",
        delivery_timeout: float = DELIVERY_SECONDS,
        producer_id: int | None = None,
        first_sequence: int = 0,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise InvalidRequestError(f"invalid compression {compression!r}: say 'zstd' or 'lz4'")
        if linger < 0 or delivery_timeout <= 0:
            raise InvalidRequestError("linger is not negative, delivery_timeout positive")
        if not 0 < max_bytes <= BATCH_BYTES_MAX or buffer_bytes < max_bytes:
            raise InvalidRequestError(
                f"max_bytes is between 1 and {BATCH_BYTES_MAX}, buffer_bytes at least max_bytes"
            )
        if not 0 <= (producer_id or 0) < 2**63 or not 0 <= first_sequence < 2**31:
            raise InvalidRequestError("a producer id has 63 bits, a sequence 31")
        self.subject = subject
        self._plain = plain
        self._feeds = feeds
        self._compression = _COMPRESSIONS[compression]
        self._acks = acks
        self.delivery_timeout = delivery_timeout
        self._producer = producer_id, first_sequence
        self._sizes = max_bytes, buffer_bytes
        self._linger = linger
        self._beginning: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._failed: list[Batch] = []
        self._key = ""
        self._room: list[asyncio.Future[None]] = []
        self._closing = False

    # Beginning.

    async def begin(self) -> None:
        """Look for the streams and connect. Idempotent. Raises NoStreamError."""
        if self._task is None:
            if self._beginning is None or self._beginning.done():
                self._beginning = asyncio.get_running_loop().create_task(self._begin())
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        feed = await self._feeds.ask(self.subject)
        expected = feed.wanted_of_batches(self.subject, self._acks)
        inbox = await self._plain.connected()
        max_bytes, buffer_bytes = self._sizes
        fits = inbox.max_payload - HEADER_BYTES - _MARGIN_BYTES - len(self.subject)
        self._wanted = asyncio.Event()
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self.buffer = Buffer(
            batch_bytes=min(max_bytes, fits),
            buffer_bytes=buffer_bytes,
            linger=self._linger,
            delivery_timeout=self.delivery_timeout,
            clock=loop.time,
            wake=self._wake,
        )
        fixed, sequence = self._producer
        self._lane = Lane(
            expected,
            one_is_enough=self._acks == "any",
            producer_id=secrets.randbits(63) if fixed is None else fixed,
            sequence=sequence,
            new_id=(lambda: secrets.randbits(63)) if fixed is None else None,
        )
        self._feed = feed
        self._lane.known = feed.names
        self._feed_asked = loop.time()
        self._key = self._plain.listen(self._on_answer, self._on_refusal)
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._stopped)

    # Publishing.

    async def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """Hand over one record, in order; waits only for room. The delivery is its future.

        value: None is a tombstone. key: any bytes. Headers that ask the server for something
        (Nats-Msg-Id, Jetstream-…) cannot travel in a batch: InvalidRequestError; `publish` has
        arguments for them. Raises UnavailableError when there is no room within the timeout.
        """
        if self._task is None:
            await self.begin()
        record = record_of(value, key, headers)
        while (found := self.put(*record)) is None:
            await self._wait_for_room()
        return Delivery(found[0], self.subject, found[1])

    async def publish_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
    ) -> ManyDelivery:
        """Hand over many records at once, in order: nothing is done for each of them in Python."""
        if self._task is None:
            await self.begin()
        ends = self.ends(values, keys)
        parts: list[BatchDelivery] = []
        start = 0
        while start < len(values):
            found = self.buffer.put_many(values, keys, ends, start)
            if found is None:
                await self._wait_for_room()
                continue
            batch, place, stop = found
            parts.append(BatchDelivery(batch, self.subject, place, stop - start))
            start = stop
        return ManyDelivery(parts)

    def put(self, value: bytes | None, key: bytes | None, block: bytes) -> tuple[Batch, int] | None:
        """See Buffer.put. Raises MessageTooLargeError for what no batch can hold."""
        size = len(value or b"") + len(key or b"") + len(block) + RECORD_BYTES
        if size > self.buffer.batch_bytes:
            self._refuse(size)
        return self.buffer.put(value, key, block)

    def ends(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> list[int]:
        """See ends_of; checks that each record fits into a batch."""
        ends = ends_of(values, keys)
        largest = max(map(int.__sub__, ends, [0, *ends[:-1]]), default=0)
        if largest > self.buffer.batch_bytes:
            self._refuse(largest)
        return ends

    def _refuse(self, size: int) -> None:
        raise MessageTooLargeError(
            f"a record of {size} bytes is more than a batch may hold: {self.buffer.batch_bytes}"
        )

    async def _wait_for_room(self) -> None:
        turn = self._loop.create_future()
        self._room.append(turn)
        try:
            async with asyncio.timeout(self.delivery_timeout):
                await turn
        except TimeoutError as error:
            raise _no_room(self.delivery_timeout) from error

    @property
    def buffered_bytes(self) -> int:
        """What waits and is in flight; never more than `buffer_bytes`, but for one record."""
        return 0 if self._task is None else self.buffer.buffered

    async def flush(self) -> None:
        """Send without lingering, and wait until everything handed over before is done.

        Raises the first failure whose delivery nobody has asked: errors are never lost.
        """
        if self._task is None:
            return
        self.buffer.seal()
        batches = [*self._lane.batches, *self.buffer.sealed()]
        if batches:
            await asyncio.wait([asyncio.wrap_future(batch.future) for batch in batches])
        failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.asked:
                batch.future.result()

    async def aclose(self) -> None:
        """`flush`, then take nothing more. Idempotent."""
        if self._task is None or self._closing:
            return
        self._closing = True
        try:
            await self.flush()
        finally:
            await self.abort(InvalidRequestError("the publisher is closed"))

    async def abort(self, error: JetstreamError) -> None:
        """End at once: what is not stored gets `error`, what may be is unknown. Idempotent."""
        self._closing = True
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        if self._task is None:
            return
        tasks = [task for task in (self._task, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end(error)
        self._plain.forget(self._key)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except JetstreamError:
            if error is None:
                raise

    # The sender: everything below runs on the event loop.

    def _wake(self) -> None:
        """From any thread, with the buffer locked."""
        if threading.get_ident() == self._loop_thread:
            self._wanted.set()
        else:
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def _run(self) -> None:
        while True:
            now = self._loop.time()
            self._settle(self._lane.expire(now))
            self._settle([Done(batch, _never_sent()) for batch in self.buffer.expired(now)])
            while self._lane.has_room and (batch := self.buffer.take(now)) is not None:
                self._lane.add(batch)
            for sending in self._lane.due(now):
                if self._lane.wants(sending):
                    await self._send(sending)
            if self._lane.failure is not None:
                return
            self._look_for_streams(now)
            await self._wait()

    async def _wait(self) -> None:
        """Until there is something to do: an answer, a record, a moment."""
        looking = self._looking is not None and not self._looking.done()
        moments = [self._lane.next_time(), None if looking else self._next_look()]
        if self._lane.has_room:
            moments.append(self.buffer.next_time())
        soonest = min((moment for moment in moments if moment is not None), default=None)
        if soonest is None:
            await self._wanted.wait()
        elif soonest > self._loop.time():
            timer = self._loop.call_at(soonest, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
        else:
            await asyncio.sleep(0)
        self._wanted.clear()

    async def _send(self, sending: Sending) -> None:
        batch = sending.batch
        try:
            encoded = batch.encode(self.subject.encode(), self._compression)
            encoded.set_producer(sending.producer_id, sending.sequence)
            inbox = await self._plain.connected()
            token = f"{self._key}{sending.token}"
            ack_inbox = (inbox.prefix + token).encode()
            payload = envelope.encode_batch(encoded, ack_inbox=ack_inbox)
            await inbox.publish(self.subject, payload, "" if self._feed.services else token, [])
        except JetstreamError as error:
            self._settle(
                self._lane.not_sent(sending.token, error, self._loop.time(), random.random())
            )

    def _on_answer(self, token: str, payload: bytes | None) -> None:
        now, chance = self._loop.time(), random.random()
        if payload is None:
            nobody = UnavailableError("no stream listens at the moment")
            self._settle(self._lane.not_sent(token, nobody, now, chance))
            self._feed_asked = min(self._feed_asked, now - _FEED_SECONDS + _STALE_SECONDS)
        else:
            self._settle(self._lane.answered(token, payload, now, chance))
        self._wanted.set()

    def _on_refusal(self, subject: str, error: JetstreamError) -> None:
        """NATS forbids the subject; everything else is cured by time, or not at all."""
        if subject and subject == self.subject.lower():
            self._end(error)
            self._wanted.set()

    def _look_for_streams(self, now: float) -> None:
        """Ask the registry now and then, and when somebody unexpected answers.

        Beside the sending: while no server answers, deadlines pass all the same.
        """
        due = self._next_look()
        if due is not None and now >= due and (self._looking is None or self._looking.done()):
            self._feed_asked = now
            self._looking = self._loop.create_task(self._adopt_streams())

    def _next_look(self) -> float | None:
        if self._lane.stale:
            return self._feed_asked + _STALE_SECONDS
        return self._feed_asked + _FEED_SECONDS if self._lane.batches else None

    async def _adopt_streams(self) -> None:
        try:
            feed = await self._feeds.ask(self.subject)
            expected = feed.wanted_of_batches(self.subject, self._acks)
        except (NoStreamError, InvalidRequestError) as error:
            self._end(error)
        except JetstreamError:
            # No server answers at the moment; what is in flight has its own deadline.
            return
        else:
            self._feed = feed
            self._lane.known = feed.names
            self._settle(self._lane.adopt(expected))
        self._wanted.set()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """A bug of ours must not leave callers waiting for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._end(InternalError(f"the publisher's sender failed: {error!r}"))

    def _settle(self, finished: Sequence[Done]) -> None:
        failure = self._lane.failure
        if failure is not None:
            # Nothing more is taken before anybody hears of the failure.
            finished = [*finished, *(Done(batch, failure) for batch in self.buffer.end(failure))]
        for batch, error in finished:
            batch.finish(error)
            if error is not None and len(self._failed) < _FAILED_MAX:
                self._failed.append(batch)
            self.buffer.release(batch)
        if finished:
            self._tell()

    def _tell(self) -> None:
        """Whoever waits for room, or for the end, looks again."""
        waiting, self._room = self._room, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _end(self, error: JetstreamError) -> None:
        self._settle(self._lane.end(error))
        self._tell()


def record_of(
    value: bytes | str | None, key: bytes | str | None, headers: HeadersLike | None
) -> tuple[bytes | None, bytes | None, bytes]:
    """Value, key and header block. Raises InvalidRequestError."""
    if value is not None and type(value) is not bytes:
        value = value.encode() if isinstance(value, str) else bytes(value)
    if key is not None and type(key) is not bytes:
        key = key.encode() if isinstance(key, str) else bytes(key)
    return value, key, _block_of(headers) if headers else b""


def _block_of(headers: HeadersLike) -> bytes:
    """As NATS writes it. What asks the server for something is refused with its whole batch."""
    pairs = outgoing(headers)
    for name, _ in pairs:
        if _SERVER_HEADER.fullmatch(name):
            raise InvalidRequestError(
                f"header {name!r} speaks to the server and cannot travel in a batch: use publish()"
            )
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _no_room(timeout: float) -> UnavailableError:
    return UnavailableError(f"the publisher's buffer is full, and has been for {timeout:g} s")


def _never_sent() -> UnavailableError:
    return UnavailableError("the batch waited too long for those before it and was never sent")


class Publisher:
    """See AsyncClient.publisher. Thread-safe; `with` ends it when all is acknowledged."""

    def __init__(self, thread: LoopThread, publisher: AsyncPublisher) -> None:
        self._thread = thread
        self._publisher = publisher
        self._process = os.getpid()
        self.subject = publisher.subject

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
    ) -> Delivery:
        """See AsyncPublisher.send. Blocks only while there is no room."""
        self._check_process()
        record = record_of(value, key, headers)
        while (found := self._publisher.put(*record)) is None:
            self._wait_for_room()
        return Delivery(found[0], self.subject, found[1])

    def publish_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
    ) -> ManyDelivery:
        """See AsyncPublisher.publish_many."""
        self._check_process()
        ends = self._publisher.ends(values, keys)
        parts: list[BatchDelivery] = []
        start = 0
        while start < len(values):
            found = self._publisher.buffer.put_many(values, keys, ends, start)
            if found is None:
                self._wait_for_room()
                continue
            batch, place, stop = found
            parts.append(BatchDelivery(batch, self.subject, place, stop - start))
            start = stop
        return ManyDelivery(parts)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidRequestError(
                "this publisher was made in another process, of which this one is a fork: make a "
                "client and a publisher in the child"
            )

    def _wait_for_room(self) -> None:
        timeout = self._publisher.delivery_timeout
        if not self._publisher.buffer.wait_for_room(timeout):
            raise _no_room(timeout)

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
