"""Base classes of objects that `with` or `async with` closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Closing(ABC):
    """`with` closes it, also after an error."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """`async with` starts it, and closes it also after an error."""

    @abstractmethod
    async def begin(self) -> None:
        """Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Idempotent."""

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
