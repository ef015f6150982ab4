"""The description of a backup: `manifest.json` in its folder, or the metadata of a Parquet file.

A manifest in a folder describes the last run that ended. Before the first one ends, it says only
which stream is copied: it has no files, no digest, and is not `is_complete`. Earlier releases also
cleared `is_complete` while a later run went on, and left the rest as it was.
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from dataclasses import dataclass
from typing import Any

from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import Stream
from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import parse
from jetstream_protocol.settings import STREAM_SETTINGS, Kind
from jetstream_protocol.stream_names import PARTITIONS_MAX

FORMAT = "jetstream-backup"
VERSION = 1

_KEPT = [
    each for each in STREAM_SETTINGS if each.name not in ("replicas", "restoring", "observers")
]
_LEVEL_OF_ALL = 2
"""Settings of later feature levels are there only if the stream has them: older servers do not know
them."""
_SETTINGS = (
    "group", "partition", "partitions",
    *(each.name for each in _KEPT if each.level <= _LEVEL_OF_ALL),
)  # fmt: skip
_LATER = [each for each in _KEPT if each.level > _LEVEL_OF_ALL]
_KINDS = {each.name: each.kind for each in STREAM_SETTINGS}
_KNOWN = {*_SETTINGS, *(each.name for each in _LATER), "observers"}
END_MAX = 2**43
"""Upper bound on the offsets of a backup: those without records are covered by batches without any
(800 MB). Twice what an import takes."""
_TYPES = {"str": str, "int": int, "bool": bool, "dict[str, Any]": dict}
"""The types of the fields, by their annotations below."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of batches that holds the offsets [base_offset, next_offset). crc32c: of all of it."""

    name: str
    base_offset: int
    next_offset: int
    length: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """records, digest: of the records in [start_offset, end_offset), as `RecordDigest` has them. Of
    a backup with encrypted batches there is no digest, and `records` counts those of all batches.

    last_epoch: the leader epoch of the last record; with the cluster and the stream's id it tells
    whether a later backup continues this one. tombstones_gone_below: until the first run has ended,
    compaction had removed tombstones below that offset when it began; it is written only then.
    schema: of the stream's values when the last run began; it is written only if there was one.
    """

    cluster_id: str
    stream_id: int
    name: str
    subject: str
    replicas: int
    settings: dict[str, Any]
    start_offset: int
    end_offset: int
    last_epoch: int = -1
    records: int = 0
    digest: str = ""
    files: tuple[BackupFile, ...] = ()
    is_complete: bool = False
    tombstones_gone_below: int = 0
    schema: str = ""

    def _check(self) -> None:
        """Raise ValueError for what a run never writes: a backup may come from somebody else."""
        _check_types(self)
        if not 0 <= self.start_offset <= self.end_offset <= END_MAX:
            raise ValueError(f"it cannot hold the offsets {self.start_offset} to {self.end_offset}")
        begins_at = 0
        for each in self.files:
            _check_types(each)
            if not begins_at <= each.base_offset < each.next_offset <= self.end_offset:
                raise ValueError(f"{each.name!r} cannot end before offset {each.next_offset}")
            begins_at = each.next_offset
            if each.name != f"{each.base_offset:020}.log" or each.base_offset < 0:
                raise ValueError(f"{each.name!r} is not the name of a file of a backup")
            if not each.length >= 0:
                raise ValueError(f"the length of {each.name} is {each.length}")
        if unknown := self.settings.keys() - _KNOWN:
            raise ValueError(f"there is no setting {min(unknown)!r}")
        if self.schema:
            try:
                parse(self.schema)
            except InvalidRequestError as error:
                raise ValueError(error.message) from error
        for name, value in self.settings.items():
            if not _may_be(name, value):
                raise ValueError(f"the setting {name} is {reprlib.repr(value)}")

    @property
    def is_restorable(self) -> bool:
        """Whether a run has ended. The digest is that of no records if it had none to copy."""
        return self.is_complete or bool(self.files) or bool(self.digest)

    @property
    def bounds(self) -> tuple[int, int]:
        """Its first offset, and the one after its last."""
        return self.start_offset, self.end_offset

    @property
    def length(self) -> int:
        """How many offsets it covers, gaps included."""
        return self.end_offset - self.start_offset

    def to_json(self) -> str:
        values = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        for each in ("tombstones_gone_below", "schema"):
            if not values[each]:
                del values[each]  # Earlier releases do not know it.
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Raises InvalidRequestError for what no backup says."""
        try:
            values = bounded_json.loads(text)
            found, version = values.pop("format"), values.pop("version")
            if found != FORMAT or version != VERSION:
                raise InvalidRequestError(
                    f"{where} is {found} of version {version}; this software reads {FORMAT} of "
                    f"version {VERSION}"
                )
            files = tuple(BackupFile(**each) for each in values.pop("files"))
            manifest = cls(files=files, **values)
            manifest._check()
            return manifest
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequestError(f"{where} is not the manifest of a backup: {error}") from None


def _may_be(name: str, value: object) -> bool:
    """Whether a setting may have that value, as far as its type tells."""
    kind = _KINDS.get(name)
    if kind is Kind.FLAG:
        return type(value) is bool
    if name == "group" or kind in (Kind.CHOICE, Kind.TEXT):
        return type(value) is str
    if kind is None:
        # Partitions, and the number of observers.
        return value is None or (type(value) is int and 0 <= value <= PARTITIONS_MAX)
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _check_types(found: Manifest | BackupFile) -> None:
    """Raises ValueError for a field of another type."""
    for each in dataclasses.fields(found):
        value, wanted = getattr(found, each.name), _TYPES.get(str(each.type))
        if wanted is not None and type(value) is not wanted:
            raise ValueError(f"{each.name} is {reprlib.repr(value)}")


def schema_of(client: Client, stream: Stream) -> str:
    """The schema of a stream's values; "": it has none, or its server is of an earlier release."""
    try:
        return client.describe_schema(stream).text
    except InvalidRequestError:
        return ""


def settings_of(stream: Stream) -> dict[str, Any]:
    """What another stream is created with to have the same settings, but for the replicas.
    `observers` is their number."""
    settings = {name: getattr(stream, name) for name in _SETTINGS}
    for each in _LATER:
        if (value := getattr(stream, each.name)) != each.default:
            settings[each.name] = value
    if stream.observers:
        settings["observers"] = len(stream.observers)
    return settings
