"""Reading a stream of NATS JetStream: sequences, times, subjects, header blocks byte for byte.

It reads with an ephemeral pull consumer without acknowledgements, which JetStream removes itself.
That consumer numbers its deliveries. So a lost message is noticed, and another consumer fetches it
again. **safety** Reading ends only when the consumer says that nothing is left: an answer without
messages alone does not say so, because JetStream ends requests for many reasons. A sequence is an
offset + 1, as in every ack.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetstream_client._loop_thread import LoopThread
from jetstream_client.migration.records import Records
from jetstream_client.transport.nats import login_of, without_secrets
from jetstream_client.values.config import NatsOptions
from jetstream_client.values.headers import Headers
from jetstream_protocol import bounded_json, header_names
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NotFoundError,
    UnavailableError,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg

    from jetstream_client.transport.nats_socket import NatsSocket

BATCH = 2_000
BATCH_BYTES = 8 * 1024 * 1024
"""More than the largest record that a stream can take."""
REQUEST_SECONDS = 10.0
_NAME = re.compile(r"[^\s.*>/\\]{1,255}")
_IDLE_NS = 300 * 10**9
_ATTEMPTS = 5
_NO_STREAM = 10059
_NO_CONSUMER = 10014
_NS = 10**9


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What JetStream says of a stream. Settings in seconds and bytes; 0: unlimited. retention:
    limits, interest or workqueue. created: when, as JetStream writes it."""

    name: str
    subjects: tuple[str, ...]
    first_sequence: int
    last_sequence: int
    messages: int
    max_age: float
    max_bytes: int
    max_messages: int
    duplicate_window: float
    retention: str
    created: str


@dataclass(frozen=True, slots=True)
class _Delivered:
    sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    message: Any


@dataclass(frozen=True, slots=True)
class _ConsumerState:
    """delivered: the number of its last delivery. pending: messages that are left."""

    delivered: int
    pending: int


