"""The prompt of `jetstream sql` on a terminal: statements that end with a semicolon, and a history
of them in $XDG_STATE_HOME/jetstream/sql_history, which only its owner can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jetstream_client.cli.interrupts import interrupted_once

HISTORY_MAX = 1000
"""Lines."""
_LEAVES = ("exit", "quit", "\\q")


def statements() -> Iterator[str]:
    """Each statement, until the end of input, or a word that leaves. Ctrl-C at the prompt drops
    what was begun."""
    import readline  # It gives input() its keys and its history; Windows has none.

    path = _history_path()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_MAX)
    lines: list[str] = []
    while True:
        try:
            with interrupted_once():
                line = input("...> " if lines else "sql> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            lines.clear()
            continue
        if not lines and line.strip().rstrip(";") in _LEAVES:
            return
        if not lines and not line.strip():
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            with suppress(OSError):
                _keep(readline, path)
            yield "\n".join(lines)
            lines.clear()


def _keep(readline: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    readline.write_history_file(path)  # type: ignore[attr-defined]


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "jetstream", "sql_history")
