"""The server's software as a release left it, to run beside today's.

`python -m tests.vectors.releases NAME COMMIT` writes one from git. It is never written again. A
release that is a feature level behind the one before is enough: nodes of two successive releases
work together (docs/compatibility.md).
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

RELEASES = Path(__file__).parent / "releases"
_PACKAGES = ("src/jetstream_protocol", "src/jetstream_server")


def unpacked(name: str, folder: Path) -> tuple[str, ...]:
    """Unpack a release into a folder. Returns the command that is its `jetstream-server`. It is
    compiled: nodes that start together would each do it."""
    with tarfile.open(RELEASES / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "src"], check=True)
    return ("env", f"PYTHONPATH={folder / 'src'}", sys.executable, "-m", "jetstream_server")


def main() -> None:
    name, commit = sys.argv[1:]
    command = ["git", "archive", commit, *_PACKAGES]
    packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    (RELEASES / f"{name}.tar.xz").write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
