"""`jetstream fetch`: records of a stream, by offset."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.exits import end_with_the_reader
from jetstream_client.cli.group_fetch import GroupFetch
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import json_line, message_line, message_row, printable
from jetstream_client.cli.record_format import RecordFormat
from jetstream_client.cli.stream_or_group import NO_SUCH_STREAM, streams_in
from jetstream_client.clients.blocking_client import Client
from jetstream_client.publishing.keyed_group import check_group
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.values.positions import Position
from jetstream_client.values.types import ReadFrom, Stream
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.subjects import overlaps

RETRY_SECONDS = 0.5
"""Between two attempts of --follow, where a server refuses at once. The client itself has tried
for the time of --timeout before."""

Write = Callable[[Iterable[Message]], None]
FromOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        "--offset",
        "-o",
        metavar=positions.METAVAR,
        help=f"Where to begin: {positions.SAYS}. {positions.LOCAL} Default: earliest.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        metavar=positions.METAVAR,
        help="Where to stop (exclusive), in the same forms as --from. Default: latest; "
        "with --follow nowhere.",
        show_default=False,
    ),
]
MaxOption = Annotated[
    int | None, typer.Option("--max", "-n", min=1, max=2**63 - 1, help="At most this many records.")
]
FilterOption = Annotated[
    str,
    typer.Option(
        "--filter",
        metavar="SUBJECT",
        help="Only records on matching subjects; '*' and '>' as in NATS.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Only records with this key.", show_default=False),
]
ReverseOption = Annotated[
    bool, typer.Option("--reverse", "-r", help="Newest first; with --max the newest.")
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Wait for more, until Ctrl-C, also while no server answers."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=r"Format of each record, for example '%o %k %s\n'; letters below.",
        show_default=False,
    ),
]


@common_options(patience=True)
def fetch(
    cli: Invocation,
    stream: options.StreamName,
    offset: FromOption = None,
    to: ToOption = None,
    max_: MaxOption = None,
    filter_: FilterOption = "",
    key: KeyOption = None,
    reverse: ReverseOption = False,
    follow: FollowOption = False,
    format_: FormatOption = None,
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    r"""Print a stream's records by offset; --follow waits for more.

    Without --follow it ends with what is committed by now.

    With the name of a keyed group it merges the records of all its streams by the time of their
    append, and shows each record's stream. Positions are those of each stream there: -10 is the
    last ten of each; an offset is refused.

    JSON rows carry offset, timestamp, subject, key, key_encoding, value, value_encoding, headers;
    an encoding is utf8 or base64.

    Letters of --format, as of kcat: %o offset, %s (or %v) value, %k key, %h headers, %t (or %N)
    stream, %T milliseconds since 1970, %S and %K bytes of value and key (-1: null). Others: %u
    subject, %d time, %% a percent sign; escapes \n \t \r \0 \\ \xHH. Nothing is added: a line
    needs its \n.

    Examples:

      jetstream fetch orders --offset 1000 --max 10

      jetstream fetch orders --from -10

      jetstream fetch orders --reverse --max 10

      jetstream fetch orders --from 1h --format '%d %u %s\n'

      jetstream fetch orders --filter 'orders.eu.>' --key 42

      jetstream fetch orders --offset latest --follow --json | jq .value
    """
    if reverse and follow:
        raise InvalidRequestError("--reverse and --follow cannot be used together")
    write = _writer(cli.json, format_)
    if offset and len(offset) > 1:
        raise InvalidRequestError("--from and --offset are one option: give it once")
    start = positions.parse_position(offset[0] if offset else "earliest")
    end: Position | None = None if follow else "latest"
    stop = end if to is None else positions.parse_position(to)
    if follow:
        end_with_the_reader()
    with cli.client() as client:
        only_key = None if key is None else os.fsencode(key)
        wanted = _Wanted(
            stream, start, stop, max_, read_from.value, filter_, only_key, reverse, follow
        )
        try:
            if follow and filter_:
                _note_filter(client.list_streams(), stream, filter_)
            has_some = wanted.print_from(client, write)
            if filter_ and not (has_some or follow):
                _note_filter(client.list_streams(), stream, filter_)
        except NO_SUCH_STREAM as error:
            streams = streams_in(client.list_streams(), stream, error)
            check_group(stream, streams, start, stop)
            if not follow:
                _note_filter(streams, stream, filter_)
            GroupFetch(
                client,
                streams,
                _writer(cli.json, format_, with_stream=True),
                read_from.value,
                filter_,
                only_key,
                reverse,
            ).run(start, stop, max_, follow=follow)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which records to print."""

    stream: str
    start: Position
    stop: Position | None
    count_max: int | None
    read_from: ReadFrom
    filter: str
    key: bytes | None
    reverse: bool
    follow: bool

    def print_from(self, client: Client, write: Write) -> bool:
        """Returns whether there were any."""
        ends_at_once = self.stop == "latest" and not self.follow
        is_short = self.count_max is not None and isinstance(self.start, int)
        is_all = not self.filter and self.key is None
        if is_short and ends_at_once and is_all and not self.reverse:
            # Do not read ahead more than is wanted.
            messages = client.fetch(
                self.stream, self.start, max_messages=self.count_max, read_from=self.read_from
            )
            write(messages)
            sys.stdout.flush()
            missing = (self.count_max or 0) - len(messages)
            if missing and len(messages) and messages.next_offset < messages.high_watermark:
                # There is more that did not come: the next fetch raises the reason.
                rest = replace(self, start=messages.next_offset, count_max=missing)
                rest.print_from(client, write)
            return len(messages) > 0
        stop = self.stop
        if isinstance(stop, int) and not self.follow:
            stop = min(stop, client.offset_at(self.stream, "latest"))
        with client.consume(
            self.stream,
            self.start,
            stop=stop,
            read_from=self.read_from,
            filter=self.filter,
            key=self.key,
            reverse=self.reverse,
            # Committed records come at once, or something is wrong.
            patience=None if self.follow else client.config.timeout,
        ) as consumer:
            left, has_some = self.count_max, False
            for messages in self._batches_of(consumer):
                write(islice(messages, left))
                sys.stdout.flush()  # With --follow records are shown at once.
                has_some = has_some or len(messages) > 0
                if left is not None:
                    left -= min(left, len(messages))
                    if left == 0:
                        break
        return has_some

    def _batches_of(self, consumer: Consumer) -> Iterator[Messages]:
        """follow: go on after passing failures, where it was; standard error says so once in each
        gap between records."""
        is_reported = False
        while True:
            try:
                for messages in consumer.batches():
                    is_reported = False
                    yield messages
                return
            except JetstreamError as error:
                if not (self.follow and error.retriable):
                    raise
                if not is_reported:
                    print(
                        f"waiting for a server: {printable(error.message)}",
                        file=sys.stderr,
                        flush=True,
                    )
                is_reported = True
            time.sleep(RETRY_SECONDS)


