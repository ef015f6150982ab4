"""Reads files again while the node runs: certificates, and the keys of encryption at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

CHECK_SECONDS = 2.0
"""Seconds between checks of the files. A change is in use after twice that."""


class Source(Protocol):
    """What can be read again. seen: the signature at the last attempt to read it."""

    @property
    def seen(self) -> object: ...

    def signature(self) -> object:
        """Changes with the files."""

    def reload(self) -> None:
        """Read it again, or keep what there is. Logs either. Blocks."""


class Reloading:
    """Reloads each source once its files have changed and then stayed the same for CHECK_SECONDS: a
    certificate and its key are replaced one after the other. asked: is set when everything is to be
    reloaded now."""

    def __init__(self, sources: Sequence[Source], asked: asyncio.Event) -> None:
        self._sources = sources
        self._asked = asked

    async def run(self) -> None:
        before = [each.signature() for each in self._sources]
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), CHECK_SECONDS)
            is_asked = self._asked.is_set()
            self._asked.clear()
            for number, each in enumerate(self._sources):
                now = each.signature()
                if is_asked or before[number] == now != each.seen:
                    await asyncio.to_thread(each.reload)
                before[number] = now
