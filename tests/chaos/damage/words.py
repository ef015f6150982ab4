"""What nodes say while a round goes on: log lines that speak of damage, and last words."""

from __future__ import annotations

import json
from pathlib import Path

ORDINARY = frozenset(
    {
        "leader_unreachable",
        "leaderships_withheld",
        "leadership_not_handed_over",
        "metadata_connection_ended",
        "metadata_peer_not_linked",
        "no_session_yet",
        "node_fenced",
        "not_handed_over",
        "session_lost",
        "waiting_for_metadata_leader",
        "acks_pending_at_stop",
        "nats_disconnected",
        "nats_unreachable",
    }
)
"""Events that any restart or kill brings about."""
ALARMING = ("warning", "error", "critical")
ADVICE = ("move", "restore", "empty", "remove", "delete", "replace", "start it with", "start with")


class Log:
    """What one node's log file has gained since this was made.

    complaints: lines that no ordinary restart brings about. lines: all of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = path.stat().st_size if path.exists() else 0
        self.lines: list[str] = []
        self.complaints: list[str] = []
        self.tracebacks: list[str] = []

    def mentions(self, *words: str) -> bool:
        """Whether some line, of whatever level, has one of the words."""
        return any(word in line for line in self.lines for word in words)

    def read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.lines.append(line)
            self._take(line)

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            if line.startswith("Traceback"):
                self.tracebacks.append(line)
            if line.startswith("error: "):
                self.complaints.append(line)
            return
        if "exception" in entry:
            self.tracebacks.append(line)
        if entry.get("level") in ALARMING and entry.get("event") not in ORDINARY:
            self.complaints.append(line)


def says_what_to_do(last_words: str) -> bool:
    """Whether a refusal to start is one line that names a file or folder and gives advice."""
    lower = last_words.lower()
    names_a_place = "/" in lower or "folder" in lower
    is_refusal = lower.startswith("error: ")
    return is_refusal and names_a_place and any(word in lower for word in ADVICE)
