"""The publishers in other languages: how they are started, and what they say.

All four do the same, each with the NATS client that is usual in its language (`clients/`):

    publisher URLS MODE SUBJECT…

Every hundredth of a second the next number is published, to one subject after the other; the
message is "SUBJECT NUMBER ☃". Once the standard input ends, the program waits a little for answers,
and ends. It prints a line of JSON for each answer:

    {"number": 3, "no_responders": true}
    {"sent": 812}                                  at the end: how many numbers were published

``once``    Each number is published once, with a reply subject of its own; nothing waits for the
            answer. `{"number": 3, "answer": "…"}` has its text, as it came.
``repeat``  Each number is published by what the library has for JetStream, with the message id
            "SUBJECT NUMBER", again and again until that says it is stored. The lines tell what the
            library makes of the answers: `{"number": 3, "stream": "s", "seq": 4,
            "duplicate": false}`, `{"number": 3, "err_code": 20012, "description": "…"}`, with
            `code` where the library has it, or `{"number": 3, "error": "…"}` with the library's
            words, for want of an answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

CLIENTS = Path(__file__).parent / "clients"
BUILT = Path(__file__).resolve().parents[3] / "build" / "foreign"
"""Where scripts/foreign-clients puts the programs."""
ENDING_SECONDS = 120.0

Mode = Literal["once", "repeat"]
Line = dict[str, Any]

COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "c": lambda built: [str(built / "publisher")],
    "go": lambda built: [str(built / "publisher")],
    "java": lambda built: [
        "java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", f"{built}:{built}/*", "Publisher",
    ],
    "javascript": lambda built: ["node", str(built / "publisher.mjs")],
}  # fmt: skip
"""What to run, by language."""
LANGUAGES = tuple(COMMANDS)


def why_not(language: str) -> str:
    """Why there is no program in that language; "" if there is one."""
    if (BUILT / language / "built").exists():
        return ""
    return f"no clients in {language}: scripts/foreign-clients makes those it finds the tools for"


class Program:
    """A publisher that runs. lines: what it has said, as it came."""

    def __init__(
        self, language: str, mode: Mode, subjects: Sequence[str], urls: str, log: Path
    ) -> None:
        self.name = f"{language} {mode} {' '.join(subjects)}"
        self.language = language
        self.mode = mode
        self.subjects = tuple(subjects)
        self.lines: list[Line] = []
        self.unreadable: list[str] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*COMMANDS[language](BUILT / language), urls, mode, *subjects],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        self._log = log
        self._thread = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if isinstance(line, dict):
                self.lines.append(line)
            else:
                self.unreadable.append(text.decode(errors="replace").rstrip())

    @property
    def sent(self) -> int:
        """How many numbers it has published; -1 while it goes on."""
        return next((line["sent"] for line in reversed(self.lines) if "sent" in line), -1)

    def stored(self, subject: str, since: int = 0) -> int:
        """How many answers about that subject, from that line on, say that a message is stored."""
        at = self.subjects.index(subject)
        return sum(
            '"seq":0' not in line.get("answer", "")
            and ("seq" in line or "answer" in line)
            and line["number"] % len(self.subjects) == at
            for line in self.lines[since:]
        )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop_publishing(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Until it has ended by itself. Raises AssertionError if it does not, or with an error."""
        deadline = time.monotonic() + ENDING_SECONDS
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name}: does not end; last {self.lines[-3:]}") from None
        self._thread.join(ENDING_SECONDS)
        assert code == 0, f"{self.name}: exit code {code}: {self._log.read_text()[-2000:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(ENDING_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
