"""The event loop that a part of a client belongs to."""

from __future__ import annotations

import asyncio

from jetstream_protocol.errors import InvalidRequestError


class Home:
    """The loop in which it is first asked. Futures and connections of one loop wake nobody in
    another one, so whoever waits for them there would wait for ever."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises InvalidRequestError in another one than before."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidRequestError(
                "this client was first used in another event loop: make one in each, or use Client"
            )
        return loop
