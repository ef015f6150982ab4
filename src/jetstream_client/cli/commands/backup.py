"""`jetstream stream backup` and `restore`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from jetstream_client.cli import interrupts, options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import printable
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.stream_or_group import NO_SUCH_STREAM, each_of, streams_in
from jetstream_client.cli.units import records_text
from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration import bucket, parquet
from jetstream_client.migration.backup import FolderBackup, back_up, describe_with_end
from jetstream_client.migration.bucket import Bucket
from jetstream_client.migration.group_folder import Place, backups_in, begin_group
from jetstream_client.migration.manifest import Manifest
from jetstream_client.migration.restore import restore as restore_stream
from jetstream_client.publishing.keyed_group import check_whole
from jetstream_client.values.types import StreamLike
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.settings import STREAM_SETTINGS

PARQUET = ".parquet"
_OF_LAKE = ("lake", "local_max_age", "local_max_bytes")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:/{1,2}", re.ASCII | re.IGNORECASE)


@common_options(patience=True)
def backup(
    cli: Invocation,
    stream: options.StreamName,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="A folder, s3://bucket/prefix, or a file that ends in .parquet.",
        ),
    ],
) -> None:
    """Copy a stream to a folder, a bucket or a Parquet file.

    The stream runs on meanwhile. The backup has the records that were committed when it began, with
    their offsets, times, subjects, keys and headers, and the stream's settings. Of a compacted
    stream it has later ones, too, if compaction was faster, so that it has what a reader would see.
    `stream restore` makes the same stream of it, here or in another cluster. Into a folder with an
    earlier backup of the stream, only newer records are copied. A Parquet file is written anew, in
    place of an earlier backup of the same stream, unless that one has records that the stream has
    no more. If a backup is interrupted, run it again: into a folder it goes on where it stopped.
    Batches that the servers encrypt at rest stay encrypted in a folder, and not in Parquet. Parquet
    needs the extra arrow.

    With the name of a keyed group it backs up all its streams, each into a folder in TO that has
    the stream's name.

    Examples:

      jetstream stream backup orders /backups/orders

      jetstream stream backup orders orders.parquet
    """
    with interrupts.interrupted_once(), cli.client() as client:
        try:
            place = _place_of(to)
            backed_up = _backed_up(client, stream, place)
        except NO_SUCH_STREAM as error:
            streams = streams_in(client.list_streams(), stream, error)
            check_whole(stream, streams)
            if _is_parquet(place):
                raise InvalidRequestError(
                    f"{stream!r} is a group of streams: say a folder for them, or name one of them"
                ) from None
            begin_group(place)
            done = each_of(
                stream, streams, lambda each: _backed_up(client, each, place / each.name)
            )
            for name, (manifest, old_end) in done:
                _tell(cli, manifest, old_end, place / name)
        else:
            _tell(cli, *backed_up, place)


def _place_of(text: str) -> Place:
    """Raises InvalidRequestError for the address of what is no place for a backup: as the name of a
    folder, it would be one on this machine."""
    if not _ADDRESS.match(text):
        return Path(text)
    if text.startswith("s3://"):
        if text.endswith(PARQUET):
            raise InvalidRequestError("a Parquet file is written to a disk: say where, or a prefix")
        return Bucket(text)
    if text.startswith("file:///") and not set(text) & set("?#"):
        return Path(unquote(text[len("file://") :]))
    raise InvalidRequestError(
        f"{text!r} is no place for backups: say a folder, file:///folder or s3://bucket/prefix"
    )


def _is_parquet(place: Place) -> bool:
    return isinstance(place, Path) and place.suffix == PARQUET


def _backed_up(client: Client, stream: StreamLike, to: Place) -> tuple[Manifest, int | None]:
    """What is there now, and where the backup ended that this one goes on from, if any."""
    described = describe_with_end(client, stream)
    old_end = _end_of(to)
    total = (described.high_watermark or 0) - (described.log_start_offset or 0)
    with progress_bar(total) as advance:
        if isinstance(to, Bucket):
            return bucket.back_up(client, described, to, advance, _note), old_end
        take = parquet.back_up if _is_parquet(to) else back_up
        return take(client, described, to, advance, _note), old_end


def _end_of(place: Place) -> int | None:
    """Where the last backup into a place ended. None: none has, or each is written anew."""
    if _is_parquet(place):
        return None
    stored = FolderBackup(place) if isinstance(place, Path) else place
    try:
        manifest = stored.read_manifest()
    except InvalidRequestError:
        return None  # What is no backup is refused by the run.
    return manifest.end_offset if manifest.is_restorable else None


def _tell(cli: Invocation, manifest: Manifest, old_end: int | None, to: Place) -> None:
    new_from = manifest.start_offset if old_end is None else old_end
    row = {"stream": manifest.name, "to": str(to), **_summary(manifest), "new_from": new_from}
    new = ""
    if old_end is not None:
        is_new = old_end < manifest.end_offset
        new = f"new from offset {old_end}, " if is_new else "nothing new, "
    cli.answer(row, f"backed up {_text(manifest, new)} to {to}")


@common_options(patience=True)
def restore(
    cli: Invocation,
    from_: Annotated[
        str, typer.Argument(metavar="FROM", help="What `stream backup` wrote: its TO.")
    ],
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The new stream's name. Default: the old name."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="SUBJECT", help="The new stream's subject. Default: the old subject."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Number of replicas. Default: as many as before.")
    ] = None,
    observers: Annotated[
        int | None, typer.Option(min=0, help="Number of observers. Default: as many as before.")
    ] = None,
    without_lake: Annotated[
        bool,
        typer.Option("--without-lake", help="Do not use the lake, if the old stream did."),
    ] = False,
) -> None:
    """Make a stream of a backup.

    The new stream has the offsets, times, subjects, keys and headers of the old one. No stream of
    that name may exist. The new stream can be read meanwhile. It listens to its subject once
    everything was copied, read back and compared. If a restore is interrupted, run it again: it
    goes on where it stopped. A folder with the backup of a keyed group gives all its streams, under
    their old names.

    Examples:

      jetstream stream restore /backups/orders

      jetstream stream restore orders.parquet orders-copy --subject copy.orders
    """
    changed: dict[str, Any] = {"subject": subject, "replicas": replicas}
    changed = {each: value for each, value in changed.items() if value is not None}
    if replicas is not None:
        changed["min_insync_replicas"] = None
    if observers is not None:
        changed["observers"] = observers or None
    if without_lake:
        changed |= {each.name: each.default for each in STREAM_SETTINGS if each.name in _OF_LAKE}
    place = _place_of(from_)
    if isinstance(place, Path) and not place.exists():
        raise InvalidRequestError(f"there is no {from_}")
    several = backups_in(place)
    if several and name is not None:
        raise InvalidRequestError(
            f"{from_} holds the backups of several streams: name the folder of one to give it "
            "another name"
        )
    with interrupts.interrupted_once(), cli.client() as client:
        for each in several or [place]:
            _restore(cli, client, each, name, changed)


def _restore(
    cli: Invocation, client: Client, from_: Place, name: str | None, changed: dict[str, Any]
) -> None:
    if isinstance(from_, Path) and not from_.is_dir():
        stream, digest = parquet.restore(client, from_, name, progress_bar, **changed)
    else:
        _note_interrupted(from_)
        stream, digest = restore_stream(client, from_, name, progress_bar, **changed)
    row = {"stream": stream.name, "records": digest.count, "record_digest": digest.hexdigest()}
    records = f"{records_text(digest.count)}, record digest {digest.hexdigest()}"
    cli.answer(row, f"restored {stream.name}: {records}")


def _note(text: str) -> None:
    print(f"note: {printable(text)}", file=sys.stderr)


def _note_interrupted(place: Place) -> None:
    backup = FolderBackup(place) if isinstance(place, Path) else place
    manifest = backup.read_manifest()
    if manifest.is_restorable and backup.was_interrupted(manifest):
        _note(
            f"a later backup into {place} has not ended: this restores the one before"
            f"{_offsets(manifest)}"
        )


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "start_offset": manifest.start_offset,
        "end_offset": manifest.end_offset,
        "records": manifest.records,
        "record_digest": manifest.digest,
    }


def _text(manifest: Manifest, new: str) -> str:
    digest = "encrypted, without a record digest"
    if manifest.digest:
        digest = f"record digest {manifest.digest}"
    records = records_text(manifest.records)
    return f"{records} of {manifest.name}{_offsets(manifest)}, {new}{digest},"


def _offsets(manifest: Manifest) -> str:
    if not manifest.length:
        return " (empty)"
    return f", offsets {manifest.start_offset} to {manifest.end_offset - 1}"
