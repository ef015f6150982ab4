"""A file system of its own that a test can fill and empty. Mounting one takes root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

PAGE_BYTES = 4096


class SmallDisk:
    """Mounted at `path`, which is made; some of it may be taken by a file of ballast.

    image: the file that is the disk, made sparse with a file system in it. Without one the disk is
    in memory. Raises OSError with the reason when it cannot be mounted.
    """

    def __init__(self, path: Path, size_bytes: int, image: Path | None = None) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        if image is None:
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
        else:
            with image.open("wb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", "-m", "0", str(image))  # None of it is root's alone.
            _run("mount", "-o", "loop", str(image), str(path))

    def fill(self) -> None:
        """Leave not one free page."""
        with self._ballast.open("ab") as file:
            piece = shutil.disk_usage(self.path).free
            while piece >= PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), self._ballast.stat().st_size, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def leave(self, free_bytes: int) -> None:
        self.fill()
        os.truncate(self._ballast, max(self._ballast.stat().st_size - free_bytes, 0))

    def empty(self) -> None:
        """Take the ballast away, if there is any."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        _run("umount", "-l", str(self.path))


def _run(*command: str) -> None:
    """Raises OSError with what the command complained of."""
    if shutil.which(command[0]) is None:
        raise OSError(f"there is no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


@cache
def missing() -> str:
    """Why there can be no disk in a file here; "" when there can."""
    if os.geteuid() != 0:
        return "mounting a small file system takes root"
    with TemporaryDirectory() as folder:
        try:
            SmallDisk(Path(folder, "disk"), 1 << 20, Path(folder, "image")).close()
        except OSError as error:
            return f"nothing can be mounted here: {error}"
    return ""