class NatsStream:
    """`with NatsStream(…) as source`: `info` and `records`. Blocks.

    Raises NotFoundError if there is no such stream, UnavailableError.
    """

    def __init__(self, urls: Sequence[str], options: NatsOptions, name: str) -> None:
        if not (_NAME.fullmatch(name) and name.isprintable()):
            raise InvalidRequestError(
                f"JetStream has no stream {name[:300]!r}: no name is like that"
            )
        self.name = name
        self._urls = urls
        self._options = options
        self._thread = LoopThread()
        self._client: NatsClient | None = None
        self._socket: NatsSocket | None = None
        self._queue: asyncio.Queue[Msg] = asyncio.Queue()
        self._inbox = ""
        self._requests = 0
        self._consumer = ""

    def __enter__(self) -> NatsStream:
        try:
            self._thread.run(self._connect())
        except BaseException:
            self._thread.close()  # `__exit__` is not called.
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.run(self._close())
        finally:
            self._thread.close()

    def info(self) -> StreamInfo:
        return self._thread.run(self._info())

    def records(self, start: int, stop: int | None, *, wait: float = 0.0) -> Iterator[Records]:
        """Yields messages with offsets from `start` on, before the offset `stop`. With None it does
        not end: if nothing comes for `wait` seconds, it yields columns without records."""
        offset, has_consumer, sequence, fruitless = start, False, 0, 0
        while stop is None or offset < stop:
            if fruitless == _ATTEMPTS:
                raise self._silence_error()
            if not has_consumer:
                self._thread.run(self._make_consumer(offset + 1))
                has_consumer, sequence = True, 0
            delivered = self._thread.run(self._next(offset, wait))
            whole = _without_loss(delivered, sequence)
            if len(whole) < len(delivered):
                has_consumer = False
            fruitless = 0 if whole else fruitless + 1
            if whole:
                sequence = whole[-1].consumer_sequence
                wanted = [each for each in whole if stop is None or each.sequence <= stop]
                if wanted:
                    yield _records(wanted)
                offset = whole[-1].sequence
            is_at_end = has_consumer and bool(whole) and not whole[-1].pending
            if not delivered:
                state = self._thread.run(self._state())
                has_consumer = state is not None and state.delivered == sequence
                is_at_end = has_consumer and state is not None and not state.pending
            if is_at_end:
                fruitless = 0
                if stop is not None:
                    return
            if stop is None and not whole:
                yield _records([])

    async def _connect(self) -> None:
        from jetstream_client.transport.nats_socket import NatsSocket, close

        self._options.check_files()
        servers, options = login_of(self._urls, self._options)
        client, socket = _client_class()(), NatsSocket()
        if not servers[0].startswith("ws"):
            client._transport = socket
        try:
            await self._connect_to(servers, options, client)
            self._inbox = client.new_inbox()
            await client.subscribe(
                f"{self._inbox}.*",
                cb=self._queue.put,
                pending_msgs_limit=-1,
                pending_bytes_limit=-1,
            )
        except BaseException:
            await close(client, socket)
            raise
        self._client, self._socket = client, socket

    async def _connect_to(
        self, servers: list[str], options: NatsOptions, client: NatsClient
    ) -> None:
        from nats import errors

        last: list[Exception] = []

        async def failed(error: Exception) -> None:
            last.append(error)

        try:
            await client.connect(
                servers=servers,
                error_cb=failed,
                name="jetstream-import",
                connect_timeout=2,
                max_reconnect_attempts=_ATTEMPTS,
                reconnect_time_wait=1,
                tls=options.ssl_context(),
                user=options.user,
                password=options.password,
                token=options.token,
                user_credentials=options.credentials,
                nkeys_seed=options.nkey_seed,
            )
        except (errors.Error, OSError) as error:
            where = ", ".join(map(without_secrets, self._urls))
            why = last[-1] if last else error
            raise UnavailableError(f"cannot connect to NATS at {where}: {why}") from error

    async def _close(self) -> None:
        from jetstream_client.transport.nats_socket import close

        if self._client is not None and self._socket is not None:
            with suppress(JetstreamError):
                await self._drop_consumer()
            await close(self._client, self._socket)

    async def _api(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request to JetStream's API. Raises NotFoundError, UnavailableError."""
        from nats import errors

        assert self._client is not None
        try:
            answer = await self._client.request(
                f"$JS.API.{subject}", json.dumps(request).encode(), timeout=REQUEST_SECONDS
            )
        except errors.NoRespondersError as error:
            raise UnavailableError("JetStream is not enabled there, or not ready") from error
        except (errors.Error, TimeoutError) as error:
            raise UnavailableError(f"JetStream does not answer: {error}") from error
        found: dict[str, Any] = bounded_json.loads(answer.data)
        failure = found.get("error")
        if failure is None:
            return found
        text = f"JetStream refuses: {failure.get('description', failure)}"
        if failure.get("err_code") == _NO_STREAM:
            raise NotFoundError(f"JetStream has no stream {self.name!r}")
        if failure.get("err_code") == _NO_CONSUMER:
            raise NotFoundError(f"JetStream has no consumer {self._consumer!r}")
        raise (UnavailableError if failure.get("code") == 503 else InvalidRequestError)(text)

    async def _info(self) -> StreamInfo:
        found = await self._api(f"STREAM.INFO.{self.name}", {})
        config, state = found["config"], found["state"]
        return StreamInfo(
            name=config["name"],
            subjects=tuple(config.get("subjects") or ()),
            first_sequence=state["first_seq"],
            last_sequence=state["last_seq"],
            messages=state["messages"],
            max_age=config.get("max_age", 0) / _NS,
            max_bytes=max(0, config.get("max_bytes", 0)),
            max_messages=max(0, config.get("max_msgs", 0)),
            duplicate_window=config.get("duplicate_window", 0) / _NS,
            retention=config.get("retention", "limits"),
            created=found.get("created", ""),
        )

    async def _make_consumer(self, sequence: int) -> None:
        await self._drop_consumer()
        while not self._queue.empty():
            self._queue.get_nowait()
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": _IDLE_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        request = {"stream_name": self.name, "config": config}
        self._consumer = (await self._api(f"CONSUMER.CREATE.{self.name}", request))["name"]

    async def _drop_consumer(self) -> None:
        name, self._consumer = self._consumer, ""
        if name:
            with suppress(UnavailableError, InvalidRequestError, NotFoundError):
                await self._api(f"CONSUMER.DELETE.{self.name}.{name}", {})

    async def _state(self) -> _ConsumerState | None:
        """None: JetStream has lost the consumer, as it does when it starts again."""
        try:
            found = await self._api(f"CONSUMER.INFO.{self.name}.{self._consumer}", {})
        except NotFoundError:
            return None
        return _ConsumerState(found["delivered"]["consumer_seq"], found["num_pending"])

    def _silence_error(self) -> UnavailableError:
        return UnavailableError(
            f"JetStream does not send the messages of stream {self.name!r}: try again"
        )

    async def _next(self, after: int, wait: float) -> list[_Delivered]:
        """What one request brings, in the order of delivery. after: the sequence that was read
        last, for an error. Earlier requests may end only now, so each has its own inbox."""
        from nats import errors

        assert self._client is not None
        self._requests += 1
        inbox = f"{self._inbox}.{self._requests}"
        request: dict[str, Any] = {"batch": BATCH, "max_bytes": BATCH_BYTES}
        if wait:
            request["expires"] = round(wait * _NS)
        else:
            request["no_wait"] = True
        try:
            await self._client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{self._consumer}",
                json.dumps(request).encode(),
                inbox,
            )
        except errors.Error as error:
            raise UnavailableError(f"the connection to NATS is lost: {error}") from error
        delivered: list[_Delivered] = []
        try:
            async with asyncio.timeout(wait + REQUEST_SECONDS):
                while len(delivered) < BATCH:
                    message = await self._queue.get()
                    if _is_status(message):
                        if message.subject != inbox:
                            continue  # The end of an earlier request.
                        if not delivered and _is_too_large(message):
                            raise MessageTooLargeError(
                                f"the next message after sequence {after} has more than "
                                f"{BATCH_BYTES} bytes"
                            )
                        break
                    delivered.append(_delivered(message))
                    if wait and self._queue.empty() and not delivered[-1].pending:
                        break  # What comes next comes with the same request, or the next one.
        except TimeoutError as error:
            raise self._silence_error() from error
        return delivered


