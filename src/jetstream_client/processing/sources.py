"""Where a processing gets its records: a stream read with a cursor, or a member of a consumer
group."""

from __future__ import annotations

import asyncio
from typing import Protocol

from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.group_consumer import AsyncGroupConsumer
from jetstream_client.reading.messages import Messages


class Source(Protocol):
    """Where records come from. is_shared: other members share the streams and may get them.
    is_lost: they may have got them already, so nothing that was read can be committed."""

    @property
    def is_shared(self) -> bool: ...

    @property
    def is_lost(self) -> bool: ...

    async def begin(self) -> None: ...

    async def next(self) -> tuple[AsyncConsumer, Messages] | None:
        """The next records of any stream; None: there will be no more."""

    def consumers(self) -> list[AsyncConsumer]:
        """The consumers of the streams that it reads now and that have begun."""

    async def adjust(self) -> None:
        """Let go of streams and begin others, if the assignment has changed."""

    async def wait_for_news(self) -> None:
        """Return when `adjust` is to be called."""

    def check_heard(self, timeout: float) -> None:
        """Raise UnavailableError if a coordinator should have answered `timeout` seconds ago."""

    async def aclose(self) -> None: ...


class CursorSource:
    """One stream, read with a cursor."""

    is_shared = is_lost = False

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._has_begun = False

    async def begin(self) -> None:
        await self._consumer.begin()
        self._has_begun = True

    async def next(self) -> tuple[AsyncConsumer, Messages] | None:
        messages = await self._consumer.next_messages()
        return None if messages is None else (self._consumer, messages)

    def consumers(self) -> list[AsyncConsumer]:
        return [self._consumer] if self._has_begun else []

    async def adjust(self) -> None:
        """It keeps what it has."""

    async def wait_for_news(self) -> None:
        await asyncio.Event().wait()

    def check_heard(self, timeout: float) -> None:
        """It has no coordinator."""

    async def aclose(self) -> None:
        await self._consumer.aclose()


class GroupSource:
    """A member of a consumer group."""

    is_shared = True

    def __init__(self, member: AsyncGroupConsumer) -> None:
        self._member = member

    @property
    def is_lost(self) -> bool:
        return self._member.is_lost

    async def begin(self) -> None:
        await self._member.begin()

    async def next(self) -> tuple[AsyncConsumer, Messages] | None:
        return await self._member.next_messages()

    def consumers(self) -> list[AsyncConsumer]:
        return [part.consumer for part in self._member.parts]

    async def adjust(self) -> None:
        await self._member.adjust()

    async def wait_for_news(self) -> None:
        await self._member.wait_for_news()

    def check_heard(self, timeout: float) -> None:
        self._member.check_heard(timeout)

    async def aclose(self) -> None:
        await self._member.aclose()
