"""Which server a call goes to: one that was given, else one that the cluster has named since.

A client is often given one node of several, and that node may die. So the client learns the other
nodes while it lives. Learned addresses are used only when the given ones have failed, because they
may not be reachable from the client. A server that answers is asked first from then on.
"""

from __future__ import annotations

from collections.abc import Iterable


class Servers:
    """first: whom to ask first. needs_learning: the cluster should be asked who its nodes are."""

    def __init__(self, given: Iterable[str]) -> None:
        self._given = list(given)
        self._learned: list[str] = []
        self.first = self._given[0]
        self.needs_learning = True

    def __len__(self) -> int:
        return len(self._given) + len(self._learned)

    def learn(self, named: Iterable[str]) -> None:
        """What the cluster names now, in place of what it named before. A node that is alone is
        known already, under whatever address."""
        addresses = [address for address in named if address]
        self._learned = [each for each in addresses if each not in self._given]
        if len(addresses) == 1:
            self._learned = []
        if self.first not in self._given and self.first not in self._learned:
            self.first = self._given[0]
        self.needs_learning = False

    def after(self, failed: str) -> str:
        """The server to ask next. The nodes may have changed."""
        if failed == self.first:
            everybody = self._given + self._learned
            self.first = everybody[(everybody.index(failed) + 1) % len(everybody)]
            self.needs_learning = True
        return self.first
