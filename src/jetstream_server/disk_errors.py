"""What the errors of the operating system say of a disk, and our own errors for them."""

from __future__ import annotations

import errno

from jetstream_protocol.errors import StorageError, StorageFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def is_full(error: OSError) -> bool:
    """Whether the operation failed only because the disk is full; it may succeed later."""
    return error.errno in _FULL


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether a file was not opened because the process or the machine has no descriptor left: that
    says nothing of the file."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR


def changed_nothing(error: OSError) -> bool:
    """Whether nothing changed on the disk, and the operation may succeed later: it was full, or a
    file was not opened because no file descriptor was available."""
    return is_full(error) or lacks_descriptors(error)


class NoDescriptorError(StorageFullError):
    """A change failed, and may be tried again, because a file was not opened: the process or the
    machine has no descriptor left. A log handles it like a full disk. It is no answer to clients.
    """


def storage_error(error: OSError, doing: str) -> StorageError:
    """The error of our own tree for `error`. doing: what failed, in words that name the file."""
    reason = error.strerror or str(error)
    if is_full(error):
        return StorageFullError(f"{doing}: {reason}; free space or let retention run")
    return StorageError(f"{doing}: {reason}")


def change_error(error: OSError, doing: str) -> StorageError:
    """Like `storage_error`, for a change: NoDescriptorError if it has lacked descriptors."""
    failure = storage_error(error, doing)
    return NoDescriptorError(failure.message) if lacks_descriptors(error) else failure