def _client_class() -> type[NatsClient]:
    """nats-py's client, which keeps header blocks as they came: its own parser joins names, and
    forgets order and spelling."""
    from nats.aio.client import Client as NatsClient

    class RawHeadersClient(NatsClient):
        async def _process_headers(self, headers: bytes) -> RawHeaders | None:
            if not headers:
                return None
            return RawHeaders(bytes(headers))

    return RawHeadersClient


class RawHeaders(dict[str, str]):
    """Headers as nats-py wants them, and the block."""

    def __init__(self, block: bytes) -> None:
        status = block.partition(b"\r\n")[0].removeprefix(b"NATS/1.0").strip()
        super().__init__({"Status": status.decode(errors="replace")} if status else {})
        self.block = block


def _is_status(message: Msg) -> bool:
    """Whether it ends a request: nothing there, expired, or too many bytes for this one."""
    return bool(message.headers and "Status" in message.headers) and not message.reply


def _is_too_large(status: Msg) -> bool:
    return "exceeds maxbytes" in (status.headers or {}).get("Status", "").lower()


def _block(message: Msg) -> bytes:
    if message.headers is None:
        return b""
    if not isinstance(message.headers, RawHeaders):
        raise InternalError("this version of nats-py hides header blocks: please report it")
    return message.headers.block


def _delivered(message: Msg) -> _Delivered:
    """By the reply subject: $JS.ACK, stream, consumer, how often, sequence, the consumer's
    sequence, time, how many are left; in its longer form domain and account before the stream."""
    tokens = message.reply.split(".")
    if len(tokens) < 9 or tokens[:2] != ["$JS", "ACK"]:
        raise InvalidRequestError(f"JetStream delivers a message with reply {message.reply!r}")
    at = 2 if len(tokens) == 9 else 4
    sequence, consumer_sequence, timestamp, pending = map(int, tokens[at + 3 : at + 7])
    return _Delivered(sequence, consumer_sequence, timestamp, pending, message)


def _without_loss(delivered: list[_Delivered], sequence: int) -> list[_Delivered]:
    """Those before the first that is missing; sequence: of the one before, by the consumer."""
    for at, each in enumerate(delivered):
        if each.consumer_sequence != sequence + 1 + at:
            return delivered[:at]
    return delivered


def _records(delivered: Sequence[_Delivered]) -> Records:
    blocks = [_block(each.message) for each in delivered]
    keys, values = [], []
    for each, block in zip(delivered, blocks, strict=True):
        headers = Headers(block) if b"Jetstream-" in block else {}
        key = headers.get(header_names.KEY)
        keys.append(None if key is None else key.encode("utf-8", "surrogateescape"))
        is_tombstone = headers.get(header_names.TOMBSTONE) == "true" and not each.message.data
        values.append(None if is_tombstone else each.message.data)
    return Records(
        [each.sequence - 1 for each in delivered],
        [each.timestamp_ns // 1000 for each in delivered],
        [each.message.subject.encode() for each in delivered],
        keys,
        values,
        blocks,
    )
