"""Makes `.venv`, or finds it made; run by the system's Python, so standard library only.

`environment.py` installs everything that tests, benchmarks and examples need; `environment.py demo`
only what `scripts/demo` and `scripts/cluster` need, unless there is more already. By uv, which
takes half as long as pip and is fetched into `.venv` where there is none; by pip where that fails,
or has an index or a proxy of its own. What they say goes to a file, of which the end is shown when
they fail.

The stamp in `.venv` says what the environment was made from: a hash of the dependencies and of the
place of the tree (virtual environments cannot be moved), the extras, the interpreter, which counts
only when PYTHON asks for one, and a hash of what is compiled, which is built again when only that
has changed. While it is made, the stamp has no hashes, so the run after an interrupted one goes on.
What is in `.venv` stays, also if somebody else has made it: packages are only added. Only one whose
Python does not start, or is not the one that is asked for, is made anew, with the same extras. A
lock on `.venv` makes a second run wait for the first; the kernel releases it however the first one
ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parent.parent
VENV = TREE / ".venv"
STAMP = VENV / "environment.stamp"
OUTPUT = VENV / "environment.output"
COMPILED = (TREE / "hatch_build.py", *sorted(TREE.glob("src/**/*.pyx")))
INCLUDED = sorted(TREE.glob("src/**/*.pxi"))
"""Parts of those."""
EXTRAS = {
    "demo": ["server", "lake", "sql"],
    "all": ["server", "arrow", "lake", "sql", "spark", "dev"],
}

PYTHON = str(VENV / "bin/python")
PIP = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]

# Not sys.executable: that may be an activated .venv itself, which is about to be emptied.
INTERPRETER = os.path.realpath(sys.executable)


def fingerprint() -> str:
    """What the environment depends on, hashed."""
    given = tomllib.loads((TREE / "pyproject.toml").read_text())
    kept = {name: given["project"].get(name) for name in (
        "dependencies", "optional-dependencies", "scripts", "entry-points"
    )}  # fmt: skip
    tables = [given["build-system"], kept, given["tool"]["hatch"], str(TREE)]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def compiled_from() -> str:
    """What is compiled, hashed; and whether it is there."""
    digest = hashlib.sha256()
    for source in (*COMPILED, *INCLUDED):
        digest.update(source.read_bytes())
    built = all(any(each.parent.glob(f"{each.stem}.*.so")) for each in COMPILED[1:])
    return f"{digest.hexdigest()}-{'built' if built else 'pure'}"


class Made(NamedTuple):
    """What `.venv` was made from."""

    fingerprint: str
    extras: list[str]
    interpreter: str
    compiled: str


def read_stamp() -> Made:
    try:
        return Made(**json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):  # There is none, or an older version wrote it.
        return Made("", [], os.path.realpath(PYTHON), "")


def is_usable(made: Made) -> bool:
    """Whether `.venv` has a Python that starts, and is the one that is asked for."""
    if os.environ.get("PYTHON") and made.interpreter != INTERPRETER:
        return False
    ask = [PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return os.path.exists(PYTHON) and subprocess.run(ask, check=False).returncode == 0


def is_current(made: Made, extras: list[str]) -> bool:
    return made.fingerprint == fingerprint() and set(made.extras) >= set(extras)


def make(made: Made, extras: list[str]) -> None:
    """Make the environment, or add to the one there is. Raises SystemExit with what to do when
    that fails."""
    begin = time.monotonic()
    uv = shutil.which("uv")
    extras = sorted({*extras, *made.extras})
    is_new = not is_usable(made)
    if is_new:
        if uv is None:
            check_ensurepip()
        empty()
    interpreter = INTERPRETER if is_new else os.path.realpath(PYTHON)
    STAMP.write_text(json.dumps(Made("", extras, interpreter, "")._asdict()))
    if is_new:
        create(uv)
    have_pip()
    uv = uv or own_uv()
    requirements = f".[{','.join(extras)}]"
    commands = [[*PIP, "--no-compile", "--editable", requirements]]
    if uv is not None:
        commands.insert(0, [uv, "pip", "install", "--python", PYTHON, "--editable", requirements])
    run(
        f"installing {', '.join(extras)}",
        commands,
        "the dependencies could not be installed.\n"
        "Behind a proxy or with an index of your own, configure pip as usual "
        "(pip config, PIP_INDEX_URL, PIP_PROXY, PIP_CERT).",
    )
    write_stamp(extras)
    say(f"ready after {time.monotonic() - begin:.0f} s", is_last=True)


def have_pip() -> None:
    """Add pip to an environment that was made without, or not to its end."""
    if subprocess.run([PYTHON, "-c", "import pip"], capture_output=True, check=False).returncode:
        subprocess.run([PYTHON, "-m", "ensurepip"], capture_output=True, check=False)


def own_uv() -> str | None:
    """The uv of `.venv`, fetched by pip. None where only pip knows how to reach an index."""
    ask = [PYTHON, "-m", "pip", "config", "list"]
    asked = subprocess.run(ask, capture_output=True, text=True, check=False)
    if asked.returncode or "index-url" in asked.stdout or "proxy" in asked.stdout:
        return None
    fetch = [*PIP, "--no-compile", "uv"]
    got = subprocess.run(fetch, capture_output=True, check=False)
    return str(VENV / "bin/uv") if got.returncode == 0 else None


def write_stamp(extras: list[str]) -> None:
    made = Made(fingerprint(), extras, os.path.realpath(PYTHON), compiled_from())
    STAMP.write_text(json.dumps(made._asdict()))


def compile_again(made: Made) -> None:
    """Build the extension anew. Raises SystemExit."""
    command = [*PIP, "--no-deps", "--editable", "."]
    run("compiling", [command], "the package could not be built.")
    write_stamp(made.extras)
    if compiled_from().endswith("pure"):
        say("could not compile: .venv/bin/pip install -v --no-deps -e . says why", is_last=True)
    else:
        say("compiled", is_last=True)


def check_ensurepip() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"scripts/environment: {INTERPRETER} comes without ensurepip, so it cannot make a "
            f"virtual environment.\nInstall it (Debian, Ubuntu: apt install python{version}-venv), "
            "install uv, or name another interpreter: PYTHON=… scripts/environment"
        )


def empty() -> None:
    for old in VENV.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()


def create(uv: str | None) -> None:
    # With pip also by uv: the examples download their data by it.
    by_uv = [uv or "", "venv", "--seed", "--allow-existing", "--python", INTERPRETER, str(VENV)]
    by_python = [INTERPRETER, "-m", "venv", str(VENV)]
    run(
        f"making .venv with Python {sys.version.split()[0]}",
        [by_uv, by_python] if uv else [by_python],
        "the virtual environment could not be made.",
    )


def run(step: str, commands: list[list[str]], problem: str) -> None:
    """The first of the commands that succeeds."""
    # Older pips would install pysyncobj through setup.py, and warn; newer ones ignore this.
    environment = {**os.environ, "PIP_USE_PEP517": "1"}
    begin = time.monotonic()
    with OUTPUT.open("wb") as output:
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=TREE,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                while process.poll() is None:
                    say(f"{step} … {time.monotonic() - begin:.0f} s")
                    time.sleep(0.2)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            if process.returncode == 0:
                return
    said = OUTPUT.read_text(errors="replace").strip()
    sys.exit(f"\n{said[-3000:]}\n\nscripts/environment: {problem}\nAll that was said: {OUTPUT}")


last_said = ""


def say(message: str, is_last: bool = False) -> None:
    """On a terminal one line, written over and over; elsewhere a line for each step."""
    global last_said
    if sys.stdout.isatty():
        print(f"\r\x1b[Kenvironment: {message}", end="\n" if is_last else "", flush=True)
    elif message.partition(" …")[0] != last_said:
        last_said = message.partition(" …")[0]
        print(f"environment: {last_said}", flush=True)


def main() -> None:
    extras = EXTRAS["demo" if sys.argv[1:] == ["demo"] else "all"]
    VENV.mkdir(exist_ok=True)
    lock = os.open(VENV, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another run is making .venv; waiting for it", is_last=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    made = read_stamp()
    if not (is_current(made, extras) and is_usable(made)):
        make(made, extras)
    elif made.compiled != compiled_from():
        compile_again(made)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nscripts/environment: interrupted; the next run goes on")
