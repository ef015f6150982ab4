"""What a disk failure means for a log.

* A **full disk** fails the operation and nothing else: StorageFullError; try again later.
* So does a **lack of file descriptors**, as a file that was not opened is unchanged:
  NoDescriptorError. A change that stopped half-way because of it is finished before anything else
  is done with the log (`complete`).
* A **failed read** fails the reader, or an append that must first read where the last segment's
  batches begin: StorageError, and the log stays online. The place that could not be read is
  damaged; the rest of the log is still valid.
* **Anything else**, above all a failed fsync, is a failure of the log and takes it offline: appends
  and flushes raise StorageError, reads go on. A failed fsync is never tried again: the kernel may
  have dropped the pages it could not write, and a second fsync would report success. The log
  comes back only by being emptied (`CommitLog.reset`) or, when no replica holds more, with the
  records that can be read (`CommitLog.salvage`).
* **Damage** found when the log was opened takes it offline too, until the damaged records are
  discarded.
* A log that could not be opened because of its device is **unread**: nothing is known of its
  records. It comes back by being emptied, or at a start that can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from jetstream_protocol.errors import StorageError
from jetstream_server.disk_errors import (
    NoDescriptorError,
    change_error,
    changed_nothing,
    lacks_descriptors,
    storage_error,
)


class Health:
    """`offline_reason` is "" while the log takes appends. `has_failed`: an operation has failed, so
    the log's content is not trusted. on_failure: called once per failure, by any thread."""

    __slots__ = (
        "_directory", "_is_damaged", "_is_unread", "_mutex", "_unfinished", "has_failed",
        "offline_reason", "on_failure",
    )  # fmt: skip

    def __init__(self, directory: str, damage: str, mutex: AbstractContextManager[object]) -> None:
        """mutex: the log's."""
        self._directory = directory
        self._mutex = mutex
        self._unfinished: Callable[[], None] | None = None
        self._is_damaged = bool(damage)
        self._is_unread = False
        self.has_failed = False
        self.offline_reason = damage
        self.on_failure: Callable[[], None] | None = None

    def require_online(self) -> None:
        """Raise StorageError if the log is offline. Finish a change that has lacked descriptors;
        raise NoDescriptorError if they are still lacking."""
        if self.offline_reason:
            raise StorageError(f"{self._directory} is offline: {self.offline_reason}")
        if self._unfinished is not None:
            with self._mutex:
                if self._unfinished is not None:  # Another thread may have finished it.
                    self.complete(self._unfinished)

    def require_recoverable(self) -> None:
        """Raise StorageError if the log is offline for another reason than failure, damage or its
        device: it was closed or deleted, or something else kept it from being opened."""
        if not (self.has_failed or self._is_damaged or self._is_unread):
            self.require_online()

    def end(self, reason: str) -> None:
        """Accept no more operations. An older reason stays."""
        self.offline_reason = self.offline_reason or reason

    def unread(self, reason: str) -> None:
        """Take a log offline that could not be opened because of its device."""
        self.offline_reason = reason
        self._is_unread = True

    def fail(self, reason: str) -> None:
        """Take the log offline because of a failure. Only the first failure is reported."""
        is_recoverable = self._is_damaged or self._is_unread
        if self.has_failed or (self.offline_reason and not is_recoverable):
            return
        self.has_failed = True
        self._is_damaged = self._is_unread = False
        self.offline_reason = reason
        if self.on_failure is not None:
            self.on_failure()

    @property
    def is_damaged(self) -> bool:
        """Whether damage keeps the log offline."""
        return self._is_damaged

    def bring_online(self) -> None:
        """Bring the log online again: the failed or damaged part has left it."""
        self._is_damaged = self._is_unread = self.has_failed = False
        self.offline_reason = ""
        self._unfinished = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wraps code that only reads."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"reading {self._directory}") from error

    @contextmanager
    def changing(self, doing: str) -> Iterator[None]:
        """Wraps code that leaves the log unchanged when the disk is full or no descriptor is
        left."""
        try:
            yield
        except OSError as error:
            raise self.failure_error(error, doing) from error

    @contextmanager
    def must_succeed(self, doing: str) -> Iterator[None]:
        """Wraps code that must succeed, even if the disk is full: if it failed half-way, files and
        memory would differ."""
        try:
            yield
        except OSError as error:
            raise self._take_offline(error, doing) from error
        except StorageError as error:
            self.fail(error.message)
            raise

    @contextmanager
    def repeatable(self, doing: str) -> Iterator[None]:
        """Like `must_succeed`, for code that is run again from its beginning if it has lacked
        descriptors."""
        try:
            yield
        except NoDescriptorError:
            raise
        except OSError as error:
            if lacks_descriptors(error):
                raise change_error(error, f"{doing} {self._directory}") from error
            raise self._take_offline(error, doing) from error
        except StorageError as error:
            self.fail(error.message)
            raise

    def complete(self, step: Callable[[], None]) -> None:
        """Take a step that a change of the log still needs. If it lacks descriptors, it is taken
        again before anything else is done."""
        try:
            step()
        except NoDescriptorError:
            self._unfinished = step
            raise
        self._unfinished = None

    def append_error(self, error: OSError, undo: Callable[[], None]) -> StorageError:
        """The error to raise for a failed append. undo: cuts off what it has left behind."""

        def cut_off() -> None:
            with self.repeatable("cutting off a failed append in"):
                undo()

        failure = self.failure_error(error, "appending to")
        self.complete(cut_off)
        return failure

    def failure_error(self, error: OSError, doing: str) -> StorageError:
        """The error to raise for `error`. Takes the log offline unless it is unchanged on disk."""
        if changed_nothing(error):
            return change_error(error, f"{doing} {self._directory}")
        return self._take_offline(error, doing)

    def _take_offline(self, error: OSError, doing: str) -> StorageError:
        # Not a StorageFullError, even if the disk was full: waiting does not help.
        failure = StorageError(storage_error(error, f"{doing} {self._directory}").message)
        self.fail(failure.message)
        return failure
