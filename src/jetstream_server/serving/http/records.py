"""`/v1/streams/STREAM/records`: the records of a stream, for every language that has HTTP.

The node fetches whole batches from the stream's leader in the name of the sender (gateway.py),
decodes them, and writes rows as fast as the client reads. `Accept` chooses the format. A client
that leaves, or reads nothing, ends its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web

from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    PermissionDeniedError,
    StreamNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.record_filter import RecordFilter
from jetstream_protocol.schema import parse
from jetstream_protocol.subjects import check_literal, is_pattern
from jetstream_protocol.typed_rows import BoundedRows, TypedRows
from jetstream_protocol.types import WallUs
from jetstream_server.clocks import WallClock
from jetstream_server.serving.http.answer_room import CLAIM_BYTES, ROOM, claim
from jetstream_server.serving.http.gateway import CALL_SECONDS, Gateway
from jetstream_server.serving.http.guard import Sender, sender_of
from jetstream_server.serving.http.http_requests import (
    flag,
    integer,
    number,
    optional,
    read_body,
    ref_of,
)
from jetstream_server.serving.http.openapi_schemas import FLAG, TEXT, ref, whole
from jetstream_server.serving.http.operations import JSON, Operation, Parameter
from jetstream_server.serving.http.record_bodies import BODY_BYTES_MAX, LINES, batch_of
from jetstream_server.serving.http.record_formats import FORMATS, Columns, Format, gathered
from jetstream_server.serving.http.server import Route, error_response
from jetstream_server.serving.http.start_offsets import ALL, PLACES, Place, StartOffsets

FETCH_BYTES = 256 * 1024
"""What is asked for at a time. The first batch comes whole, even if it is longer."""
HELD_BYTES_MAX = 1024 * 1024
"""Of longer batches none is held by a request that waits for room: there are many of those."""
ROWS_AT_ONCE = 500
WAIT_MS = 15_000
"""How long a fetch waits for records. After that a keep-alive is sent, if the format has one."""
RETRY_SECONDS = 30.0
"""How long an answer that has begun outlives a leader that does not answer."""
PAUSE_SECONDS = 0.2
_RESUMED = Parameter(
    "Last-Event-ID",
    "Server-sent events continue after the record of this offset.",
    whole(),
    "0",
    is_header=True,
)
_READING = (
    Parameter("from", f"Where to begin: {PLACES}; `earliest` by default.", TEXT, "-10"),
    Parameter("limit", "At most so many records.", whole(1), "10"),
    Parameter("filter", "Only records on this subject; `*` and `>` as in NATS.", TEXT, "orders.>"),
    Parameter(
        "follow",
        "Wait for more records. By default the answer ends with what was committed when it began; "
        "server-sent events follow.",
        FLAG,
        "false",
    ),
    Parameter("key", "Only records with this key.", TEXT, "42"),
    Parameter(
        "bytes_max",
        "Of a key, of a value and of the headers at most so many bytes. Then `key_size`, "
        "`value_size` and `headers_size` say how long each is. Not for CSV and Arrow.",
        whole(),
        "65536",
    ),
    Parameter(
        "typed",
        "Each record has its `fields`, by the stream's schema. Not for CSV and Arrow.",
        FLAG,
        "true",
    ),
    Parameter(
        "format",
        "Instead of `Accept`.",
        {"type": "string", "enum": [form.name for form in FORMATS]},
        FORMATS[0].name,
    ),
    _RESUMED,
)
_KNOWN = ", ".join(f"{form.content_type} ({form.name})" for form in FORMATS)
_PUBLISHING = (
    Parameter(
        "subject", "The subject; may be left out if the stream has only one.", TEXT, "orders.eu"
    ),
    Parameter("key", "The key, if the body is one value.", TEXT, "42"),
    Parameter(
        "ack",
        "`all`: answer once all in-sync replicas have the records; `leader`: once the leader has.",
        {"type": "string", "enum": ["all", "leader"], "default": "all"},
        "all",
    ),
    Parameter(
        "Idempotency-Key",
        "Makes the request repeatable: the same records are stored once under a key.",
        TEXT,
        "order-42",
        is_header=True,
    ),
)


@dataclass(frozen=True, slots=True)
class _Query:
    """What a request asks for. limit: how many records at most; None: all. bytes_max: of each part
    of a record; None: all. typed: with the fields of a schema."""

    format: Format
    start: Place
    limit: int | None
    follow: bool
    wanted: RecordFilter | None
    bytes_max: int | None
    typed: bool

    @classmethod
    def of(cls, request: web.Request, form: Format, now_us: WallUs) -> _Query:
        """Raises InvalidRequestError."""
        resumed = request.headers.get("Last-Event-ID", "")
        if resumed and form.follows:
            start = Place(offset=0 if resumed == "-1" else integer("Last-Event-ID", resumed) + 1)
        else:
            start = Place.of("from", request.query.get("from", "earliest"), now_us)
        subject, key = request.query.get("filter", ""), request.query.get("key")
        limit = number(request, "limit", ALL, least=1)
        bytes_max = optional(request, "bytes_max")
        if bytes_max is not None and not form.has_rows:
            raise InvalidRequestError(f"bytes_max is not for {form.name}: it shows whole records")
        typed = flag(request, "typed", False)
        if typed and not form.has_rows:
            raise InvalidRequestError(f"typed is not for {form.name}: it has values as bytes")
        return cls(
            form,
            start,
            None if limit == ALL else limit,
            flag(request, "follow", form.follows),
            RecordFilter(subject, None if key is None else key.encode())
            if subject or key is not None
            else None,
            bytes_max,
            typed,
        )


class RecordsApi:
    """gRPC checks the caller's rights."""

    def __init__(self, gateway: Gateway, wall_clock: WallClock) -> None:
        self._gateway = gateway
        self._wall_clock = wall_clock
        self._starts = StartOffsets(gateway)

    def routes(self) -> list[Route]:
        path = "/v1/streams/{stream}/records"
        read = Operation(
            "readRecords",
            "Read records, or follow them.",
            {form.content_type: form.schema for form in FORMATS},
            _READING,
        )
        publish = Operation(
            "publishRecords",
            "Store records, together or not at all: lines of JSON, or one value.",
            {JSON: ref("Stored")},
            _PUBLISHING,
            {**dict.fromkeys(LINES, ref("NewRecord")), "text/plain": TEXT},
        )
        return [
            Route(path, self._read, operation=read),
            Route(path, self._publish, "POST", publish),
        ]

    async def _read(self, request: web.Request) -> web.StreamResponse:
        form = _format(request)
        if form is None:
            return _not_acceptable(f"records can be had as {_KNOWN}, by Accept or ?format=")
        if not form.is_there:
            return _not_acceptable(
                "this node cannot write Arrow, as its extra arrow is not installed: ask for "
                "another format"
            )
        query = _Query.of(request, form, self._wall_clock())
        stream, sender = ref_of(request.match_info["stream"]), sender_of(request)
        start = query.start
        offset = start.offset
        if offset is None:
            offset = await self._starts.offset(stream, sender, start.timestamp_us, start.last)
        reading = _Reading(self._gateway, stream, sender, query, offset)
        if query.typed:
            reading.typed = await self._typed(stream, sender)
        await reading.fetch(wait_ms=0)  # An error of this one is the status of the answer.
        if request.method != "HEAD":
            await self._claim(request, reading)  # Likewise.
        response = web.StreamResponse(headers={"Content-Type": _content_type(query.format)})
        await response.prepare(request)
        if request.method == "HEAD":
            return response  # **safety** What is written now would stand for the next answer.
        await response.write(await asyncio.to_thread(query.format.head))
        try:
            await self._write(request, response, reading)
        except JetstreamError as error:
            last_words = query.format.error(error)
            if not last_words:
                response.force_close()
                if request.transport is not None:
                    request.transport.abort()  # It must not look like the end.
            await response.write(last_words)
        return response

    async def _typed(self, stream: common_pb2.StreamRef, sender: Sender) -> TypedRows:
        """Raises InvalidRequestError if the stream has no schema, or this node cannot read it."""
        found = await self._gateway.call(pb.DescribeSchemaRequest(stream=stream), sender)
        if not found.schemas or not found.schemas[-1]:
            raise InvalidRequestError(
                "the stream has no schema, so its records have no fields: jetstream schema set "
                "gives it one"
            )
        return BoundedRows(parse(found.schemas[-1]))

    async def _publish(self, request: web.Request) -> web.Response:
        """Answers once the records are stored, as one batch."""
        if request.content_type == "application/x-www-form-urlencoded":
            raise InvalidRequestError(
                "this is a form: say Content-Type: text/plain for one value, application/json for "
                "lines of JSON (curl -d needs -H)"
            )
        ack = request.query.get("ack", "all")
        if ack not in ("all", "leader"):
            raise InvalidRequestError(f"ack is all or leader, not {ack[:50]!r}")
        stream, sender = ref_of(request.match_info["stream"]), sender_of(request)
        subject = request.query.get("subject") or await self._subject(stream, sender)
        check_literal(subject)
        await claim(request)
        batch = await asyncio.to_thread(
            batch_of,
            await _body(request),
            request.content_type,
            subject,
            request.query.get("key"),
            request.headers.get("Idempotency-Key", ""),
        )
        asked = pb.ProduceBatchRequest(
            stream=stream, subject=subject, batch=batch.to_bytes(), ack_leader=ack == "leader"
        )
        found = await self._gateway.call(asked, sender)
        return web.json_response(
            {
                "offset": found.base_offset,
                "count": found.record_count,
                "duplicate": found.duplicate,
            }
        )

    async def _subject(self, stream: common_pb2.StreamRef, sender: Sender) -> str:
        """The one subject of a stream. Raises InvalidRequestError if it has several."""
        asked = pb.DescribeStreamRequest(stream=stream, registry_only=True)
        answer = await self._gateway.call(asked, sender)
        subject = str(answer.description.stream.subject)
        if is_pattern(subject):
            raise InvalidRequestError(f"say which subject of {subject!r}: ?subject=")
        return subject

    async def _write(
        self, request: web.Request, response: web.StreamResponse, reading: _Reading
    ) -> None:
        form, room = reading.query.format, request.app[ROOM]
        if (begins := reading.passed()) is not None:
            await response.write(form.passed(begins))
        while True:
            await self._claim(request, reading)
            for batch, wanted in reading.batches():
                columns = await asyncio.to_thread(
                    Columns, batch, reading.query.bytes_max, reading.typed
                )
                for begin in range(0, len(wanted), ROWS_AT_ONCE):
                    some = wanted[begin : begin + ROWS_AT_ONCE]
                    pieces = form.pieces(columns, some)
                    if not columns.is_large(some):
                        await response.write(await asyncio.to_thread(b"".join, pieces))
                        room.is_made(request)
                        continue
                    pieces = gathered(pieces)
                    while piece := await asyncio.to_thread(next, pieces, b""):
                        await response.write(piece)
                        room.is_made(request)
            room.release(request)
            if (passed := reading.passed()) is not None:
                await response.write(form.passed(passed))
            if reading.is_over:
                await response.write(form.tail())
                return
            if not await reading.fetch_again() and form.keep_alive:
                await response.write(form.keep_alive)

    async def _claim(self, request: web.Request, reading: _Reading) -> None:
        """Claim room for the rows of what was fetched."""
        length = reading.bytes_held
        if not length or request.app[ROOM].is_held(request):
            return
        if length > HELD_BYTES_MAX:
            reading.let_go()
        await claim(request, max(0, length - CLAIM_BYTES))
        if length > HELD_BYTES_MAX:
            await reading.fetch_again()


