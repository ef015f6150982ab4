"""The kinds of damage to a file or a folder, and functions that do it.

A file: one bit flipped, a range of bytes zeroed, cut off at a random place, removed, replaced by an
older copy of itself, garbage appended. A folder: removed, or replaced by an older copy. Each
returns a description of the damage, or None if nothing would have changed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.chaos.damage.targets import NODE_FILES

RANGE_BYTES_MAX = 4096

Way = Callable[[Path, Path, Random], str | None]
"""(the file, where an older copy of it would be, dice) -> what was done."""


def flip(path: Path, older: Path, dice: Random) -> str | None:
    data = bytearray(path.read_bytes())
    if not data:
        return None
    at, bit = dice.randrange(len(data)), dice.randrange(8)
    data[at] ^= 1 << bit
    _write_in_place(path, bytes(data))
    return f"bit {bit} of byte {at} of {len(data)} flipped"


def zero(path: Path, older: Path, dice: Random) -> str | None:
    data = bytearray(path.read_bytes())
    if not data:
        return None
    at = dice.randrange(len(data))
    end = min(len(data), at + dice.randint(1, RANGE_BYTES_MAX))
    if not any(data[at:end]):
        return None
    data[at:end] = bytes(end - at)
    _write_in_place(path, bytes(data))
    return f"bytes {at} to {end} of {len(data)} zeroed"


def truncate(path: Path, older: Path, dice: Random) -> str | None:
    size = path.stat().st_size
    if not size:
        return None
    length = dice.randrange(size)
    with path.open("r+b") as file:
        file.truncate(length)
    return f"cut from {size} to {length} bytes"


def append_garbage(path: Path, older: Path, dice: Random) -> str | None:
    garbage = dice.randbytes(dice.randint(1, RANGE_BYTES_MAX))
    with path.open("ab") as file:
        file.write(garbage)
    return f"{len(garbage)} bytes of garbage appended"


def remove(path: Path, older: Path, dice: Random) -> str | None:
    if path.is_dir():
        _remove_folder(path)
    else:
        path.unlink()
    return "removed"


def replace_by_older(path: Path, older: Path, dice: Random) -> str | None:
    if not older.exists() or fingerprint(older) == fingerprint(path):
        return None
    runs = older / NODE_FILES["runs"]
    if runs.exists() and fingerprint(runs) == fingerprint(path / NODE_FILES["runs"]):
        return None  # A whole folder of this very run: docs/guarantees.md says that none can tell.
    if path.is_dir():
        _remove_folder(path)
        shutil.copytree(older, path, dirs_exist_ok=True)
    else:
        _write_in_place(path, older.read_bytes())
    return "replaced by an older copy"


FILE_WAYS: dict[str, Way] = {
    "flip": flip,
    "zero": zero,
    "truncate": truncate,
    "remove": remove,
    "older": replace_by_older,
    "garbage": append_garbage,
}
FOLDER_WAYS: dict[str, Way] = {"remove": remove, "older": replace_by_older}


def fingerprint(path: Path) -> str:
    """Of what a file holds, or all files below a folder; "" when it is not there."""
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        parts = [f"{each.relative_to(path)} {fingerprint(each)}" for each in files]
        return hashlib.blake2b("\n".join(parts).encode()).hexdigest()
    try:
        return hashlib.blake2b(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _remove_folder(path: Path) -> None:
    """All at once: a running node goes on making files in it."""
    with TemporaryDirectory(prefix="jetstream-removed-") as gone:
        path.rename(Path(gone) / path.name)


def _write_in_place(path: Path, data: bytes) -> None:
    """Under the same inode: a process that has it open sees it, as it would see a disk's fault."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
