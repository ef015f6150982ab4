"""What the classes with the methods of `AsyncClient` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jetstream_client.transport.control import ControlPlane
from jetstream_client.values.positions import Position
from jetstream_client.values.types import StreamLike


class AsyncMethods(ABC):
    """A part of `AsyncClient`, which sets what its parts declare, and has what is abstract here.
    Every call repeats itself where that is safe; see `ControlPlane.call`."""

    _control: ControlPlane

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClientClosedError if the client is closed."""

    @abstractmethod
    def _forget_routes(self) -> None:
        """Ask anew which streams hear a subject."""

    @abstractmethod
    async def offset_at(self, stream: StreamLike, position: Position) -> int: ...

    @abstractmethod
    async def fetch(
        self, stream: StreamLike, offset: Position = ..., *, max_messages: int | None = ...
    ) -> Any: ...

    @property
    def _calls(self) -> ControlPlane:
        """For what the program asks. Raises ClientClosedError if the client is closed."""
        self._check_open()
        return self._control
