"""Backups in a bucket: `s3://bucket/prefix`, of any server that speaks S3.

The objects have the names and the content of the files of a backup in a folder (backup.py), so that
either may be copied to the other. Each is stored by one request, which fails if there is one of
that name, and is read back and compared before it counts. Nothing is kept on this machine: what
goes into the next object is in memory, and is at most OBJECT_BYTES, or one batch.

**safety** Objects are never written anew, but for the manifest, which a run replaces at its end.
Two runs at a time go on at the same offset, so one of them finds the name of its object taken.

Credentials, region and endpoint come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL` …), as for other programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import (
    FILE_BYTES,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Advance,
    BackupRun,
    Note,
    StoredBackup,
    begun,
    copied,
    describe_with_end,
)
from jetstream_client.migration.manifest import BackupFile, Manifest
from jetstream_client.migration.restore_writer import check_restorable
from jetstream_client.values.types import StreamDescription, StreamLike
from jetstream_protocol.batch import BatchHeader, crc32c
from jetstream_protocol.buckets import bucket_and_prefix, secrets_of, shown
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.extras import needed_by
from jetstream_protocol.logfiles.scan import walk

OBJECT_BYTES: Final = 32 * 1024 * 1024
_BYTES_MAX: Final = 2 * FILE_BYTES
"""Upper bound on an object. One may be a copied file, or one batch."""
_OF_THE_CLOUD: Final = "169.254.169.254"
"""Where each cloud tells its machines their credentials."""
_NAME: Final = re.compile(r"[0-9]{20}\.log")
_SECONDS_MAX: Final = 600.0

Result = TypeVar("Result")


class Bucket(StoredBackup):
    """A place for backups, as pathlib's `Path` is one. Methods raise UnavailableError."""

    def __init__(self, url: str, store: Any = None) -> None:
        """store: of obstore; None: it is opened by the URL. Raises InvalidRequestError."""
        name, self._prefix = bucket_and_prefix(url)
        self._url = url.rstrip("/")
        self._store = _opened(name) if store is None else store

    def __str__(self) -> str:
        return self._url

    def __truediv__(self, name: str) -> Bucket:
        return Bucket(f"{self._url}/{name}", self._store)

    def get(self, name: str, bytes_max: int = _BYTES_MAX) -> bytes | None:
        """An object; None: there is none. Raises CorruptBatchError for a longer one, unread: it is
        somebody else's."""
        import obstore

        try:
            found = self._ask(lambda: obstore.get(self._store, self._prefix + name))
            if found.meta["size"] > bytes_max:
                raise CorruptBatchError(f"{self}/{name} is too large: no backup has such an object")
            return self._ask(lambda: bytes(found.bytes()))
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes, *, is_new: bool) -> None:
        """Store an object, and compare what the store gives back. is_new: raises FileExistsError if
        there is one of that name. Raises CorruptBatchError if the store gives back other bytes."""
        import obstore

        mode = "create" if is_new else "overwrite"
        self._ask(
            lambda: obstore.put(
                self._store, self._prefix + name, data, mode=mode, use_multipart=False
            )
        )
        if self.get(name) != data:
            raise CorruptBatchError(f"{self} does not give back what was stored as {name}")

    def names(self) -> list[str]:
        return sorted(each for each in self._listed("objects") if _NAME.fullmatch(each))

    def folders(self) -> list[Bucket]:
        """Those in this one, by name."""
        return [self / each for each in sorted(self._listed("common_prefixes"))]

    def _listed(self, kind: str) -> list[str]:
        import obstore

        found = self._ask(lambda: obstore.list_with_delimiter(self._store, prefix=self._prefix))
        paths = [each if isinstance(each, str) else each["path"] for each in found[kind]]
        return [each.rstrip("/").rpartition("/")[2] for each in paths]

    def _ask(self, call: Callable[[], Result]) -> Result:
        from obstore import exceptions

        try:
            return call()
        except FileNotFoundError:
            raise
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise FileExistsError from None
        except (exceptions.BaseError, OSError) as error:
            # Not `from error`: it may show more than this.
            text = reason(shown(error, secrets_of(os.environ)))
            raise UnavailableError(f"{self}: {text}") from None

    # A backup that can be restored (restore.py).

    def read_manifest(self) -> Manifest:
        found = self.get(MANIFEST, MANIFEST_BYTES_MAX)
        if found is None:
            raise InvalidRequestError(f"{self} holds no backup: it has no {MANIFEST}")
        return Manifest.from_json(found, f"{self}/{MANIFEST}")

    def check(self, file: BackupFile) -> None:
        self._checked(file)

    def batches(self, file: BackupFile) -> Iterator[tuple[BatchHeader, bytes]]:
        return batches_in(self._checked(file))

    def _checked(self, file: BackupFile) -> bytes:
        data = self.get(file.name, min(file.length, _BYTES_MAX))
        if data is None:
            raise CorruptBatchError(f"the backup lacks its object {self}/{file.name}")
        if len(data) != file.length or f"{crc32c(data):08x}" != file.crc32c:
            raise CorruptBatchError(f"{self}/{file.name} is not as it was written")
        return data


