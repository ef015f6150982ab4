"""What a store of objects can do, and which one a node's configuration names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from jetstream_protocol.buckets import bucket_and_prefix
from jetstream_protocol.errors import InvalidRequestError

Result = TypeVar("Result")

_WITH_DIGITS: Final = re.compile(r"\S*\d\S*")


WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an object that is read whole. Those of tables have a tenth of it at most."""
LISTED_MAX: Final = 5_000_000
"""Objects in a listing. A folder gets a million in a year of 10 MB/s."""


class StoreError(OSError):
    """The store did not do what it was asked for."""


class StoreAwayError(StoreError):
    """It did not answer in time, or failed. It may have done it."""


class StoreRefusedError(StoreError):
    """It does not accept the credentials or the request: somebody has to change something."""


class StoreFullError(StoreError):
    """It has no room."""


class StoreExistsError(StoreError, FileExistsError):
    """There is an object of that name already."""


class StoreMissingError(StoreError, FileNotFoundError):
    """There is no object of that name."""


def too_long_error(name: str) -> StoreError:
    return StoreError(
        f"{name} has more than {WHOLE_BYTES_MAX} bytes: it is none of this lake's tables"
    )


def is_alike(before: str | None, reason: str) -> bool:
    """Whether there was a reason before, and this one differs only in words with digits: which
    object it was, by its random name, and how long the request took."""
    return before is not None and _WITH_DIGITS.sub("#", before) == _WITH_DIGITS.sub("#", reason)


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    length: int


class Store(Protocol):
    """A store of objects, each written once. Methods block, and raise OSError.

    url: of the store, for engines: an object's is this, a slash and its name. delete: takes a
    thousand names at once; a million objects one by one would take a day.

    **safety** What the store says of lengths is not believed: `get` takes what was asked for, or
    WHOLE_BYTES_MAX, and `list` LISTED_MAX; beyond it they raise StoreError.
    """

    url: str

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes: ...

    def list(self, prefix: str) -> Iterable[Listed]: ...

    def folders(self, prefix: str) -> Iterable[str]: ...

    def delete(self, *names: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """url: file:///folder or s3://bucket/prefix. endpoint: of the bucket's server; "": Amazon's.

    credentials_file: for the bucket, as Amazon's own programs read it; "": the credentials come
    from the environment or from the machine's role. timeout_s: of one request of the usual size.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""
    timeout_s: float = 60.0


def check_url(url: str) -> None:
    """Raise InvalidRequestError for what names no store."""
    with suppress(InvalidRequestError):
        bucket_and_prefix(url)
        return
    parts = urlsplit(url)
    is_folder = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not is_folder or parts.query or parts.fragment:
        raise InvalidRequestError("the lake is file:///path or s3://bucket/prefix")


def lacks_extra(url: str) -> bool:
    """Whether packages are not installed that a lake there needs."""
    needed = ["pyarrow", "pyiceberg", *(["obstore"] if url.startswith("s3:") else [])]
    return any(find_spec(each) is None for each in needed)


def open_store(options: StoreOptions) -> Store:
    """Raises InvalidRequestError, and StoreRefusedError for credentials that cannot be read. Asks
    the store for nothing."""
    check_url(options.url)
    if options.url.startswith("file:"):
        from jetstream_server.lake.folder_store import FolderStore

        return FolderStore(options.url)
    from jetstream_server.lake.bucket_store import BucketStore

    return BucketStore.of_options(options)


class LazyStore:
    """A store that is opened once it is needed, and anew after it has refused something: somebody
    may have changed the credentials. For any thread."""

    def __init__(self, options: StoreOptions) -> None:
        self.url = options.url.rstrip("/")
        self._options = options
        self._store: Store | None = None

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda store: store.put(name, data))

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        return self._ask(lambda store: store.get(name, position, length))

    def list(self, prefix: str) -> Iterator[Listed]:
        try:
            yield from self._opened().list(prefix)
        except StoreRefusedError:
            self._store = None
            raise

    def folders(self, prefix: str) -> Iterable[str]:
        return self._ask(lambda store: tuple(store.folders(prefix)))

    def delete(self, *names: str) -> None:
        self._ask(lambda store: store.delete(*names))

    def _opened(self) -> Store:
        store = self._store
        if store is None:
            store = self._store = open_store(self._options)
        return store

    def _ask(self, call: Callable[[Store], Result]) -> Result:
        store = self._opened()
        try:
            return call(store)
        except StoreRefusedError:
            self._store = None
            raise


class StoppableStore:
    """A store that is asked for nothing more once `stop` was called: whoever asks gets a
    StoreError, in the midst of a listing, too. For any thread."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def put(self, name: str, data: bytes) -> None:
        self._running().put(name, data)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        return self._running().get(name, position, length)

    def list(self, prefix: str) -> Iterator[Listed]:
        for each in self._running().list(prefix):
            self._running()
            yield each

    def folders(self, prefix: str) -> Iterable[str]:
        return self._running().folders(prefix)

    def delete(self, *names: str) -> None:
        self._running().delete(*names)

    def _running(self) -> Store:
        if self._is_stopped:
            raise StoreError("this node stops")
        return self._store
