"""The backup of a keyed group: a folder with a backup (backup.py) of each of its streams, in a
folder that is named after the stream."""

from __future__ import annotations

from pathlib import Path

from jetstream_client.migration.backup import MANIFEST, read_manifest
from jetstream_client.migration.manifest import Manifest
from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError


def begin_group(folder: Path) -> None:
    """Make the folder, if there is none. Raises InvalidRequestError for one that holds something
    else."""
    if (folder / MANIFEST).exists():
        raise InvalidRequestError(f"{folder} holds the backup of one stream: say another folder")
    if folder.exists() and not all(each.is_dir() for each in folder.iterdir()):
        raise InvalidRequestError(f"{folder} is not empty and holds no backup: say another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def backups_in(folder: Path) -> list[Path]:
    """The folders of the streams, by partition; empty if it is not the backup of a keyed group.
    Raises PreconditionFailedError if it lacks some, or the backup of some has not ended."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return []
    found = [
        (each, read_manifest(each))
        for each in sorted(folder.iterdir())
        if not each.is_symlink() and (each / MANIFEST).exists()
    ]
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
    return [each for _, each in sorted((number or 0, each) for number, each in by_number.items())]


def _partition_of(manifest: Manifest) -> int | None:
    number = manifest.settings.get("partition")
    return number if isinstance(number, int) and manifest.settings.get("group") else None
