"""The description of a backup: `manifest.json` in its folder, or the metadata of a Parquet file.

A manifest in a folder describes the last run that ended. Before the first one ends, it says only
which stream is copied: it has no files, no digest, and is not `is_complete`. Earlier releases also
cleared `is_complete` while a later run went on, and left the rest as it was.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from jetstream_client.values.types import Stream
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.settings import STREAM_SETTINGS

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
_KNOWN = {*_SETTINGS, *(each.name for each in _LATER), "observers"}


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

    def _check(self) -> None:
        """Raise ValueError for what a run never writes: a backup may come from somebody else."""
        for each in self.files:
            if each.name != f"{each.base_offset:020}.log" or each.base_offset < 0:
                raise ValueError(f"{each.name!r} is not the name of a file of a backup")
            if not each.length >= 0:
                raise ValueError(f"the length of {each.name} is {each.length}")
        if unknown := self.settings.keys() - _KNOWN:
            raise ValueError(f"there is no setting {min(unknown)!r}")

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
        if not self.tombstones_gone_below:
            del values["tombstones_gone_below"]  # Earlier releases do not know it.
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Raises InvalidRequestError for what no backup says."""
        try:
            values = json.loads(text)
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
