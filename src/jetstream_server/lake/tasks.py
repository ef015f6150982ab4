"""What the process that copies to the lake is told (worker.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_server.lake.stores import StoreOptions


def folder_of(cluster_id: str, stream_id: int, created_at_us: int) -> str:
    """A stream's folder in the store.

    **safety** The id alone does not tell which stream it was: metadata that was put back from an
    older copy gives ids again, and what one stream does not need another one may.
    """
    return f"{cluster_id}/{stream_id}-{created_at_us}"


def owner_properties(cluster_id: str, stream_id: int) -> dict[str, str]:
    """The properties by which a table says of which stream it is. A sweep compares them."""
    return {"jetstream.cluster-id": cluster_id, "jetstream.stream-id": str(stream_id)}


@dataclass(frozen=True, slots=True)
class Task:
    """path, position, length: of the batches of [begin, end), in a file that does not change.

    The first batch may begin before `begin`, if records before that were purged. folder: of the
    stream in the store. location: of the table so far; "": there is none. attempt: names the object
    of this attempt: a name that an earlier one has left must not be in its way. start: where the
    stream begins in the lake. properties: of the table. schema: of the stream, as this node knows
    it; "": it has none.
    """

    store: StoreOptions
    folder: str
    location: str
    path: str
    position: int
    length: int
    begin: int
    end: int
    start: int
    attempt: str
    bytes_per_second: int
    parent: int
    properties: dict[str, str] = field(default_factory=dict)
    schema: str = ""
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class TrimTask:
    """Take out of the table at `location` what is before `start`, was appended before `oldest_us`,
    or is beyond `bytes_max` bytes of objects (0: any number)."""

    store: StoreOptions
    folder: str
    location: str
    start: int
    oldest_us: int
    parent: int
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class AdoptTask:
    """Make the table at `adopted` that of the stream with this folder and these properties: the URL
    of a version's metadata, or of a stream's folder."""

    store: StoreOptions
    folder: str
    adopted: str
    parent: int
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MarkTask:
    """Note in the store that the table at `location` was committed, in place of the one at
    `before` ("": there was none)."""

    store: StoreOptions
    folder: str
    location: str
    before: str
    parent: int
