"""Finds the streams that a literal subject feeds, without looking at every stream.

A trie over the tokens of the streams' patterns. For each token, a look-up follows the branch of
that token and the branch of `*`, and collects the patterns that end in `>` on the way.
"""

from __future__ import annotations

from jetstream_protocol.types import StreamId


class _Branch:
    __slots__ = ("branches", "ending")

    def __init__(self) -> None:
        self.branches: dict[str, _Branch] = {}
        # A dict for its order and cheap removal; its values have no meaning.
        self.ending: dict[StreamId, None] = {}


class StreamPatterns:
    """Stream ids by the pattern on which they listen."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Branch()

    def add(self, pattern: str, stream_id: StreamId) -> None:
        branch = self._root
        for token in pattern.split("."):
            branch = branch.branches.setdefault(token, _Branch())
        branch.ending[stream_id] = None

    def remove(self, pattern: str, stream_id: StreamId) -> None:
        """Undo `add`, and drop branches that are not needed any more."""
        path = [self._root]
        tokens = pattern.split(".")
        for token in tokens:
            path.append(path[-1].branches[token])
        del path[-1].ending[stream_id]
        for parent, token in zip(reversed(path[:-1]), reversed(tokens), strict=True):
            branch = parent.branches[token]
            if branch.branches or branch.ending:
                break
            del parent.branches[token]

    def matching(self, subject: str) -> list[StreamId]:
        """Ids of the streams whose pattern matches the literal `subject`, ascending."""
        found: list[StreamId] = []
        reached = [self._root]
        for token in subject.split("."):
            following: list[_Branch] = []
            for branch in reached:
                rest = branch.branches.get(">")
                if rest is not None:
                    found.extend(rest.ending)
                for step in (token, "*"):
                    next_branch = branch.branches.get(step)
                    if next_branch is not None:
                        following.append(next_branch)
            reached = following
        for branch in reached:
            found.extend(branch.ending)
        return sorted(found)
