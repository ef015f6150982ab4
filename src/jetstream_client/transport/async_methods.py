"""What the classes with the methods of `AsyncClient` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jetstream_client.transport.control import ControlPlane


class AsyncMethods(ABC):
    """A part of `AsyncClient`, which sets what its parts declare."""

    _control: ControlPlane

    @abstractmethod
    def _check_open(self) -> None:
        """Raise InvalidRequestError if the client is closed."""

    @property
    def _calls(self) -> ControlPlane:
        """For what the program asks. Raises InvalidRequestError if the client is closed."""
        self._check_open()
        return self._control
