"""The backup of a keyed group: a folder with a backup (backup.py) of each of its streams, in a
folder that is named after the stream."""

from __future__ import annotations

from pathlib import Path

from jetstream_client.migration.backup import MANIFEST, FolderBackup
from jetstream_client.migration.bucket import Bucket
from jetstream_client.migration.manifest import Manifest
from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError

Place = Path | Bucket


def begin_group(folder: Place) -> None:
    """Make the folder, if there is none. Raises InvalidRequestError for one that holds something
    else."""
    if isinstance(folder, Bucket):
        if folder.get(MANIFEST) is not None or folder.names():
            raise InvalidRequestError(f"{folder} holds something else: say another place")
        return
    if (folder / MANIFEST).exists():
        raise InvalidRequestError(f"{folder} holds the backup of one stream: say another folder")
    if folder.exists() and not all(each.is_dir() for each in folder.iterdir()):
        raise InvalidRequestError(f"{folder} is not empty and holds no backup: say another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _backups_below(folder: Place) -> list[tuple[Place, Manifest]]:
    if isinstance(folder, Bucket):
        if folder.get(MANIFEST) is not None:
            return []
        below = (each for each in folder.folders() if each.get(MANIFEST) is not None)
        return [(each, each.read_manifest()) for each in below]
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return []
    return [
        (each, FolderBackup(each).read_manifest())
        for each in sorted(folder.iterdir())
        if not each.is_symlink() and (each / MANIFEST).exists()
    ]


def backups_in(folder: Place) -> list[Place]:
    """The folders of the streams, by partition; empty if it is not the backup of a keyed group.
    Raises PreconditionFailedError if it lacks some, or the backup of some has not ended."""
    found = _backups_below(folder)
    by_number = {_partition_of(manifest): each for each, manifest in found}
    groups = {str(manifest.settings.get("group")) for _, manifest in found}
    if len(groups) != 1 or None in by_number or len(by_number) != len(found):
        return []
    wanted = min(int(manifest.settings.get("partitions") or 0) for _, manifest in found)
    if missing := [number for number in range(wanted) if number not in by_number]:
        raise PreconditionFailedError(
            f"{folder} lacks the backups of partitions {missing} of {wanted} of group "
            f"{groups.pop()!r}: run the same `stream backup` again"
        )
    for each, manifest in found:
        if not manifest.is_restorable:
            raise PreconditionFailedError(
                f"no backup into {each} has ended yet: run the same `stream backup` again"
            )
    return [each for _, each in sorted(by_number.items(), key=lambda item: item[0] or 0)]


def _partition_of(manifest: Manifest) -> int | None:
    number = manifest.settings.get("partition")
    return number if isinstance(number, int) and manifest.settings.get("group") else None
