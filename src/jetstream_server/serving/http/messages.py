"""A page of a stream's records as JSON, for people: text as text, other bytes in base64, and not
more than fits on a screen.

With a subject or a key, the page searches the records from its start on. After LOOKED_AT_MAX
records, or PAGE_BYTES_MAX of JSON, it ends, and says where to continue. A page of the last records
leaves out the first of them instead, so that it has the newest.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.subjects import check_pattern, matches
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.guard import Sender
from jetstream_server.serving.http.start_offsets import StartOffsets

SHOWN_BYTES_MAX = 64 * 1024
"""Bytes shown of one value, of one key and of the headers of one record. `size` is the whole length
of a value or a key."""
_SECONDS = 10.0


LIMIT_MAX = 500
LOOKED_AT_MAX = 20_000
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""A page ends with the record that reaches this much JSON, or begins with it if the newest are
kept: the node's loop writes all of it at once. Holds 50 records, as many as a page has by default,
of SHOWN_BYTES_MAX of plain text."""
_FETCH_BYTES = 256 * 1024
WAIT_MS_MAX = 20_000
"""How long a page may wait for the first record. Browsers and proxies give up after half a
minute."""


class MessagePages:
    """See the module."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._starts = StartOffsets(gateway)

    async def page(
        self,
        stream: common_pb2.StreamRef,
        sender: Sender,
        *,
        offset: int | None,
        timestamp_us: int | None,
        last: int | None,
        limit: int,
        subject: str = "",
        key: str | None = None,
        wait_ms: int = 0,
        claim: Callable[[], Awaitable[None]],
    ) -> dict[str, Any]:
        """Records from `offset` on, from the first record of that time on, or the `last` ones
        (by default as many as `limit`). claim: waits for room for the page. Raises its errors, and
        the JetstreamErrors of a fetch."""
        if not 0 < limit <= LIMIT_MAX:
            raise InvalidRequestError(f"limit is from 1 to {LIMIT_MAX}")
        if wait_ms > WAIT_MS_MAX:
            raise InvalidRequestError(f"wait_ms is at most {WAIT_MS_MAX}")
        if subject:
            check_pattern(subject)
        last = limit if last is None else last
        ends_log = offset is None and timestamp_us is None and last <= limit
        if offset is None:
            offset = await self._starts.offset(stream, sender, timestamp_us, last)
        page = _Page(limit, subject, None if key is None else key.encode(), keeps_last=ends_log)
        while True:
            fetch = pb.FetchRequest(
                stream=stream,
                offset=offset,
                bytes_max=_FETCH_BYTES,
                wait_ms_max=0 if page.messages else wait_ms,
                decode=True,
            )
            answer = await self._gateway.call(
                "Reads", "Fetch", fetch, sender, seconds=_SECONDS + wait_ms / 1000
            )
            await claim()  # The caller may read, and does not wait for records any more.
            before, offset = offset, page.take(answer)
            is_all = offset >= answer.high_watermark or offset == before
            if page.is_full or is_all or wait_ms:
                return {
                    "messages": page.messages,
                    "next_offset": offset,
                    "log_start_offset": answer.log_start_offset,
                    "high_watermark": answer.high_watermark,
                }


class _Page:
    """The records found so far. keeps_last: of more than PAGE_BYTES_MAX of JSON the first ones are
    dropped, instead of ending the page."""

    def __init__(
        self, limit: int, subject: str, key: bytes | None, *, keeps_last: bool = False
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self._limit = limit
        self._subject = subject
        self._key = key
        self._keeps_last = keeps_last
        self._looked_at = 0
        self._found = 0
        self._sizes: deque[int] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return (
            self._found == self._limit
            or self._looked_at >= LOOKED_AT_MAX
            or (self._bytes >= PAGE_BYTES_MAX and not self._keeps_last)
        )

    def take(self, answer: pb.FetchResponse) -> int:
        """Pick the wanted records. Returns where to continue."""
        for message in answer.messages:
            if self.is_full:
                return int(message.offset)
            self._looked_at += 1
            if is_wanted(message, self._subject, self._key):
                self._add(message_to_json(message))
        return int(answer.next_offset)

    def _add(self, shown: dict[str, Any]) -> None:
        self.messages.append(shown)
        self._found += 1
        self._sizes.append(len(json.dumps(shown)))
        self._bytes += self._sizes[-1]
        while self._keeps_last and self._bytes - self._sizes[0] >= PAGE_BYTES_MAX:
            self._bytes -= self._sizes.popleft()
            del self.messages[0]


def message_to_json(message: pb.Message) -> dict[str, Any]:
    """A record as JSON. value, key: see `bytes_to_json`; null: there is none."""
    return {
        "offset": message.offset,
        "timestamp_us": message.timestamp_us,
        "subject": message.subject.decode("utf-8", "backslashreplace"),
        "key": bytes_to_json(message.key) if message.HasField("key") else None,
        "value": bytes_to_json(message.value) if message.HasField("value") else None,
        "headers": headers_of(message.header_block),
        "headers_size": len(message.header_block),
    }


def bytes_to_json(data: bytes) -> dict[str, Any]:
    """`text` or `base64`, shortened to SHOWN_BYTES_MAX, and the whole `size` in bytes."""
    shown = data[:SHOWN_BYTES_MAX]
    try:
        return {"text": _text(shown, is_cut=len(shown) < len(data)), "size": len(data)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(shown).decode(), "size": len(data)}


def _text(data: bytes, *, is_cut: bool) -> str:
    """Decode. Raises UnicodeDecodeError. A character that was cut in two is left out."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(data) - 4:
            return data[: error.start].decode()
        raise


def headers_of(block: bytes) -> list[tuple[str, str]]:
    """Names and values in their order, of the first SHOWN_BYTES_MAX bytes. A block's first line is
    NATS's own."""
    lines = block[:SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def is_wanted(message: pb.Message, subject: str, key: bytes | None) -> bool:
    """Whether a record matches. subject: a pattern, "" for all. key: None for all."""
    if key is not None and not (message.HasField("key") and message.key == key):
        return False
    return not subject or matches(subject, message.subject.decode("utf-8", "backslashreplace"))
