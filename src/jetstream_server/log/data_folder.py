"""The data folder of a node: its lock, its identity, and the streams in it.

    <data>/lock            held with flock while a server runs
    <data>/meta.json       {"format_version": 1, "cluster": "…", "cluster_id": "…", "node_id": 1,
                           "crc": "…"} (jetstream_protocol.logfiles.identity_file)
    <data>/runs            what is known of earlier runs (replication.run_record)
    <data>/metadata/       the metadata group's own files
    <data>/streams/<id>/   one log each, and <id>.offsets beside it
    <data>/quarantine/     streams that the metadata does not know, as <id>.<µs when set aside>;
                           taken back when the metadata knows them again

Crash policy: the names of the folders above are synced first. `meta.json` is written before
anything else, and once more when the cluster has agreed on its id (`join`), before there are any
streams. A folder without it is new; one whose `meta.json` is unreadable, or belongs to another
cluster, node or format, stops the start, since using it could mix two histories. `cluster` is the
configured name, for people; the id tells clusters apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Container
from dataclasses import asdict, dataclass, fields, replace

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.logfiles import identity_file
from jetstream_protocol.logfiles.names import OFFSETS_SUFFIX
from jetstream_protocol.types import WallUs
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.disk import Disk

FORMAT_VERSION = 1
IDENTITY_NAME = "meta.json"
_FOLDERS = ("streams", "metadata", "quarantine")


@dataclass(frozen=True, slots=True)
class Identity:
    """What meta.json says. "" stands for what is not known yet."""

    format_version: int
    cluster: str
    cluster_id: str
    node_id: int


class DataFolder:
    """An open, locked data folder."""

    def __init__(
        self, disk: Disk, path: str, identity: Identity, lock: int, *, lost_streams: bool
    ) -> None:
        self.lost_streams = lost_streams
        """Whether the folder of all streams is missing although the data folder was in use.
        **safety** It is made by `make_streams`, once that is noted: afterwards nothing shows it."""
        self.unsettled: dict[int, StorageError] = {}
        """The streams whose log may lie in the wrong folder, by id, and why it could not be moved.
        Their logs must not be opened."""
        self._disk = disk
        self._lock = lock
        # While it is open, the file system does not give its inode to another folder.
        self._held = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._identity = identity
        self.path = path

    @classmethod
    def open(cls, disk: Disk, path: str, *, node_id: int, cluster: str = "") -> DataFolder:
        """Lock the folder, and make it first if there is none.

        cluster: the configured name; "" for a node that is alone. Raises StorageError when the
        folder cannot be written or another server holds it, PreconditionFailedError when it
        belongs to another cluster, node or format.
        """
        path = os.path.abspath(path)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            _keep_others_out(path)
            lock = _take_lock(path)
        except OSError as error:
            raise storage_error(error, f"data folder {path} cannot be used") from error
        try:
            used = disk.exists(os.path.join(path, IDENTITY_NAME))
            lost_streams = used and not disk.exists(os.path.join(path, "streams"))
            for name in ("metadata", "quarantine") if lost_streams else _FOLDERS:
                os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)
            if not used:
                _sync_parents(disk, path)
            identity = _check_identity(disk, path, node_id, cluster)
            disk.fsync_directory(path)  # An earlier start may have ended before it did.
            return cls(disk, path, identity, lock, lost_streams=lost_streams)
        except OSError as error:
            os.close(lock)
            raise storage_error(error, f"data folder {path} cannot be used") from error
        except (StorageError, PreconditionFailedError):
            os.close(lock)
            raise

    @property
    def cluster_id(self) -> str:
        """The id of the node's cluster; "" until the node has joined one."""
        return self._identity.cluster_id

    @property
    def node_id(self) -> int:
        return self._identity.node_id

    def join(self, cluster_id: str) -> None:
        """Record the cluster that the metadata group belongs to. Raises PreconditionFailedError
        when the folder belongs to another cluster, StorageError when the record cannot be
        written."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise PreconditionFailedError(
                f"{self.path} belongs to cluster {self.cluster_id}, but its metadata group is that "
                f"of cluster {cluster_id}; if {IDENTITY_NAME} there is wrong, write {cluster_id} "
                f"as its `cluster_id` and take its `crc` out; if the metadata is wrong, move "
                f"{self.metadata_directory} away while a majority of the other voters runs"
            )
        identity = replace(self._identity, cluster_id=cluster_id)
        try:
            _write_identity(self._disk, os.path.join(self.path, IDENTITY_NAME), identity)
        except OSError as error:
            raise storage_error(error, f"data folder {self.path} cannot be written") from error
        self._identity = identity

    @property
    def metadata_directory(self) -> str:
        return os.path.join(self.path, "metadata")

    def stream_directory(self, stream_id: int) -> str:
        return os.path.join(self.path, "streams", str(stream_id))

    def make_streams(self) -> None:
        """Make the folder of all streams if it was lost; durable on return. Raises
        StorageError."""
        if not self.lost_streams:
            return
        try:
            self._disk.make_directory(os.path.join(self.path, "streams"))
            self._disk.fsync_directory(self.path)
        except OSError as error:
            raise storage_error(error, f"data folder {self.path} cannot be used") from error

    def has_stream(self, stream_id: int) -> bool:
        """Whether the stream has a folder here. Raises StorageError."""
        directory = self.stream_directory(stream_id)
        try:
            return self._disk.exists(directory)
        except OSError as error:
            raise storage_error(error, f"looking for {directory}") from error

    def stream_ids(self) -> list[int]:
        """The streams that have a folder here, registered or not."""
        names = self._disk.list_directory(os.path.join(self.path, "streams"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    # Folders of streams that are not registered are set aside at once. They are deleted much later,
    # and only if the streams were deleted or other nodes hold them.

    def quarantine(self, stream_id: int, wall_us: WallUs) -> None:
        """Set a stream's folder aside. Call it only after a metadata barrier has shown that the
        stream is not registered. Raises StorageError."""
        target = os.path.join(self.path, "quarantine", f"{stream_id}.{wall_us}")
        try:
            self._disk.rename(self.stream_directory(stream_id), target)
            offsets = self.stream_directory(stream_id) + OFFSETS_SUFFIX
            if self._disk.exists(offsets):  # Otherwise it would report the folder as missing.
                self._disk.rename(offsets, target + OFFSETS_SUFFIX)
            self._disk.fsync_directory(os.path.dirname(target))
            self._disk.fsync_directory(os.path.join(self.path, "streams"))
        except OSError as error:
            raise storage_error(error, f"setting stream {stream_id} aside") from error

    def take_back(self, stream_id: int, created_at_us: WallUs) -> bool:
        """Put back the newest folder that was set aside for a stream. Returns whether it did.

        created_at_us: when the stream with this id was created. A folder set aside before then is
        another stream's: after metadata was lost for good, ids are given out again.

        **safety** Not if an offsets file here and one there show two logs: the one here is newer,
        and its folder was lost. If only one of them is there, a move ended between its renames.
        Raises StorageError.
        """
        target = self.stream_directory(stream_id)
        if self.has_stream(stream_id):
            return False
        root = os.path.join(self.path, "quarantine")
        try:
            found = [at for known, at in self._quarantined_folders() if known == stream_id]
            if not found or max(found) < created_at_us:
                return False
            source = os.path.join(root, f"{stream_id}.{max(found)}")
            if self._disk.exists(source + OFFSETS_SUFFIX):
                if self._disk.exists(target + OFFSETS_SUFFIX):
                    return False
                # First: without it, nothing would tell what the log lacks.
                self._disk.rename(source + OFFSETS_SUFFIX, target + OFFSETS_SUFFIX)
            self._disk.rename(source, target)
            self._disk.fsync_directory(os.path.dirname(target))
            self._disk.fsync_directory(root)
        except OSError as error:
            raise storage_error(error, f"taking stream {stream_id} back") from error
        return True

    def delete_quarantined(self, until_us: WallUs, not_needed: Container[int]) -> list[str]:
        """Delete the folders that were set aside until then and whose streams are known not to
        need them. Returns the names of the folders."""
        root = os.path.join(self.path, "quarantine")
        names = [
            f"{stream_id}.{at}"
            for stream_id, at in self._quarantined_folders()
            if at <= until_us and stream_id in not_needed
        ]
        for name in names:
            shutil.rmtree(os.path.join(root, name))
            offsets = os.path.join(root, name + OFFSETS_SUFFIX)
            if self._disk.exists(offsets):
                self._disk.remove(offsets)
        return names

    def _quarantined_folders(self) -> list[tuple[int, int]]:
        """Stream id and time (µs) of each folder that was set aside."""
        names = self._disk.list_directory(os.path.join(self.path, "quarantine"))
        parts = [name.partition(".") for name in names if name.isascii()]
        return [(int(a), int(b)) for a, _, b in parts if a.isdigit() and b.isdigit()]

    def why_gone(self) -> str:
        """Why the path does not lead to this folder any more; "" while it does. Once it does not,
        data written to open files is lost and the lock protects nothing."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            return f"the data folder {self.path} cannot be found any more: {error.strerror}"
        held = os.fstat(self._held)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return ""
        return f"another folder has taken the place of the data folder {self.path}"

    def close(self) -> None:
        """Close the folder and release its lock."""
        os.close(self._held)
        os.close(self._lock)


