"""What others subscribe to in the account of a leaf link, as NATS tells it (LS+, LS-). Pure.

NATS tells each subject once, however many subscribe. Its answer to "does anybody listen there?" is
needed to push, and to forget the pulls of clients that are gone.
"""

from __future__ import annotations

from typing import Any, Final

SUBJECTS_MAX: Final = 200_000
"""Upper bound on subjects that are remembered, about 300 bytes each. Beyond it nobody is known not
to listen."""

VISITS_MAX: Final = 64
"""Upper bound on nodes of the tree that one question looks at: enough for any subscriptions to
subjects of five tokens. **safety** Clients choose the patterns: 16 tokens, each with and without a
wildcard, are 65,000 nodes for each pull that waits. Beyond it nobody is known not to listen."""

_HERE: Final = b""
"""Key in a node of the tree: the queues that listen to the subject up to here. No token is b""."""


class Interest:
    """For one link, from its first byte. changes: grows with every change. recent: the subjects
    that have changed since somebody has emptied it."""

    __slots__ = ("_count", "_is_complete", "_tree", "changes", "recent")

    def __init__(self) -> None:
        self.changes = 0
        self.recent: list[bytes] = []
        self._count = 0
        self._is_complete = True
        self._tree: dict[bytes, Any] = {}

    def take(self, line: bytes) -> None:
        """Take a line `LS+ subject [queue weight]` or `LS- subject [queue]`."""
        verb, *fields = line.split(b" ")
        if not fields or not fields[0]:
            return
        subject, queue = fields[0], fields[1] if len(fields) > 1 else b""
        self.changes += 1
        self.recent.append(subject)
        if verb == b"LS+":
            self._add(subject, queue)
        else:
            self._remove(subject, queue)

    def _add(self, subject: bytes, queue: bytes) -> None:
        if self._count >= SUBJECTS_MAX:
            self._is_complete = False
            return
        node = self._tree
        for token in subject.split(b"."):
            node = node.setdefault(token, {})
        queues = node.setdefault(_HERE, set())
        self._count += queue not in queues
        queues.add(queue)

    def _remove(self, subject: bytes, queue: bytes) -> None:
        path: list[tuple[dict[bytes, Any], bytes]] = []
        node = self._tree
        for token in subject.split(b"."):
            if token not in node:
                return
            path.append((node, token))
            node = node[token]
        queues = node.get(_HERE, set())
        if queue in queues:
            queues.discard(queue)
            self._count -= 1
        if not queues:
            node.pop(_HERE, None)
        for parent, token in reversed(path):
            if parent[token]:
                break
            del parent[token]

    def has(self, subject: bytes, queue: bytes = b"") -> bool:
        """Whether anybody listens to a literal subject; with a queue: in that queue group."""
        if not self._is_complete:
            return True
        return _matches(self._tree, subject.split(b"."), 0, queue, [VISITS_MAX])


def _matches(
    node: dict[bytes, Any], tokens: list[bytes], at: int, queue: bytes, left: list[int]
) -> bool:
    """left: nodes that may still be looked at."""
    left[0] -= 1
    if left[0] < 0:
        return True
    if at == len(tokens):
        return queue in node.get(_HERE, ())
    rest = node.get(b">")
    if rest is not None and queue in rest.get(_HERE, ()):
        return True
    for token in (tokens[at], b"*"):
        found = node.get(token)
        if found is not None and _matches(found, tokens, at + 1, queue, left):
            return True
    return False
