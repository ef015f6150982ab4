"""Chooses the server of a call: one of the given ones, else one that the cluster has named since.

A client often knows only one node of several, and that node may die. So the client learns the other
nodes while it runs. It uses learned addresses only when the given ones have failed, because it may
not be able to reach them. A server that answers is asked first from then on.
"""

from __future__ import annotations

from collections.abc import Iterable


class Servers:
    """first: the address to ask first. needs_learning: the client should ask the cluster for its
    nodes."""

    def __init__(self, given: Iterable[str]) -> None:
        self._given = list(given)
        self._learned: list[str] = []
        self.first = self._given[0]
        self.needs_learning = True

    def __len__(self) -> int:
        return len(self._given) + len(self._learned)

    def learn(self, named: Iterable[str]) -> None:
        """The nodes that the cluster names now replace those that it named before. A node that is
        alone is known already, even if its address differs."""
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
