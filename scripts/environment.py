"""Makes `.venv`, or finds it made; run by the system's Python, so standard library only.

The stamp in `.venv` says what the environment was made from: a hash of pyproject.toml and the place
of the tree (virtual environments cannot be moved), the interpreter, which counts only when PYTHON
asks for one, and a hash of what is compiled, which is built again when only that has changed. The
stamp is written last, so an interrupted run leaves none and the next one starts over. A lock on
`.venv` makes a second run wait for the first; the kernel releases it however the first one ends.
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
COMPILED = (TREE / "hatch_build.py", *sorted(TREE.glob("src/**/*.pyx")))
REQUIREMENTS = ".[server,arrow,sql,spark,dev]"
PIP = [str(VENV / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]


# Not sys.executable: that may be an activated .venv itself, which is about to be emptied.
INTERPRETER = os.path.realpath(sys.executable)


def fingerprint() -> str:
    """What the environment depends on, hashed."""
    digest = hashlib.sha256((TREE / "pyproject.toml").read_bytes())
    digest.update(str(TREE).encode())
    return digest.hexdigest()


def compiled_from() -> str:
    """What is compiled, hashed; and whether it is there."""
    digest = hashlib.sha256()
    for source in COMPILED:
        digest.update(source.read_bytes())
    built = all(any(each.parent.glob(f"{each.stem}.*.so")) for each in COMPILED[1:])
    return f"{digest.hexdigest()}-{'built' if built else 'pure'}"


def is_current() -> bool:
    """Whether the environment serves, but for what is compiled."""
    if not STAMP.is_file() or not (VENV / "bin/python").exists():
        return False
    made_from, _, rest = STAMP.read_text().partition(" ")
    interpreter = rest.rpartition(" ")[0]
    return made_from == fingerprint() and (
        not os.environ.get("PYTHON") or interpreter == INTERPRETER
    )


def is_compiled() -> bool:
    return STAMP.read_text().rpartition(" ")[2] == compiled_from()


def compile_again() -> None:
    """Build the extension anew. Raises SystemExit."""
    say("compiling")
    run(
        [*PIP, "install", "--quiet", "--no-deps", "--editable", "."],
        "the package could not be built; pip's message is above",
    )
    write_stamp()


def write_stamp() -> None:
    STAMP.write_text(f"{fingerprint()} {INTERPRETER} {compiled_from()}")


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
    run(
        [*PIP, "install", "--editable", REQUIREMENTS],
        "pip could not install the dependencies; its message is above.\n"
        "Behind a proxy or with an index of your own, configure pip as usual "
        "(pip config, PIP_INDEX_URL, PIP_PROXY, PIP_CERT).",
    )
    write_stamp()
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
    elif not is_compiled():
        compile_again()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nscripts/environment: interrupted; the next run starts over")
