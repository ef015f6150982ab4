"""A store of objects in a bucket: `s3://bucket/prefix`, of any server that speaks S3.

Objects are written once, each by a single request that creates it or fails, and never changed. A
request is not repeated here: whoever asks knows whether that is safe. **safety** A put that failed
as `StoreAwayError` may have been stored. Only its name is taken then.

A request may take `timeout_s`, and one with more than BYTES_IN_TIME longer in proportion: a slow
link is none that is away.

Errors are OSErrors of five kinds, so that callers need to know none of a store's own. No text of
one holds a credential.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import obstore
from obstore import exceptions
from obstore.store import S3Store

from jetstream_protocol.buckets import bucket_and_prefix, secrets_of, shown
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_server.lake.stores import (
    LISTED_MAX,
    WHOLE_BYTES_MAX,
    Listed,
    StoreAwayError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
    StoreOptions,
    StoreRefusedError,
    too_long_error,
)

Result = TypeVar("Result")

BYTES_IN_TIME: Final = 8 * 1024 * 1024
"""What a request with the usual time-out carries: 140 kB/s in a minute."""
_FULL: Final = (
    "status code: 507",
    "no space left",
    "quotaexceeded",
    "storagefull",
    "insufficientstorage",
)
_REFUSED: Final = (
    "status code: 400", "status code: 401", "status code: 403", "nosuchbucket", "permission denied",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BucketConfig:
    """Where the bucket is, and how to reach it.

    endpoint: "" for Amazon's own. Without access_key_id, credentials come from the environment or
    from the machine's role, as for other programs. timeout_s: of one request, with all its bytes if
    they are no more than BYTES_IN_TIME.
    """

    url: str
    endpoint: str = ""
    region: str = "us-east-1"
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    timeout_s: float = 60.0


class BucketStore:
    """Methods block, and raise StoreError. For any thread."""

    def __init__(
        self,
        store: Any,
        prefix: str = "",
        secrets: tuple[str, ...] = (),
        url: str = "",
        patient: Callable[[int], Any] | None = None,
    ) -> None:
        """store: of obstore. prefix: of all names. secrets: never shown in an error. patient: makes
        a store whose time-out is so many times as long."""
        self.url = url.rstrip("/")
        self._store = store
        self._patient = patient
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._secrets = tuple(each for each in secrets if each)

    @classmethod
    def of(cls, config: BucketConfig) -> BucketStore:
        """Raises InvalidRequestError. Asks the store for nothing."""
        name, prefix = bucket_and_prefix(config.url)
        options: dict[str, Any] = {"region": config.region}
        if config.endpoint:
            options["endpoint"] = config.endpoint
        if config.access_key_id:
            options["access_key_id"] = config.access_key_id
            options["secret_access_key"] = config.secret_access_key
        if config.session_token:
            options["session_token"] = config.session_token
        secrets = (
            config.secret_access_key, config.session_token, config.access_key_id,
            *secrets_of(os.environ),
        )  # fmt: skip

        def make(times: int) -> Any:
            return S3Store(
                name,
                client_options={
                    "timeout": timedelta(seconds=config.timeout_s * times),
                    "connect_timeout": timedelta(seconds=min(5.0, config.timeout_s)),
                    "allow_http": config.endpoint.startswith("http://"),
                },
                retry_config={
                    "max_retries": 0,
                    "retry_timeout": timedelta(seconds=config.timeout_s * times),
                },
                **options,
            )

        try:
            store = make(1)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            reason = shown(error, secrets)
            raise InvalidRequestError(f"the bucket cannot be used: {reason}") from None
        return cls(store, prefix, secrets, config.url, make)

    @classmethod
    def of_options(cls, options: StoreOptions) -> BucketStore:
        """Raises InvalidRequestError, and OSError for credentials that cannot be read."""
        return cls.of(
            BucketConfig(
                options.url,
                options.endpoint,
                **({"region": options.region} if options.region else {}),
                **read_credentials(options.credentials_file),
                timeout_s=options.timeout_s,
            )
        )

    def put(self, name: str, data: bytes) -> None:
        """Create an object; durable on return. Raises StoreExistsError for a name in use."""
        store = self._store_for(len(data))
        self._ask(
            f"storing {name}",
            lambda: obstore.put(
                store, self._prefix + name, data, mode="create", use_multipart=False
            ),
        )

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        """An object, or a part of it. Raises CorruptBatchError for one that ends early."""
        if not length:
            return b""
        wanted = WHOLE_BYTES_MAX if length < 0 else length
        options = {} if length < 0 else {"range": (position, position + length)}
        store, path = self._store_for(max(length, 0)), self._prefix + name

        def received() -> list[Any]:
            parts, size = [], 0
            for part in obstore.get(store, path, options=options).stream(min_chunk_size=1024**2):
                parts.append(part)
                size += len(part)
                if size > wanted:
                    return parts
            return parts

        data = b"".join(self._ask(f"reading {name}", received))
        if len(data) > wanted:
            raise too_long_error(name)
        if length < 0:
            return data[position:]
        if len(data) != length:
            raise CorruptBatchError("the object ends early", name, position + len(data))
        return data

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects whose names begin with `prefix`, which ends at a slash."""
        pages = iter(obstore.list(self._store, prefix=self._prefix + prefix))
        count = 0
        while True:
            page = self._ask(f"listing {prefix}", lambda: next(pages, None))
            if page is None:
                return
            count += len(page)
            if count > LISTED_MAX:
                raise StoreError(f"there are more than {LISTED_MAX} objects below {prefix}")
            for each in page:
                yield Listed(each["path"][len(self._prefix) :], each["size"])

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders in a folder, whose name ends at a slash."""
        path = self._prefix + prefix
        found = self._ask(
            f"listing {prefix}", lambda: obstore.list_with_delimiter(self._store, prefix=path)
        )
        yield from (each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def delete(self, *names: str) -> None:
        """Delete objects, those that are there. A thousand take one request."""
        paths = [self._prefix + name for name in names]
        try:
            self._ask(f"deleting {names[0]}", lambda: obstore.delete(self._store, paths))
        except StoreMissingError:  # Not every store says so.
            for name in names if len(names) > 1 else ():
                self.delete(name)

    def _store_for(self, length: int) -> Any:
        """The store that waits long enough for so many bytes. One that was made for a request has
        connections of its own: the request is long enough to bear that."""
        if self._patient is None or length <= BYTES_IN_TIME:
            return self._store
        return self._patient(-(-length // BYTES_IN_TIME))

    def _ask(self, doing: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (exceptions.BaseError, OSError) as error:
            # Not `from error`: a traceback would show what the store said, unredacted.
            raise _store_error(error, doing, self._secrets) from None


def read_credentials(path: str) -> dict[str, str]:
    """The credentials in the section [default] of a file; "": none. Raises StoreRefusedError, which
    shows nothing of the file."""
    if not path:
        return {}
    # Not interpolated: a secret may have any character.
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        section = parser["default"]
        found = {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "session_token": section.get("aws_session_token", ""),
        }
    except OSError as error:
        raise StoreRefusedError(f"the credentials cannot be read: {error}") from None
    except (configparser.Error, KeyError, ValueError):
        raise StoreRefusedError(
            f"{path} has no aws_access_key_id and aws_secret_access_key in [default]"
        ) from None
    return found


def _store_error(error: Exception, doing: str, secrets: tuple[str, ...]) -> StoreError:
    found, text = str(error).lower(), f"{doing}: {shown(error, secrets)}"
    if any(each in found for each in _FULL):
        return StoreFullError(text)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return StoreExistsError(text)
    refused = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
    if isinstance(error, refused) or any(each in found for each in _REFUSED):
        return StoreRefusedError(text)
    if isinstance(error, FileNotFoundError):
        return StoreMissingError(text)
    return StoreAwayError(text)