def _keep_others_out(path: str) -> None:
    """A folder that others on the machine may enter, as earlier releases made it, is closed to
    them: they could read what is in it, and hold its lock. A mode that admits only a group was
    somebody's choice, and stays. So does that of a folder of another user, such as a volume."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        with contextlib.suppress(PermissionError):
            os.chmod(path, mode & 0o7700)


def _take_lock(path: str) -> int:
    """Lock the folder. Returns a descriptor that holds the lock until it is closed or the process
    ends."""
    lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StorageError(f"data folder {path} is in use by another running server") from error
    return lock


def _sync_parents(disk: Disk, path: str) -> None:
    """Sync the names of the folders that lead to this one: any of them may be new."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
        with contextlib.suppress(PermissionError):
            disk.fsync_directory(path)


def _check_identity(disk: Disk, path: str, node_id: int, cluster: str) -> Identity:
    """Compare meta.json with what is expected, or write it."""
    file = os.path.join(path, IDENTITY_NAME)
    if not disk.exists(file):
        if os.listdir(os.path.join(path, "streams")):
            raise PreconditionFailedError(
                f"{path} holds streams but no meta.json; restore the file, or move the folder away"
            )
        identity = Identity(FORMAT_VERSION, cluster, "", node_id)
        _write_identity(disk, file, identity)
        return identity
    found = _read_identity(disk, file)
    if found.format_version != FORMAT_VERSION:
        raise PreconditionFailedError(
            f"{path} has format {found.format_version}; this software uses format {FORMAT_VERSION}"
        )
    if found.node_id != node_id:
        raise PreconditionFailedError(
            f"{path} belongs to node {found.node_id}, and this is node {node_id}"
        )
    if "" not in (found.cluster, cluster) and found.cluster != cluster:
        raise PreconditionFailedError(
            f"{path} belongs to cluster {found.cluster}, and this is cluster {cluster}"
        )
    return found


def _write_identity(disk: Disk, file: str, identity: Identity) -> None:
    disk.write_atomic(file, identity_file.encode(asdict(identity), indent=2))


def _read_identity(disk: Disk, file: str) -> Identity:
    try:
        names = [field.name for field in fields(Identity)]
        meta = identity_file.decode(disk.read_file(file), names)
        return Identity(
            int(meta["format_version"]),
            str(meta["cluster"]),
            str(meta["cluster_id"]),
            int(meta["node_id"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PreconditionFailedError(
            f"{file} is damaged ({error}); restore it, or correct it and take its `crc` out: see "
            f"docs/operations/lost_node.md; or, where other nodes hold the streams, move "
            f"{os.path.dirname(file)} away and start anew"
        ) from error