def _note_filter(streams: Sequence[Stream], name: str, wanted: str) -> None:
    """Say on standard error if no subject of the stream, or keyed group, fits the filter. A record
    from elsewhere (a mirror's, or a restored one) may fit it all the same."""
    named = [each for each in streams if name in (each.name, each.full_name, each.group)]
    subjects = list(dict.fromkeys(each.subject for each in named if each.subject))
    if wanted and subjects and not any(overlaps(each, wanted) for each in subjects):
        print(
            printable(f"note: {name} takes {', '.join(subjects[:3])}: nothing fits {wanted}"),
            file=sys.stderr,
            flush=True,
        )


def _writer(as_json: bool, format_: str | None, *, with_stream: bool = False) -> Write:
    if format_ is None:
        if with_stream:
            return _line_writer(_json_line_with_stream if as_json else _line_with_stream)
        return _line_writer(_json_line if as_json else message_line)
    if as_json:
        raise InvalidRequestError("--json and --format cannot be used together")
    return _byte_writer(RecordFormat(format_, for_terminal=sys.stdout.isatty()))


def _line_writer(line: Callable[[Message], str]) -> Write:
    def write(messages: Iterable[Message]) -> None:
        # Line by line: unbuffered (PYTHONUNBUFFERED), Python drops the rest of one long write when
        # the reader leaves in the middle, and reports no error.
        sys.stdout.writelines(map(line, messages))

    return write


def _byte_writer(record: RecordFormat) -> Write:
    def write(messages: Iterable[Message]) -> None:
        sys.stdout.buffer.writelines(map(record, messages))

    return write


def _json_line(message: Message) -> str:
    return json_line(message_row(message))


def _json_line_with_stream(message: Message) -> str:
    return json_line({"stream": message.stream, **message_row(message)})


def _line_with_stream(message: Message) -> str:
    return f"{message.stream}  {message_line(message)}"
