"""Makes `.venv`, or finds it made; run by the system's Python, so standard library only.

The stamp in `.venv` says what the environment was made from: a hash of pyproject.toml and the place
of the tree (virtual environments cannot be moved), and the interpreter, which counts only when
PYTHON asks for one. It is written last, so an interrupted run leaves none and the next one starts
over. A lock on `.venv` makes a second run wait for the first; the kernel releases it however the
first one ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
VENV = TREE / ".venv"
STAMP = VENV / "environment.stamp"
REQUIREMENTS = ".[server,arrow,sql,spark,dev]"


# Not sys.executable: that may be an activated .venv itself, which is about to be emptied.
INTERPRETER = os.path.realpath(sys.executable)


def fingerprint() -> str:
    """What the environment depends on, hashed."""
    digest = hashlib.sha256((TREE / "pyproject.toml").read_bytes())
    digest.update(str(TREE).encode())
    return digest.hexdigest()


def is_current() -> bool:
    if not STAMP.is_file() or not (VENV / "bin/python").exists():
        return False
    made_from, _, interpreter = STAMP.read_text().partition(" ")
    return made_from == fingerprint() and (
        not os.environ.get("PYTHON") or interpreter == INTERPRETER
    )


def make() -> None:
    """Make the environment anew. Raises SystemExit with what to do when that fails."""
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"scripts/environment: {INTERPRETER} comes without ensurepip, so it cannot make a "
            f"virtual environment.\nInstall it (Debian, Ubuntu: apt install python{version}-venv) "
            "or name another interpreter: PYTHON=… scripts/environment"
        )
    for old in VENV.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    say(f"making .venv with {INTERPRETER} ({sys.version.split()[0]})")
    run(
        [INTERPRETER, "-m", "venv", str(VENV)],
        "the virtual environment could not be made; the message above says why",
    )
    say(f"installing {REQUIREMENTS}")
    pip = [str(VENV / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(
        [*pip, "install", "--editable", REQUIREMENTS],
        "pip could not install the dependencies; its message is above.\n"
        "Behind a proxy or with an index of your own, configure pip as usual "
        "(pip config, PIP_INDEX_URL, PIP_PROXY, PIP_CERT).",
    )
    STAMP.write_text(f"{fingerprint()} {INTERPRETER}")
    say("ready")


def run(command: list[str], problem: str) -> None:
    # Older pips would install pysyncobj through setup.py, and warn; newer ones ignore this.
    environment = {**os.environ, "PIP_USE_PEP517": "1"}
    if subprocess.run(command, cwd=TREE, env=environment, stdin=subprocess.DEVNULL).returncode:
        sys.exit(f"\nscripts/environment: {problem}")


def say(message: str) -> None:
    print(f"environment: {message}", flush=True)


def main() -> None:
    VENV.mkdir(exist_ok=True)
    lock = os.open(VENV, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another run is making .venv; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    if not is_current():
        make()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nscripts/environment: interrupted; the next run starts over")
