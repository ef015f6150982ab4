"""What a failure of the disk means for a log (design 5).

* A **full disk** fails the operation and nothing else: StorageFullError, to be tried again.
* A **failed read** fails the reader.
* **Anything else**, above all a failed fsync, takes the log offline for good: appends and flushes
  raise StorageError, reads go on. A failed fsync is never tried again: the kernel may have dropped
  the pages it could not write, and a second fsync would call that success.
* **Damage** found when the log was opened does too, until the damaged records are discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jetstream_protocol.errors import StorageError
from jetstream_server.log.disk import is_full, storage_error


class Health:
    """`offline_reason` is "" while the log takes appends."""

    __slots__ = ("_directory", "_is_damaged", "offline_reason")

    def __init__(self, directory: str, damage: str) -> None:
        self._directory = directory
        self._is_damaged = bool(damage)
        self.offline_reason = damage

    def require_online(self) -> None:
        """Raises StorageError."""
        if self.offline_reason:
            raise StorageError(f"{self._directory} is offline: {self.offline_reason}")

    def end(self, reason: str) -> None:
        """Nothing more is to be done with the log; an older reason stays."""
        self.offline_reason = self.offline_reason or reason

    @property
    def is_damaged(self) -> bool:
        """Whether damage is what keeps the log offline."""
        return self._is_damaged

    def damage_discarded(self) -> None:
        self._is_damaged = False
        self.offline_reason = ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around what only reads."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"reading {self._directory}") from error

    @contextmanager
    def changing(self, doing: str) -> Iterator[None]:
        """Around what leaves the log as it was if there is no room for it."""
        try:
            yield
        except OSError as error:
            raise self.failure(error, doing) from error

    @contextmanager
    def committed(self, doing: str) -> Iterator[None]:
        """Around what has to succeed, lest the files differ from what the log believes."""
        try:
            yield
        except OSError as error:
            raise self._take_offline(error, doing) from error

    def failure(self, error: OSError, doing: str) -> StorageError:
        """What to raise for `error`; takes the log offline unless the disk was only full."""
        if is_full(error):
            return storage_error(error, f"{doing} {self._directory}")
        return self._take_offline(error, doing)

    def _take_offline(self, error: OSError, doing: str) -> StorageError:
        # Not a StorageFullError, even where space was short: waiting does not bring it back.
        failure = StorageError(storage_error(error, f"{doing} {self._directory}").message)
        self.end(failure.message)
        return failure
