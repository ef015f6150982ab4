"""The readers in other languages: how they are started, and what they say.

All do the same, each with the NATS client that is usual in its language (`clients/`), by the
JetStream API of the domain `log`:

    reader URLS tour STREAM
    reader URLS work STREAM

``tour``  The stream has 20 messages, "0" to "19", in turn on STREAM.a and STREAM.b, with their
          number as the header `Number`. The program fetches, acknowledges, refuses, reads in order,
          gets single messages, has them pushed, and uses a bucket. It prints a line for each
          (`TOUR`), and ends.
``work``  A durable consumer, of which one message may be open, acknowledges each, and waits for the
          answer; every seventh is refused first. Beside that another one follows in order. Lines:
          `{"ready": true}`, `{"worked": 7, "acked": true}`, `{"followed": 7}`, with sequences. It
          ends once the standard input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal

from tests.chaos.foreign.programs import BUILT

COMMANDS = {
    "c": ["{}/reader"],
    "go": ["{}/reader"],
    "java": ["java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", "{}:{}/*", "Reader"],
    "javascript": ["node", "{}/reader.mjs"],
    "rust": ["{}/reader"],
}
"""What to run, by language. {}: where its program was put."""
LANGUAGES = tuple(COMMANDS)
ENDING_SECONDS = 60.0


TOUR: Final[dict[str, Any]] = {
    "fetched": [1, 2, 3, 4],
    "subject": "tour.b",
    "header": "1",
    "again": 2,
    "delivered": 2,
    "floor": 4,
    "open": 0,
    "pending": 16,
    "ordered": list(range(1, 21)),
    "fifth": "4",
    "last": 20,
    "pushed": list(range(1, 21, 2)),
    "revisions": [1, 2, 3],
    "value": "2",
    "keys": ["size"],
    "refused": [True, True, True],
    "watched": ["colour 1", "size 2", "size 3", "colour 4"],
}
"""What a tour finds, whichever the language."""


class Reader:
    """A reader that runs. lines: what it has said so far."""

    def __init__(
        self, language: str, mode: Literal["tour", "work"], stream: str, urls: str, log: Path
    ) -> None:
        self.language = language
        self.lines: list[dict[str, Any]] = []
        command = [each.format(*[BUILT / language] * 2) for each in COMMANDS[language]]
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, urls, mode, stream],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        self._thread = threading.Thread(target=self._read, name=language, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.lines.append(json.loads(text))

    @property
    def durable(self) -> str:
        """The name of its durable consumer."""
        return f"{'js' if self.language == 'javascript' else self.language}-work"

    def said(self, word: str) -> list[Any]:
        """The values of that name, in order."""
        return [line[word] for line in list(self.lines) if word in line]

    @property
    def done(self) -> Counter[int]:
        """How often each sequence was acknowledged, as the reader was told."""
        return Counter(line["worked"] for line in list(self.lines) if line.get("acked"))

    def missing(self, sequences: list[int]) -> str:
        """What of these messages has not come yet; "": nothing. The answer to an acknowledgement
        may be lost with the leader that stored it."""
        came = {*self.said("worked")} & {*self.said("followed")}
        waits = [each for each in sequences if each not in came]
        return f"{self.language}: {waits[:10]}" if waits else ""

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        """Until it has ended. Raises AssertionError if it ends with an error, or not in time."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = self._process.wait(ENDING_SECONDS)
        self._thread.join(ENDING_SECONDS)
        assert code == 0, f"{self.language}: exit code {code}: {self._log.read_text()[-3000:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(ENDING_SECONDS)
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                each.close()
