"""`jetstream dead-letter …`: the records that `process` could not handle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.exits import Exit, UsageError
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, message_row, print_fields, printable, shown
from jetstream_client.clients.blocking_client import Client
from jetstream_client.processing.outputs import DeadLetter, read_dead_letter
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, NotFoundError

SUBJECTS_SHOWN = 10

app = options.group("dead-letter")

LettersStream = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="The stream that keeps the dead letters.",
        autocompletion=options.complete_stream,
    ),
]
ProcessOption = Annotated[
    str,
    typer.Option(
        "--process", metavar="NAME", help="Only those of this cursor or group.", show_default=False
    ),
]
Letter = Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The dead letter's offset.")]


@app.command("list")
@common_options(patience=True)
def list_(
    cli: Invocation,
    stream: LettersStream,
    process: ProcessOption = "",
    max_: Annotated[
        int, typer.Option("--max", "-n", min=1, help="At most this many, the newest first.")
    ] = 100,
) -> None:
    """List dead letters, the newest first.

    RECORD is the stream and the offset of the record that failed. Records of the stream that are
    no dead letters are left out.

    Examples:

      jetstream dead-letter list orders-dead

      jetstream dead-letter list orders-dead --process billing --json
    """
    with (
        cli.client() as client,
        client.consume(stream, stop="latest", reverse=True, patience=cli.config.timeout) as newest,
    ):
        found = (letter for message in newest if (letter := read_dead_letter(message)))
        cli.table(
            ["OFFSET", "RECORD", "SUBJECT", "PROCESS", "ATTEMPTS", "ERROR", "MESSAGE"],
            islice((letter for letter in found if process in ("", letter.process)), max_),
            _cells,
            _row,
            "no dead letters",
        )


@app.command()
@common_options()
def show(cli: Invocation, stream: LettersStream, offset: Letter) -> None:
    """Show a dead letter: its source, why it failed, and the record.

    Example:  jetstream dead-letter show orders-dead 3
    """
    with cli.client() as client:
        letter = _letter(client, stream, offset)
    if cli.json:
        emit_json(_row(letter) | {"record": message_row(letter.message)})
        return
    message = letter.message
    print_fields(
        {
            "record": f"{letter.stream} {letter.record_offset}",
            "subject": letter.subject,
            "published": letter.timestamp,
            "process": letter.process,
            "attempts": letter.attempts,
            "error": letter.error,
            "message": letter.error_message,
            "failed": message.timestamp,
            "key": None if letter.key is None else shown(letter.key),
            "headers": [
                f"{name}: {text}" for name in letter.headers for text in letter.headers[name]
            ],
        }
    )
    print("value" if message.value is not None else "value   (tombstone)")
    for line in shown(message.value or b"").splitlines():
        print(f"  {printable(line)}")


@app.command()
@common_options(patience=True)
def retry(
    cli: Invocation,
    stream: LettersStream,
    offsets: Annotated[
        list[int] | None,
        typer.Argument(metavar="[OFFSET]…", min=0, help="The dead letters' offsets."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them, the oldest first.")] = False,
    process: ProcessOption = "",
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also those whose record cannot be compared.")
    ] = False,
    yes: options.Yes = False,
) -> None:
    """Publish records again on their subjects, to be handled anew.

    A dead letter is retried if the record that it names is still there, with the same subject, key,
    value and headers: anybody who may publish dead letters could name any subject. --unverified
    retries it all the same. --all asks first, and names the subjects. It passes over those that are
    refused, and then ends with 1.

    Each record goes straight to the streams on its subject, as a new record at their end, with its
    own key, value and headers. Every processing and consumer of these streams gets it, after
    newer records of its key. It does not go by NATS. The dead letters stay where they are: drop
    them afterwards.

    A repeated retry of the same dead letter stores nothing within the stream's duplicate window.

    Examples:

      jetstream dead-letter retry orders-dead 3 7

      jetstream dead-letter retry orders-dead --all --process billing --yes
    """
    if bool(offsets) == all_:
        raise UsageError("say the offsets of dead letters, or --all", cli.context)
    if offsets and process:
        raise UsageError("--process goes with --all", cli.context)
    with cli.client() as client:
        if all_:
            # What comes while the question is answered may be on subjects that it does not name.
            end = client.offset_at(stream, "latest")
            if not yes:
                found = list(_subjects(_all(client, stream, end, process, cli.config.timeout)))
                where = ", ".join(found[:SUBJECTS_SHOWN]) + ", …" * (len(found) > SUBJECTS_SHOWN)
                question = f"Publish the dead letters of {stream} again on {where or 'no subject'}?"
                options.confirm(question, "not retried", yes=False)
            letters = _all(client, stream, end, process, cli.config.timeout)
        else:
            # All are looked at before the first is published: a wrong offset changes nothing.
            letters = iter([_letter(client, stream, offset) for offset in offsets or []])
        count = refused = 0
        for letter in letters:
            reason = "" if unverified else _difference(client, letter)
            if reason:
                refused += 1
                print(printable(f"{letter.message.offset}: not retried: {reason}"), file=sys.stderr)
                continue
            for stored in _publish_again(client, letter):
                cli.answer(stored.row(), stored.text())
            count += 1
    if refused:
        print("--unverified retries these, too, as they are", file=sys.stderr)
        raise typer.Exit(Exit.FAILED)
    if not count and not cli.json:
        print("there is nothing to retry")


@app.command()
@common_options()
def drop(
    cli: Invocation,
    stream: LettersStream,
    before: Annotated[
        str | None,
        typer.Option(
            metavar=positions.METAVAR,
            help=f"Keep the dead letters from this position on: {positions.SAYS}.",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Keep none.")] = False,
    yes: options.Yes = False,
) -> None:
    """Remove dead letters, all or the oldest. It asks first.

    It is a purge of the stream: records can be removed only from the beginning of a log, and only
    whole batches.

    Examples:

      jetstream dead-letter drop orders-dead --before 7 --yes

      jetstream dead-letter drop orders-dead --all --yes
    """
    if (before is None) != all_:
        raise UsageError("say --before POSITION, or --all", cli.context)
    position = None if before is None else positions.parse_position(before)
    what = "all records" if before is None else f"the records before {before}"
    options.confirm(f"Drop {what} of stream {stream}?", "not dropped", yes=yes)
    with cli.client() as client:
        start = client.purge_stream(stream, position)
    row = {"dropped": stream, "log_start_offset": start}
    cli.answer(row, f"dropped dead letters: the first offset of {stream} is {start} now")


@dataclass(frozen=True, slots=True)
class _StoredAgain:
    """Where a stream has the record of a dead letter."""

    letter: DeadLetter
    stream: str
    offset: int
    is_duplicate: bool

    def text(self) -> str:
        verb = "already" if self.is_duplicate else "stored"
        return f"{self.letter.message.offset}: {verb} in {self.stream} at offset {self.offset}"

    def row(self) -> dict[str, Any]:
        return {
            "dead_letter": self.letter.message.offset,
            "stream": self.stream,
            "offset": self.offset,
            "duplicate": self.is_duplicate,
        }


def _publish_again(client: Client, letter: DeadLetter) -> list[_StoredAgain]:
    result = client.publish(
        letter.subject,
        letter.message.value,
        key=letter.key,
        headers=letter.headers,
        msg_id=letter.retry_id,
        via="direct",
    )
    return [_StoredAgain(letter, ack.stream, ack.offset, ack.duplicate) for ack in result.acks]


def _difference(client: Client, letter: DeadLetter) -> str:
    """Why the letter cannot be taken for a copy of the record that it names; "": it is one."""
    record = f"record {letter.record_offset} of {letter.stream}"
    try:
        if client.describe_stream(letter.stream).id != letter.stream_id:
            return f"{record} is gone: the stream was created anew"
        found = next(iter(client.fetch(letter.stream, letter.record_offset, max_messages=1)), None)
    except JetstreamError as error:
        return f"{record} cannot be compared: {error.message}"
    if found is None or found.offset != letter.record_offset:
        return f"{record} is gone"
    return "" if letter.is_of(found) else f"{record} is another one"


def _all(
    client: Client, stream: str, end: int, process: str, patience: float
) -> Iterator[DeadLetter]:
    """What is there before `end`: a record that fails again becomes a newer dead letter."""
    with client.consume(stream, "earliest", stop=end, patience=patience) as consumer:
        for message in consumer:
            letter = read_dead_letter(message)
            if letter is not None and process in ("", letter.process):
                yield letter


def _subjects(letters: Iterator[DeadLetter]) -> dict[str, None]:
    """Each subject once, in order of appearance."""
    return {letter.subject: None for letter in letters}


def _letter(client: Client, stream: str, offset: int) -> DeadLetter:
    """Raises NotFoundError, and InvalidRequestError for a record that is no dead letter."""
    found = next(iter(client.fetch(stream, offset, max_messages=1)), None)
    if found is None or found.offset != offset:
        raise NotFoundError(f"stream {stream} has no record at offset {offset}")
    letter = read_dead_letter(found)
    if letter is None:
        raise InvalidRequestError(
            f"the record at offset {offset} of {stream} is no dead letter: it lacks the headers "
            "that process gives them"
        )
    return letter


def _cells(letter: DeadLetter) -> list[object]:
    return [
        letter.message.offset,
        f"{letter.stream.partition('@')[0]} {letter.record_offset}",
        letter.subject,
        letter.process,
        letter.attempts,
        letter.error.removeprefix("builtins."),
        letter.error_message,
    ]


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "offset": letter.message.offset,
        "failed": letter.message.timestamp,
        "stream": letter.stream,
        "stream_id": letter.stream_id,
        "record_offset": letter.record_offset,
        "subject": letter.subject,
        "published": letter.timestamp,
        "process": letter.process,
        "attempts": letter.attempts,
        "error": letter.error,
        "error_message": letter.error_message,
    }