class _Reading:
    """One request's way through a stream."""

    def __init__(
        self,
        gateway: Gateway,
        stream: common_pb2.StreamRef,
        sender: Sender,
        query: _Query,
        offset: int,
    ) -> None:
        self.query = query
        self.typed: TypedRows | None = None
        self._gateway = gateway
        self._named = self._stream = stream
        self._sender = sender
        self._offset = offset
        self._reported = -1  # The client knows that nothing is missing before it.
        self._last_epoch = -1
        self._end: int | None = None  # No record at or after it is wanted.
        self._left = query.limit
        self._batches = b""

    @property
    def bytes_held(self) -> int:
        return len(self._batches)

    def let_go(self) -> None:
        """Hold nothing of what was fetched last. It is to be fetched again."""
        self._batches = b""

    def passed(self) -> int | None:
        """The offset before which no more records are wanted, if that was not reported yet."""
        offset = self._offset if self._end is None else min(self._offset, self._end)
        if self._left == 0 or offset <= self._reported:
            return None
        self._reported = offset
        return offset

    @property
    def is_over(self) -> bool:
        return self._left == 0 or (self._end is not None and self._offset >= self._end)

    async def fetch(self, wait_ms: int) -> bool:
        """Whether there was something. Raises the JetstreamErrors of a fetch."""
        asked = pb.FetchRequest(
            stream=self._stream,
            offset=self._offset,
            bytes_max=FETCH_BYTES,
            wait_ms_max=wait_ms,
        )
        if self._last_epoch >= 0:
            asked.last_epoch = self._last_epoch
        seconds = CALL_SECONDS + wait_ms / 1000
        try:
            answer = await self._gateway.call(asked, self._sender, seconds=seconds)
        except StreamNotFoundError:
            await self._check_right()
            raise
        self._stream = common_pb2.StreamRef(id=answer.stream_id)  # Not another one of that name.
        self._batches = answer.batches
        if not self.query.follow and self._end is None:
            self._end = answer.high_watermark
        is_new = bool(answer.batches) or answer.next_offset > self._offset
        if not answer.batches:  # Compaction may have left nothing up to there.
            self._offset = max(self._offset, answer.next_offset)
        return is_new

    async def _check_right(self) -> None:
        """Raise PermissionDeniedError if the right to read was withdrawn: who asks by the id alone
        is then told that there is no such stream."""
        asked = pb.FetchRequest(stream=self._named, offset=self._offset, bytes_max=1)
        try:
            await self._gateway.call(asked, self._sender)
        except (PermissionDeniedError, UnauthenticatedError):
            raise
        except JetstreamError:
            pass  # It is gone, or another one has the name: the caller's error says so.

    async def fetch_again(self) -> bool:
        """As `fetch`, and waits for records. Bears with a leader that does not answer for
        RETRY_SECONDS."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_SECONDS
        while True:
            try:
                is_new = await self.fetch(WAIT_MS)
                if not is_new and not self.query.follow:
                    raise UnavailableError(
                        f"records before offset {self._end} were there, and cannot be read now"
                    )
                return is_new
            except JetstreamError as error:
                if not error.retriable or loop.time() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    def batches(self) -> Iterator[tuple[Batch, list[int]]]:
        """The batches of what was fetched that have wanted rows, and these. Raises
        CorruptBatchError."""
        batches, self._batches = self._batches, b""
        for batch in iterate(batches):
            wanted = self._wanted(batch)
            if wanted:
                yield batch, wanted
            self._offset = batch.header.next_offset
            self._last_epoch = batch.header.leader_epoch
            if self.is_over:
                return

    def _wanted(self, batch: Batch) -> list[int]:
        wanted = self.query.wanted
        offsets = batch.offsets()
        end = batch.header.next_offset if self._end is None else self._end
        rows = range(len(batch)) if wanted is None else wanted.rows(batch)
        found = [row for row in rows if self._offset <= offsets[row] < end]
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        if found:
            self._reported = offsets[found[-1]] + 1
        return found


async def _body(request: web.Request) -> bytes:
    """Raises InvalidRequestError, MessageTooLargeError."""
    try:
        return await read_body(request.clone(client_max_size=BODY_BYTES_MAX))
    except web.HTTPRequestEntityTooLarge as error:
        raise MessageTooLargeError(f"a body has at most {BODY_BYTES_MAX} bytes") from error


def _format(request: web.Request) -> Format | None:
    """The format that a client asks for, or takes; None: there is none."""
    name = request.query.get("format")
    if name is not None:
        return next((form for form in FORMATS if form.name == name), None)
    accept = request.headers.get("Accept", "*/*")
    given = [each.partition(";")[0].strip().lower() for each in accept.split(",")]
    for kind in given:
        for form in FORMATS:
            if kind == form.content_type:
                return form
    takes_any = not {"*/*", "application/*", "application/json", "", "text/html"}.isdisjoint(given)
    return FORMATS[0] if takes_any else None


def _not_acceptable(message: str) -> web.Response:
    return error_response(InvalidRequestError(message), status=406)


def _content_type(form: Format) -> str:
    is_text = form.content_type.startswith("text/") or form.content_type.endswith("json")
    return f"{form.content_type}; charset=utf-8" if is_text else form.content_type
