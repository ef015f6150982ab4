"""`jetstream publish`: messages from the command line into NATS, acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, BinaryIO

import typer

from jetstream_client.cli import interrupts
from jetstream_client.cli.completion import complete_subject
from jetstream_client.cli.exits import UsageError
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.lines import are_json_lines, is_given, is_piped, lines_of, standard_input
from jetstream_client.cli.output import emit_json
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.publishing.ack import Ack, PublishResult
from jetstream_client.publishing.batched_publisher import AsyncPublisher
from jetstream_client.publishing.deliveries import Delivery
from jetstream_client.publishing.plain_publisher import PublishOptions
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.types import Via
from jetstream_protocol.errors import InvalidRequestError, JetstreamError

PUBLISHERS = 2048
"""How many messages may be in flight: enough that the round trip does not limit the rate."""

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT", help="NATS subject, without wildcards.", autocompletion=complete_subject
    ),
]
ValueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[VALUE|-]",
        help="The payload ('' is an empty one); - reads standard input. Without it a pipe or a "
        "file is read.",
    ),
]
LinesOption = Annotated[
    bool | None,
    typer.Option(
        "--lines/--whole",
        help="Each line of standard input is a record, or the whole of it is one. "
        "Default: lines of a pipe, if they look like text, and the whole of a file.",
        show_default=False,
    ),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="The record's key.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Repeatable.")
]
CountOption = Annotated[
    int, typer.Option("--count", "-n", min=1, help="Publish it that many times.")
]
MsgIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Store only one message with this id within the stream's duplicate window.",
    ),
]
ExpectedOffsetOption = Annotated[
    int | None, typer.Option(min=0, help="Store it only if it gets this offset.")
]
AcksOption = Annotated[
    str, typer.Option(help="Wait for all streams, any, or names separated by commas.")
]


class ViaName(StrEnum):
    """As Via, for typer."""

    NATS = "nats"
    DIRECT = "direct"
    AUTO = "auto"


ViaOption = Annotated[
    ViaName,
    typer.Option(
        help="nats: as NATS messages. direct: straight to the streams' leaders, so that nobody "
        "else on the subject hears it. auto: direct where exactly one stream listens, else nats."
    ),
]


@common_options(total=False, nats=True)
def publish(
    cli: Invocation,
    subject: SubjectArgument,
    value: ValueArgument = None,
    lines: LinesOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    count: CountOption = 1,
    msg_id: MsgIdOption = None,
    expected_offset: ExpectedOffsetOption = None,
    acks: AcksOption = "all",
    via: ViaOption = ViaName.NATS,
) -> None:
    """Publish to NATS and wait until the streams have stored it.

    With --via, straight to the streams' leaders.

    Examples:

      jetstream publish orders.eu '{"id": 42}' --key 42 --header source:web

      tail -f orders.jsonl | jetstream publish orders.eu

      jetstream publish files.report < report.pdf
    """
    job = _Job(
        cli.config,
        subject,
        None if key is None else os.fsencode(key),
        _headers(header or []),
        PublishOptions(
            acks if acks in ("all", "any") else [name for name in acks.split(",") if name],
            msg_id=msg_id,
            expected_offset=expected_offset,
        ),
        cli.json,
        via.value,
    )
    nothing = None
    if value is None and lines is None:
        # An empty record was not asked for, and would be stored for good.
        nothing = UsageError("say the value, or - to read standard input", cli.context)
        if not is_given():
            raise nothing
    if value is None or value == "-":
        _publish_input(job, lines, count, nothing)
    elif lines is None:
        interrupts.run(job.run(os.fsencode(value), count))
    else:
        raise InvalidRequestError("--lines and --whole go with -, which reads standard input")
    job.report()


def _publish_input(job: _Job, lines: bool | None, count: int, nothing: Exception | None) -> None:
    """lines: whether each line is a record; None: yes for a pipe, no for a file. nothing: what to
    raise if the whole of it is empty; None: then it is an empty record."""
    source = standard_input()
    if not (is_piped(source) if lines is None else lines):
        payload = source.read()
        if nothing is not None and not payload:
            raise nothing
        if lines is None and are_json_lines(payload):
            print(
                "note: the whole file is one record: --lines makes one of each line",
                file=sys.stderr,
            )
        interrupts.run(job.run(payload, count))
        return
    if count > 1 or job.asks_for_one:
        raise InvalidRequestError(
            "--count, --msg-id, --expected-offset and --acks speak of one record, and each "
            "line would be one: say --whole"
        )
    interrupts.run(job.run_lines(source, text_only=lines is None))


def _headers(given: list[str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for text in given:
        name, separator, value = text.partition(":")
        if not separator:
            raise InvalidRequestError(f"invalid header {text!r}: say NAME:VALUE")
        headers.setdefault(name.strip(), []).append(value.strip())
    return headers


@dataclass(slots=True)
class _Stored:
    """Where a stream has the messages. duplicates: how many it had already, by their id."""

    first: int
    last: int
    duplicates: int = 0

    def text(self, stream: str, count: int) -> str:
        if count == 1:
            verb = "already" if self.duplicates else "stored"
            return f"{verb} in {stream} at offset {self.first}"
        text = f"stored in {stream} between offsets {self.first} and {self.last}"
        return f"{text}, {self.duplicates} of them already" if self.duplicates else text


class _Job:
    """Publishes, and remembers what there is to report."""

    def __init__(
        self,
        config: ClientConfig,
        subject: str,
        key: bytes | None,
        headers: dict[str, list[str]],
        publish_options: PublishOptions,
        json: bool,
        via: Via,
    ) -> None:
        self._config = config
        self._subject = subject
        self._key = key
        self._headers = headers
        self._publish_options = publish_options
        self._json = json
        self._via = via
        self._count = 0
        self._seconds = 0.0
        self._stored: dict[str, _Stored] = {}

    async def run(self, payload: bytes, count: int) -> None:
        """Publish the first one alone, so that a mistake shows once; then many at a time."""
        begun = time.perf_counter()
        async with AsyncClient.from_config(self._config) as client:
            await self._publish(client, payload)
            turns = iter(range(count - 1))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(PUBLISHERS, count - 1)):
                        group.create_task(self._publish_on(client, payload, turns))
            except BaseExceptionGroup as errors:
                error = errors.exceptions[0]
                if isinstance(error, JetstreamError):
                    error.add_note(f"of {count} messages, {self._count} are stored for certain")
                raise error from None
        self._seconds = time.perf_counter() - begun

    @property
    def asks_for_one(self) -> bool:
        """Whether an option is given that is for one message and not for all lines."""
        return self._publish_options != PublishOptions()

    async def run_lines(self, source: BinaryIO, *, text_only: bool) -> None:
        """Each line a record, in their order. text_only: no option says so, so that it must look
        like lines."""
        begun = time.perf_counter()
        async with AsyncClient.from_config(self._config) as client:
            publisher = client.publisher(
                self._subject, delivery_timeout=self._config.timeout, via=self._via
            )
            try:
                await publisher.begin()
            except InvalidRequestError:
                # A group: each batch would go to another stream.
                async for lines in lines_of(source, text_only=text_only):
                    for line in lines:
                        await self._publish(client, line)
            else:
                await self._send_lines(publisher, lines_of(source, text_only=text_only))
        self._seconds = time.perf_counter() - begun

    async def _send_lines(
        self, publisher: AsyncPublisher, source: AsyncIterator[list[bytes]]
    ) -> None:
        sent: asyncio.Queue[Delivery | None] = asyncio.Queue(PUBLISHERS)
        async with publisher:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._settle(sent))
                    async for lines in source:
                        for line in lines:
                            await sent.put(await publisher.send(line, self._key, self._headers))
                    await sent.put(None)
            except BaseExceptionGroup as errors:
                error = errors.exceptions[0]
                if isinstance(error, JetstreamError):
                    await publisher.abort(error)
                    error.add_note(f"of the lines before it, {self._count} are stored")
                raise error from None

    async def _settle(self, sent: asyncio.Queue[Delivery | None]) -> None:
        """Wait for each line in turn. The first that fails ends the reading, at once."""
        while (delivery := await sent.get()) is not None:
            self._settled(await delivery)
            if sent.empty():
                sys.stdout.flush()  # The reader of this output need not wait for the last line.

    async def _publish_on(self, client: AsyncClient, payload: bytes, turns: Iterator[int]) -> None:
        for _ in turns:
            await self._publish(client, payload)

    async def _publish(self, client: AsyncClient, payload: bytes) -> None:
        result = await client.publish(
            self._subject,
            payload,
            key=self._key,
            headers=self._headers,
            acks=self._publish_options.acks,
            msg_id=self._publish_options.msg_id,
            expected_offset=self._publish_options.expected_offset,
            via=self._via,
        )
        self._settled(result)

    def _settled(self, result: PublishResult) -> None:
        self._count += 1
        for ack in result.acks:
            if self._json:
                emit_json({"stream": ack.stream, "offset": ack.offset, "duplicate": ack.duplicate})
            self._remember(ack)

    def _remember(self, ack: Ack) -> None:
        stored = self._stored.setdefault(ack.stream, _Stored(ack.offset, ack.offset))
        stored.first = min(stored.first, ack.offset)
        stored.last = max(stored.last, ack.offset)
        stored.duplicates += ack.duplicate

    def report(self) -> None:
        """For people: where the messages are."""
        if self._json:
            return
        if not self._count:
            print("standard input was empty: nothing is stored")
        for stream, stored in sorted(self._stored.items()):
            print(stored.text(stream, self._count))
        if self._count > 1:
            rate = self._count / self._seconds
            print(f"{self._count} messages in {self._seconds:.2f} s, {rate:,.0f} a second")