def reason(text: str) -> str:
    """What the library says, in the caller's terms: without keys it asks the machine's cloud."""
    if _OF_THE_CLOUD not in text:
        return text
    return "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def batches_in(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Whole batches, both of their CRCs checked. Raises CorruptBatchError."""
    for position, header in walk(
        lambda at, length: data[at : at + length], 0, len(data), bodies=True
    ):
        yield header, data[position : position + header.length]


class BucketRun(BackupRun):
    """The objects of a backup that is being taken."""

    def __init__(self, bucket: Bucket, manifest: Manifest) -> None:
        super().__init__(bucket, manifest)
        self._bucket = bucket
        self._buffer = bytearray()
        self._begin = 0

    def find(self) -> None:
        for header, batch in self._bucket.stored_batches(self.manifest):
            check_restorable(batch, 0)
            self._note(header, batch)
        self._done += self.manifest.files
        for name in self._bucket.unlisted(self.manifest):
            self._take(name)
        self._know_gone()

    def _take(self, name: str) -> None:
        data = self._bucket.get(name) or b""
        self._note_left(int(name[:20]), batches_in(data), f"{self._bucket}/{name}")
        self._add(name, data)

    def _append(self, header: BatchHeader, batch: bytes) -> None:
        if self._buffer and len(self._buffer) + header.length > OBJECT_BYTES:
            self._close_file()
        if not self._buffer:
            self._begin = header.base_offset
        self._buffer += batch

    def _close_file(self) -> None:
        if not self._buffer:
            return
        name, data = f"{self._begin:020}.log", bytes(self._buffer)
        try:
            self._bucket.put(name, data, is_new=True)
        except FileExistsError:
            raise PreconditionFailedError(
                f"another backup into {self._bucket} is under way, or the answer to this one's "
                "last request was lost: run it again once no other runs"
            ) from None
        self._add(name, data)
        self._buffer.clear()

    def _add(self, name: str, data: bytes) -> None:
        crc = f"{crc32c(data):08x}"
        self._done.append(BackupFile(name, int(name[:20]), self.next_offset, len(data), crc))

    def _write(self, manifest: Manifest) -> None:
        self._bucket.put(MANIFEST, manifest.to_json().encode(), is_new=False)

    def close(self) -> None:
        self._buffer.clear()


def back_up(
    client: Client, stream: StreamLike, bucket: Bucket, advance: Advance,
    note: Note = lambda text: None,
) -> Manifest:  # fmt: skip
    """As backup.py's, to a bucket."""
    described = describe_with_end(client, stream)
    cluster_id = client.describe_cluster().cluster_id

    def begin(described: StreamDescription) -> BucketRun:
        found = bucket.get(MANIFEST, MANIFEST_BYTES_MAX)
        if found is None and bucket.names():
            raise InvalidRequestError(f"{bucket} holds no backup, but other objects")
        known = None if found is None else Manifest.from_json(found, f"{bucket}/{MANIFEST}")
        return BucketRun(bucket, begun(known, cluster_id, described, str(bucket), "place"))

    return copied(client, described, begin, advance, note)


def _opened(name: str) -> Any:
    with needed_by("a bucket", "lake"):
        from obstore import exceptions
        from obstore.store import S3Store
    endpoint = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))
    try:
        return S3Store(
            name,
            client_options={
                "timeout": timedelta(seconds=_SECONDS_MAX),
                "connect_timeout": timedelta(seconds=5),
                "allow_http": endpoint.startswith("http://"),
            },
            **({"endpoint": endpoint} if endpoint else {}),
        )
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidRequestError(
            f"the bucket cannot be used: {shown(error, secrets_of(os.environ))}"
        ) from None
