"""What the classes with the methods of `AsyncClient` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod


class AsyncMethods(ABC):
    """A part of `AsyncClient`, which sets what its parts declare."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise InvalidRequestError if the client is closed."""
